// GraphBuilder: the tensors, parameter views and common ops from which the
// other files build a Graph, and the shapes of one rank. Internal to
// planner/lower/graph*.

#ifndef MILLRACE_PLANNER_LOWER_GRAPH_BUILDER_H_
#define MILLRACE_PLANNER_LOWER_GRAPH_BUILDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "planner/graph/layer_graph.h"
#include "planner/lower/graph.h"

namespace millrace {

// Sizes on one rank. The letters are those of comments about the graph.
struct StageShapes {
  int64_t num_sequences;  // Sequences in a micro-batch.
  int64_t sequence_length;
  int64_t num_tokens;     // T
  int64_t shard_tokens;   // S: T / tensor, under sequence parallelism.
  int64_t hidden;         // H
  int64_t num_heads;      // N
  int64_t num_kv_heads;   // K
  int64_t head_dim;       // D
  int64_t ffn_hidden;     // F
  int64_t vocab_rows;     // Vt
  int64_t position_rows;  // Rows of learned positions.

  int64_t query_width() const { return num_heads * head_dim; }
  int64_t qkv_width() const {
    return (num_heads + 2 * num_kv_heads) * head_dim;
  }
};

// The outputs of kQuantizeFloat8*; -1 for what it does not write. The units are
// [1] where the tensor has one scale. In blocks they are [F / 128, R] and
// [R / 128, F], and of a weight [R / 128, F / 128]: one tensor for both copies.
struct Float8Copies {
  TensorId unit = -1;             // That of `rows`.
  TensorId rows = -1;             // [R, F]
  TensorId transposed_unit = -1;  // That of `transposed`.
  TensorId transposed = -1;       // [F, R]
};

// A matrix [rows, cols] of parameters and its gradient. The backward pass reads
// `backward_parameter`: under ZeRO-3 each pass gathers parameters anew.
struct Weight {
  TensorId parameter = -1;
  TensorId backward_parameter = -1;
  TensorId gradient = -1;
  int64_t rows = 0;
  int64_t cols = 0;
  // For parameters in 8 bits: their unit, and where they are transposed once a
  // step, for all passes; not under ZeRO-3.
  TensorId unit = -1;
  TensorId transposed = -1;
  bool is_transposed = false;  // An op that does it was emitted.
  // With scales for blocks: what is made once a step, for all passes; not under
  // ZeRO-3.
  Float8Copies copies;
};

// One bucket's views into the flat buffers: all of it, or the rank's slice
// where the layout shards them. -1 for what the Graph has not.
struct BucketTensors {
  TensorId parameters;  // Those that kernels read.
  TensorId weights;     // Those that the optimizer updates, in 8-bit buckets.
  TensorId gradients;
  TensorId exp_avg;
  TensorId exp_avg_sq;
  TensorId master;
};

// The tensors that a norm leaves for its backward pass.
struct SavedNorm {
  TensorId residual;   // [S, H], its input.
  TensorId rstd;       // [S]
  TensorId mean = -1;  // [S], of LayerNorm.
  TensorId output;     // [S, H]
  Weight weight;
  Weight bias;  // LayerNorm's.
};

class GraphBuilder {
 public:
  GraphBuilder(const ModelSpec& model, const Layout& layout, int32_t stage);

  const ModelSpec& model() const { return model_; }
  const Layout& layout() const { return layout_; }
  int32_t stage() const { return stage_; }
  bool is_first_stage() const { return stage_ == 0; }
  bool is_last_stage() const { return stage_ == layout_.pipeline - 1; }
  // Whether the head is the embedding, on one stage.
  bool embedding_is_head() const {
    return model_.ties_embedding && layout_.pipeline == 1;
  }
  const StageShapes& shapes() const { return shapes_; }
  Graph& graph() { return graph_; }
  const Graph& graph() const { return graph_; }

  // Makes the flat buffers and the scalars that a Program of this kind has;
  // offsets are the same for all kinds.
  void AddPersistentTensors(ProgramKind kind);

  // The units of all matrices of a bucket in 8 bits, kNumberStride apart.
  TensorId AddUnits(const Bucket& bucket);

  // By bucket, once there are persistent tensors.
  const std::vector<BucketTensors>& bucket_tensors() const {
    return bucket_tensors_;
  }

  DType activation_type() const { return ActivationType(layout_.precision); }
  // The type is activation_type() unless given.
  TensorId AddTensor(std::string name, std::vector<int64_t> dims);
  TensorId AddTensor(std::string name, std::vector<int64_t> dims, DType dtype);
  // Output `i` of an op of this kind, with the dims and type that the op table
  // gives it.
  TensorId AddOutput(std::string name, OpKind kind,
                     const OpAttributes& attributes, size_t i = 0);
  // A view of `dims` elements at `element_offset` of flat tensor `flat`.
  TensorId AddView(std::string name, TensorId flat, int64_t element_offset,
                   std::vector<int64_t> dims);
  // `dims` elements at `element_offset` of step tensor `whole`, which is no
  // part.
  TensorId AddPart(std::string name, TensorId whole, int64_t element_offset,
                   std::vector<int64_t> dims);
  // The matrix [rows, cols] that starts at the slot of parameter `first`.
  Weight AddWeight(const std::string& name, absl::string_view first,
                   int64_t rows, int64_t cols);

  // Ops go to the end of `ops` from now on.
  void EmitTo(std::vector<GraphOp>* ops);
  GraphOp& Emit(GraphOp op);

  // The op of a layer's list with its operands.
  GraphOp& Emit(std::string name, const LayerOp& op,
                std::vector<TensorId> inputs, std::vector<TensorId> outputs);
  // Output `i` of an op of a layer's list.
  TensorId AddOutput(std::string name, const LayerOp& op, size_t i) {
    return AddOutput(std::move(name), op.kind, op.attributes, i);
  }

  // y = x weight^T + bias, a linear layer's forward pass. `bias` is read where
  // the op has one.
  TensorId EmitLinear(const std::string& name, const LayerOp& op, TensorId x,
                      const Weight& weight, const Weight& bias);
  // d_x = d_y weight.
  TensorId EmitInputGradient(const std::string& name, const LayerOp& op,
                             TensorId d_y, const Weight& weight);
  // d_weight += d_y^T x.
  static GraphOp WeightGradient(std::string name, const LayerOp& op,
                                TensorId d_y, TensorId x, const Weight& weight);

  // Copies of x in 8 bits: those that the op's attributes keep, without the
  // transposed ones where no backward pass reads them. Replaces in `copies`
  // what it writes.
  void EmitQuantize(const std::string& name, const LayerOp& op, TensorId x,
                    Float8Copies* copies);
  // The same products of copies. Input gradients read the weight transposed,
  // which an op named after the product does first where it is not done yet.
  TensorId EmitFloat8Linear(const std::string& name, const LayerOp& op,
                            const Float8Copies& x, Weight& weight,
                            const Weight& bias);
  TensorId EmitFloat8InputGradient(const std::string& name, const LayerOp& op,
                                   const Float8Copies& d_y, Weight& weight);
  static GraphOp Float8WeightGradient(std::string name, const LayerOp& op,
                                      const Float8Copies& d_y,
                                      const Float8Copies& x,
                                      const Weight& weight);

  // [S, H] -> [T, H] over the tensor axis, and back by summing.
  TensorId EmitTensorGather(const std::string& name, const LayerOp& op,
                            TensorId shard);
  TensorId EmitTensorReduceScatter(const std::string& name, const LayerOp& op,
                                   TensorId full);

  // The tensor that ops of this phase read the weight from.
  static TensorId ParameterOf(const Weight& weight, Phase phase) {
    return phase == Phase::kForward ? weight.parameter
                                    : weight.backward_parameter;
  }

  // The weights of a norm; the names of its parameters begin with `parameter`.
  SavedNorm AddNormWeights(const std::string& name,
                           const std::string& parameter);
  // norm(x) or, where the op adds, norm(x + delta), with the weights of `norm`.
  SavedNorm EmitNorm(const std::string& name, const LayerOp& op, TensorId x,
                     TensorId delta, const SavedNorm& norm);
  // Returns d_x [S, H]; `d_residual` is added unless negative.
  TensorId EmitNormBackward(const std::string& name, const LayerOp& op,
                            const SavedNorm& saved, TensorId d_y,
                            TensorId d_residual);

  // Weight gradients wait here until something else, a transfer or a
  // collective, is under way for them to hide.
  void Defer(GraphOp op) { deferred_.push_back(std::move(op)); }
  GraphOp& LastDeferred() { return deferred_.back(); }
  void EmitDeferred();
  // Until ReleaseDeferred(), EmitDeferred() does nothing.
  void HoldDeferred() { holds_deferred_ = true; }
  void ReleaseDeferred() {
    holds_deferred_ = false;
    EmitDeferred();
  }

  // Index of the bucket of this name; it must exist.
  int32_t BucketIndex(absl::string_view name) const;
  // Marks the last of `ops` that writes a gradient of the bucket as the op that
  // completes the bucket. Does nothing if there is no such bucket.
  void CompleteAtLast(absl::string_view bucket, std::vector<GraphOp>* ops);

  Graph Build() && { return std::move(graph_); }

 private:
  // The copy of the weight that a product of this phase reads, as rows or
  // transposed.
  Float8Copies CopiesOf(const std::string& product, Phase phase, Weight& weight,
                        bool transposed);
  // Transposes the weight for all passes, in the first micro-batch's, or where
  // passes gather it for one product. Returns what such a product reads.
  TensorId Transposed(const std::string& product, Phase phase, Weight& weight);
  // How many elements a rank keeps of the buckets in 8 bits, as rows.
  int64_t NumFloat8Elements() const;
  // The elements of a bucket that a rank keeps: its slice, or all.
  int64_t NumKept(const Bucket& bucket, bool sharded) const;
  // The unit of a weight in 8 bits, which begins so far into its bucket, whose
  // rows begin at `rows_offset`, and where it lies transposed between passes.
  void AddFloat8Tensors(const std::string& name, const Bucket& bucket,
                        int64_t offset_in_bucket, int64_t rows_offset,
                        Weight* weight);
  // Copies with scales for blocks, of activations, gradients and weights.
  void EmitQuantizeBlocks(const std::string& name, const LayerOp& op,
                          TensorId x, Float8Copies* copies);
  Float8Copies BlockCopiesOf(const std::string& name, Phase phase,
                             Weight& weight, bool transposed);
  // The next [rows, cols] of the persistent copies with scales for blocks, and
  // the elements of the buffer of their units.
  TensorId NextCopy(std::string name, int64_t rows, int64_t cols);
  int64_t NumBlockUnits() const;
  // The stage's layers whose products read such copies, and the elements of
  // their matrices, each of which has two copies.
  int64_t NumCopiedLayers() const;
  int64_t NumCopiedElements() const;
  void AddBucketTensors();
  // Whether the tensor is a part of the bucket's gradients.
  bool IsGradientOf(size_t bucket, TensorId tensor) const;
  const ParameterSlot& SlotOf(absl::string_view parameter) const;
  // The tensor that holds a bucket's parameters between steps, and where in it.
  struct Place {
    TensorId flat;
    int64_t element_offset;
  };
  // For each bucket: the parameters that kernels read, and where those that the
  // optimizer updates are apart from these and no master weights, the latter.
  void PlaceBuckets();
  // Where the bucket's units begin in PersistentLayout::float8_units.
  int64_t UnitsOffset(const Bucket& bucket) const;
  // The index of the bucket that holds this element of the flat buffers.
  int32_t BucketAt(int64_t element_offset) const;
  // The bucket's step tensor in one of the lists of Graph::sharded.
  TensorId StepBucket(std::vector<TensorId>& by_bucket, int32_t bucket,
                      absl::string_view name, DType dtype);

  const ModelSpec& model_;
  const Layout& layout_;
  const int32_t stage_;
  ProgramKind kind_ = ProgramKind::kTraining;
  StageShapes shapes_;
  Graph graph_;
  std::vector<GraphOp>* ops_ = nullptr;
  std::vector<GraphOp> deferred_;
  bool holds_deferred_ = false;
  std::vector<BucketTensors> bucket_tensors_;
  std::vector<Place> places_;         // By bucket.
  std::vector<Place> update_places_;  // By bucket; see PlaceBuckets().
  // How many elements of the persistent copies with scales for blocks, and of
  // their units, are taken.
  int64_t num_copied_elements_ = 0;
  int64_t num_units_ = 0;
  std::map<TensorId, TensorId> amax_of_;  // Where the tensor's writer found it.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_BUILDER_H_
