// What the passes of a pipeline cost: the input of list scheduling and of
// simulation at the level of passes.

#ifndef MILLRACE_PLANNER_PASS_COSTS_H_
#define MILLRACE_PLANNER_PASS_COSTS_H_

#include <cstdint>
#include <vector>

namespace millrace {

// One micro-batch's passes through one chunk of layers.
struct ChunkCosts {
  double forward_s = 0;
  double input_gradient_s = 0;   // What is computed again included.
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

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PASS_COSTS_H_
