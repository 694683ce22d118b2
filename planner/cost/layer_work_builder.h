// Collects the LayerWork of a layer. Each op is stated once; the builder adds
// its backward pass and its recompute. Internal to the *_work*.cc files of
// planner/cost.

#ifndef MILLRACE_PLANNER_COST_LAYER_WORK_BUILDER_H_
#define MILLRACE_PLANNER_COST_LAYER_WORK_BUILDER_H_

#include <cstdint>

#include "planner/cost/layer_work.h"

namespace millrace {

inline double AsDouble(int64_t value) { return static_cast<double>(value); }

// The piece of a layer that an op belongs to; recompute chooses by pieces.
enum class Piece : uint8_t {
  kNorm,
  kActivation,
  kExpertActivation,
  kRotary,
  kAttention,
  kAttended,  // Its output; attention itself and what else it keeps is not.
  kLatentProjection,
  kExperts,         // From the router to the inner projections.
  kExpertProducts,  // The inner projections.
  kQkv,             // And what the tensor axis gathers for it.
  kGateUp,          // Likewise.
  kOutput,          // Attention's product, and the stream that it is added to.
  kOutputSum,       // Over the tensor axis.
  kProduct,         // All others.
  // See SelectiveRecompute::every_second_product.
  kSecondProduct,
  kLast,  // Nothing in the layer's backward pass reads its output.
};

// Which part of a layer an op is in, by which implementations differ.
enum class LayerPart : uint8_t { kOther, kAttention, kRouter, kExperts };

// A product x [tokens, in] -> [tokens, out] of one rank, `count` alike.
struct LinearShape {
  int64_t tokens, out, in;
  int64_t count = 1;
  bool low_precision = true;
};

class LayerBuilder {
 public:
  LayerBuilder(const ModelSpec& model, const Layout& layout,
               const Implementation& implementation);

  const ModelSpec& model() const { return model_; }
  const Layout& layout() const { return layout_; }
  const Implementation& implementation() const { return implementation_; }

  // Tokens of a micro-batch on one context rank, and those of them that a rank
  // has where the tensor axis shares them: in norms (where the implementation
  // does) and before experts.
  int64_t tokens() const { return tokens_; }
  int64_t norm_tokens() const { return norm_tokens_; }
  int64_t shard_tokens() const { return shard_tokens_; }
  double element_bytes() const { return element_bytes_; }

  // The ops added from here on belong to `part`.
  void Begin(LayerPart part) { part_ = part; }

  // Whether the backward pass computes it again.
  bool IsRepeated(Piece piece) const;
  // Whether every second product is, as SelectiveRecompute says.
  bool RepeatsSecondProducts() const {
    return layout_.recompute == Recompute::kPolicy &&
           implementation_.selective.every_second_product;
  }

  // Forward product and both gradients.
  void Linear(Piece piece, const LinearShape& shape);
  void Attention(const AttentionWork& forward);
  void Bandwidth(Piece piece, double forward_bytes, double backward_bytes,
                 int32_t launches = 1);
  // An op that makes one pass over so many elements, in and out, where ops are
  // fused.
  void Elementwise(Piece piece, double forward_elements,
                   double backward_elements);
  // A norm of `tokens` rows of `width`, added to the residual stream before.
  void Norm(int64_t tokens, int64_t width);
  // In the forward pass, and again where `piece` is.
  void Communicate(Piece piece, CommAxis axis, CommKind kind, double elements);
  void CommunicateBackward(WorkPhase phase, CommAxis axis, CommKind kind,
                           double elements);
  // So many elements to the ranks of their experts, or back; and the gradients'
  // opposite way.
  void Exchange(Piece piece, double elements);

  // [norm_tokens, width] -> [tokens, width] over the tensor axis before a
  // block's products, those of `piece`, and [tokens, width] summed after them;
  // and the backward pass of both.
  void EnterTensor(Piece piece, int64_t width);
  void LeaveTensor(Piece piece, int64_t width);

  // The layer's input, whatever is computed again.
  void KeepInput(double elements) { kept_bytes_ += elements * element_bytes_; }
  // For the backward pass; only while it runs if `piece` is computed again.
  void Keep(Piece piece, double bytes);
  void KeepElements(Piece piece, double elements) {
    Keep(piece, elements * element_bytes_);
  }
  // A norm's output, as products of the tensor axis keep it.
  void KeepNormed(int64_t width);
  // Of an element that products read and nothing else does.
  double product_input_bytes() const;

  // Bytes that live only while a block is computed: the largest block's count.
  void Work(double bytes);

  LayerWork Build() &&;

 private:
  bool quantizes() const {
    return layout_.gemm_format != GemmFormat::kAsStored;
  }
  double quantized_bytes() const;
  bool in_graph() const;
  // Of what a framework names selective.
  bool IsInPolicy(Piece piece) const;

  const ModelSpec& model_;
  const Layout& layout_;
  const Implementation& implementation_;
  const int64_t tokens_;
  const int64_t shard_tokens_;
  const int64_t norm_tokens_;
  const double element_bytes_;
  LayerPart part_ = LayerPart::kOther;
  LayerWork work_;
  double kept_bytes_ = 0;
  double repeated_bytes_ = 0;
  double block_bytes_ = 0;
};

// Each from the layer's residual stream to what is added to it.
void AddAttention(LayerBuilder& builder);
void AddFeedForward(LayerBuilder& builder);
void AddExperts(LayerBuilder& builder);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_LAYER_WORK_BUILDER_H_
