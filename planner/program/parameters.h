// Which parameters a model has, and where a rank keeps its share of them.
//
// Training state is described logically (name, global shape) and located
// physically (which slice of which flat buffer). Checkpoints, weight
// initialization, export and the optimizer all use this one description.

#ifndef MILLRACE_PLANNER_PROGRAM_PARAMETERS_H_
#define MILLRACE_PLANNER_PROGRAM_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

// How a parameter is cut over the tensor axis.
enum class TensorShard { kReplicated, kRows, kColumns };

// One logical parameter. Names are those of Hugging Face's checkpoints,
// for example "model.layers.3.self_attn.q_proj.weight".
struct Parameter {
  std::string name;
  int64_t rows;  // 1 for a vector.
  int64_t cols;
  bool is_vector;  // Weights of norms and biases: shape [cols].
  TensorShard shard;
  bool is_of_norm = false;  // A norm's weight or bias.
};

// All parameters of the model in their canonical order: embedding, learned
// positions, layers (in each: input norm, q, k, v, norms of query and key, o,
// norm of attention's output, norm before the feed-forward block, gate, up,
// down, norm of the block's output, a bias next to what it belongs to), final
// norm, and unless the embedding serves as head, the head ("lm_head.weight").
// Options of a model leave some out.
std::vector<Parameter> ModelParameters(const ModelSpec& model);

// The last parts of the names of a block's norms, without ".weight". Where
// outputs are normed, Hugging Face calls them as Gemma does.
struct BlockNorms {
  const char* input;
  const char* output;  // Null where outputs are not normed.
};
BlockNorms NormsOfBlock(const ModelSpec& model, bool is_attention);

// The initial value of all elements of a vector: of a bias 0, of a norm's
// weight what multiplies by one.
float InitialVectorValue(const ModelSpec& model, absl::string_view name);

// The box of a global [rows, cols] parameter that one tensor rank holds.
struct ParameterBox {
  int64_t row_begin, row_end;
  int64_t col_begin, col_end;
  int64_t num_elements() const {
    return (row_end - row_begin) * (col_end - col_begin);
  }
  friend bool operator==(const ParameterBox&, const ParameterBox&) = default;
};
ParameterBox TensorBox(const Parameter& parameter, int32_t tensor_size,
                       int32_t tensor_idx);

// One parameter in a rank's flat buffers: elements
// [offset, offset + box elements), its box row-major.
struct ParameterSlot {
  Parameter parameter;
  int64_t local_rows;
  int64_t local_cols;
  int64_t offset;  // Elements from the start of the flat buffer.
};

// A run of the flat buffer whose gradients are reduced together and whose
// parameters are updated together. Padded so that it divides evenly over the
// data axis; padding holds zeros for ever.
struct Bucket {
  // "embedding", "positions", "layers.3", "head", "biases", "whole_biases",
  // "norms".
  std::string name;
  int64_t offset;        // Elements from the start of the flat buffer.
  int64_t num_elements;  // A multiple of data size x BucketAlignment().
  bool weight_decay;     // False for norms and biases, which layers share.
  // True for norms and whole biases: every tensor rank holds all of it, and its
  // gradients are partial sums over the tensor axis.
  bool tensor_replicated;
  // A pass reads it early and late: norms, biases, and an embedding that serves
  // as head on the same stage.
  bool is_read_all_along;
  // A pipeline's last stage has a copy of a tied embedding, whose first stage
  // has it too. Both see the sum of their gradients.
  bool is_copy;
  std::vector<int32_t> slots;  // Indices into StageParameters::slots.
  // Where the matrices of products begin, in elements from the bucket's start,
  // if kernels read them in 8 bits (IsInFloat8()); else empty. Each reaches to
  // the next one's begin, the last to the bucket's end: padding is zero and
  // changes no magnitude.
  std::vector<int64_t> float8_matrices;

  bool in_float8() const { return !float8_matrices.empty(); }
};
// Whether products of the layer read its matrices in 8 bits. Such matrices have
// no other form than the weights that the optimizer updates and, made of these
// at the start of each step, what products read.
bool IsInFloat8(const ModelSpec& model, const Layout& layout, int64_t layer);
// Elements: kBufferAlignment bytes in bf16, so that weights start at multiples
// of it in the flat buffer of either precision.
inline constexpr int64_t kBucketAlignment = 128;
// The same of matrices that are read in 8 bits.
inline constexpr int64_t kFloat8BucketAlignment = 256;
// The alignment of a data rank's slice of a bucket: kBucketAlignment; where
// moments are kept in blocks, kMomentBlock, so that no slice cuts a block;
// under GemmFormat::kFloat8, kFloat8BucketAlignment.
int64_t BucketAlignment(const Layout& layout);

// The parameters that every rank of one pipeline stage holds (offsets are alike
// for all its tensor and data coordinates). Buckets in the order in which the
// backward pass finishes them reversed: embedding, learned positions, layers
// ascending, head, biases of inner products (cut over the tensor axis), biases
// of outer products (whole on every tensor rank), norms; without those that a
// model has not. q, k, v of a layer are adjacent, as are gate and up, so that
// each is one GEMM; and so are their biases.
struct StageParameters {
  std::vector<ParameterSlot> slots;
  std::vector<Bucket> buckets;
  int64_t num_elements;  // In the flat buffer, with padding.
  // Elements of optimizer state kept by one rank, per moment.
  int64_t num_optimizer_elements;
};
// Whether some elements of the bucket belong to no slot.
bool HasPadding(const StageParameters& parameters, const Bucket& bucket);
StageParameters BuildStageParameters(const ModelSpec& model,
                                     const Layout& layout, int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_PARAMETERS_H_
