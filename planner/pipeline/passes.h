// The values that list scheduling and the pass simulator share: the cost of
// each pass of a pipeline, and the order in which each stage runs its passes.

#ifndef MILLRACE_PLANNER_PIPELINE_PASSES_H_
#define MILLRACE_PLANNER_PIPELINE_PASSES_H_

#include <cstdint>
#include <vector>

namespace millrace {

// One micro-batch's passes through one chunk of layers.
struct ChunkCosts {
  double forward_s = 0;
  double input_gradient_s = 0;   // Includes recomputing.
  double weight_gradient_s = 0;  // Needs the input gradient of the chunk.
  // Held from the chunk's forward pass until its input gradient is done, and
  // from the input gradient until the weight gradient is.
  int64_t activation_bytes = 0;
  int64_t weight_gradient_bytes = 0;
};

// A micro-batch visits the chunks in order: chunk c is on stage
// stage_of_chunk[c], and its gradients come back in the opposite order.
struct PipelineCosts {
  int32_t num_stages = 1;
  int32_t num_microbatches = 1;
  std::vector<int32_t> stage_of_chunk;
  std::vector<ChunkCosts> chunks;  // As long as stage_of_chunk.
  double transfer_s = 0;           // Between chunks on different stages.
};

// kBackward computes both gradients layer by layer, so the gradient that the
// chunk before waits for is ready at its end. The backward work of a
// micro-batch on a chunk is either one kBackward pass, or one pass of each of
// the two other kinds.
enum class ChunkPassKind : uint8_t {
  kForward,
  kBackward,
  kInputGradient,
  kWeightGradient,
};
inline constexpr int kNumChunkPassKinds = 4;
struct ChunkPass {
  ChunkPassKind kind;
  int32_t chunk_idx;  // Into PipelineCosts::chunks.
  int32_t microbatch_idx;
  friend bool operator==(const ChunkPass&, const ChunkPass&) = default;
};

// The order in which each stage (outer index) runs the passes of its chunks.
using PassOrder = std::vector<std::vector<ChunkPass>>;

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_PASSES_H_
