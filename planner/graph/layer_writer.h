// Writes a LayerGraph. Each function states one op of the forward pass. The
// writer adds its recompute and its backward ops, by rules that depend on the
// op kind alone. Internal to planner/graph.

#ifndef MILLRACE_PLANNER_GRAPH_LAYER_WRITER_H_
#define MILLRACE_PLANNER_GRAPH_LAYER_WRITER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "planner/graph/layer_graph.h"

namespace millrace {

inline double AsDouble(int64_t value) { return static_cast<double>(value); }

// The piece of a layer that an op belongs to. Recompute chooses by pieces.
enum class Piece : uint8_t {
  kNorm,
  kActivation,
  kExpertActivation,
  kRotary,
  kAttention,
  kAttended,  // Attention's output. All else that attention keeps: kAttention.
  kLatentProjection,
  kExperts,         // From the router to the inner projections.
  kExpertProducts,  // The inner projections.
  kQkv,             // With the gather over the tensor axis before it.
  kGateUp,          // With the gather over the tensor axis before it.
  kOutput,          // Attention's product, and the stream that it is added to.
  kOutputSum,       // Over the tensor axis.
  kProduct,         // All other products.
  // See SelectiveRecompute::every_second_product.
  kSecondProduct,
  kLast,  // Nothing in the layer's backward pass reads its output.
};

// The part of a layer that an op is in. Styles differ by part.
enum class LayerPart : uint8_t { kOther, kAttention, kRouter, kExperts };

// A product x [tokens, in] -> [tokens, out] of one rank, `count` alike.
struct LinearShape {
  int64_t tokens, out, in;
  int64_t count = 1;
  bool low_precision = true;  // Whether Layout::gemm_format applies.
  bool bias = false;
};

class LayerWriter {
 public:
  LayerWriter(const ModelSpec& model, const Layout& layout,
              const Implementation& style);

  const ModelSpec& model() const { return model_; }
  const Layout& layout() const { return layout_; }
  const Implementation& style() const { return style_; }

  // Tokens of a micro-batch on one context rank. The others are those of them
  // that a rank has where the tensor axis shares them: in norms (if the style
  // shares tokens there) and before experts.
  int64_t tokens() const { return tokens_; }
  int64_t norm_tokens() const { return norm_tokens_; }
  int64_t shard_tokens() const { return shard_tokens_; }
  double element_bytes() const { return element_bytes_; }

  // Says that the layer attends to all tokens before it, although other layers
  // of the model have a window.
  void AttendGlobally() { is_global_ = true; }
  // Says that the layer attends to what is stored, whatever
  // ModelSpec::attention_format says.
  void AttendToStored() { attends_to_stored_ = true; }

  // The ops added from here on belong to this block, or to this part of it.
  void BeginBlock(LayerBlock block);
  void Begin(LayerPart part) { part_ = part; }

  // Whether the backward pass recomputes the piece.
  bool IsRecomputed(Piece piece) const;
  // Whether it recomputes every second product, as SelectiveRecompute says.
  bool RecomputesSecondProducts() const {
    return layout_.recompute == Recompute::kPolicy &&
           style_.selective.every_second_product;
  }

  // A product, and the copies that it reads where Layout::gemm_format has
  // fewer bits. Backward: the products for both gradients.
  void Linear(Piece piece, const LinearShape& shape);
  // Causal attention of this rank's queries.
  void Attention();
  // Rotary positions of query and key, after their norms if there are any.
  void Rope(Piece piece);
  // The activation between the products of a feed-forward block.
  void Activation(Piece piece, int64_t rows, int64_t width);
  // The norm of `tokens` rows of the stream, which is the sum of the residual
  // and a block's output unless it comes whole.
  void Norm(int64_t tokens, StreamInput input = StreamInput::kSum);
  // The norm of a block's output, if the model has such norms. `piece` is the
  // output's.
  void OutputNorm(Piece piece);
  // With learned positions if the model has them.
  void Embedding();
  // Head and loss in chunks of tokens. One tensor rank does all of it in the
  // backward pass, by one op.
  void ChunkedLoss(LossUse use);
  // The loss of pairs, from the statistics of `loss`.
  void PreferenceLoss(const VocabAttributes& loss);
  // The statistics or losses of each token from every tensor rank, in fp32.
  void GatherStatistics();

  // Passes over memory that move so many bytes, in a framework's own kernels.
  void Traffic(OpKind kind, Piece piece, double forward_bytes,
               double backward_bytes, int32_t launches = 1);
  // An op that makes one pass over so many elements, in and out, where ops are
  // fused.
  void Elementwise(OpKind kind, Piece piece, double forward_elements,
                   double backward_elements);

  // Collectives over the tensor axis, in the forward pass and where it is
  // recomputed. Backward collectives are stated by CollectiveBackward().
  void Collective(LayerStep step, OpKind kind, Piece piece, int64_t elements);
  void CollectiveBackward(LayerStep step, OpKind kind, Phase phase,
                          int64_t elements);
  // Collectives and exchanges that no worker has, over other axes. A backward
  // count of zero: none.
  void Exchange(OpKind kind, Piece piece, double elements);
  void ExchangeBackward(OpKind kind, double elements);
  // So many elements to the ranks of their experts, or back. Backward: the
  // gradients' opposite way.
  void ExpertExchange(Piece piece, double elements);

  // [norm_tokens, width] -> [tokens, width] over the tensor axis before a
  // block's products, those of `piece`.
  void EnterTensor(Piece piece, int64_t width);
  // [tokens, width] summed over the tensor axis -> [norm_tokens, width].
  void LeaveTensor(Piece piece, int64_t width);

  // The layer's input, which recompute never drops.
  void KeepInput(double elements) { kept_bytes_ += elements * element_bytes_; }
  // Bytes that the backward pass reads. They live only while it runs if `piece`
  // is recomputed.
  void Keep(Piece piece, double bytes);
  void KeepElements(Piece piece, double elements) {
    Keep(piece, elements * element_bytes_);
  }
  // A norm's output, as products of the tensor axis keep it.
  void KeepNormed(int64_t width);
  // Bytes of an element that products read and nothing else does.
  double product_input_bytes() const;
  // Bytes of both copies of an element that an op of its own makes; 0 where the
  // layer has no such ops.
  double copy_bytes() const {
    return quantizes_by_op() ? 2 * quantized_bytes() : 0;
  }

  // Bytes that live only while a block is computed: the largest block's count.
  void Work(double bytes);

  LayerGraph Build() &&;

 private:
  bool quantizes() const {
    return layout_.gemm_format != GemmFormat::kAsStored;
  }
  bool attends_in_float8() const {
    return model_.attention_format == AttentionFormat::kFloat8 &&
           !attends_to_stored_;
  }
  // Whether the layer's products read copies that ops of their own make.
  bool quantizes_by_op() const;
  // These ops, and the products of the copies.
  OpKind float8_copy() const;
  OpKind float8_product() const;
  double quantized_bytes() const;
  bool in_graph() const;
  // Whether SelectiveRecompute names the piece.
  bool IsInPolicy(Piece piece) const;

  LayerOp MakeOp(Phase phase, OpKind kind, const OpAttributes& attributes,
                 int32_t launches) const;
  // An op of the forward pass, repeated where `piece` is recomputed.
  void Forward(Piece piece, OpKind kind, const OpAttributes& attributes,
               int32_t launches = 1);
  // An op that follows from the latest forward op. Of several, the last stated
  // runs first.
  void Backward(Phase phase, OpKind kind, const OpAttributes& attributes,
                int32_t launches = 1);
  void Product(Piece piece, const LinearShape& shape);
  // Copies of the product's input, for the product and its weight gradient.
  void QuantizeInput(Piece piece, const LinearShape& shape);
  // Has the op that writes what is copied find its largest magnitude as well.
  // False if its kernels cannot, or the copies have scales for blocks.
  bool AskForAmax(LayerOp* writer) const;
  // The same for all gradients that are copied, once all ops are stated.
  void AskForAmaxOfGradients();

  AttentionAttributes AttentionShape() const;
  NormAttributes NormOf(int64_t tokens) const;
  CollectiveAttributes TensorCollective(int64_t elements) const;

  const ModelSpec& model_;
  const Layout& layout_;
  const Implementation& style_;
  const int64_t tokens_;
  const int64_t shard_tokens_;
  const int64_t norm_tokens_;
  const DType activation_type_;
  const double element_bytes_;
  bool is_global_ = false;
  bool attends_to_stored_ = false;
  LayerBlock block_ = LayerBlock::kAttention;
  LayerPart part_ = LayerPart::kOther;
  LayerStep step_ = LayerStep::kOther;
  LayerGraph graph_;
  std::vector<LayerOp> recompute_;
  std::vector<LayerOp> backward_;      // In the order of the forward pass.
  size_t feed_forward_recompute_ = 0;  // Where the last block's ops begin.
  size_t feed_forward_backward_ = 0;
  double kept_bytes_ = 0;
  std::array<double, 2> recomputed_bytes_{};  // By LayerBlock.
  double block_bytes_ = 0;
};

// Each writes the ops from the layer's residual stream to what is added to it.
void WriteAttention(LayerWriter& writer, StreamInput input);
void WriteFeedForward(LayerWriter& writer);
void WriteExperts(LayerWriter& writer);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_GRAPH_LAYER_WRITER_H_
