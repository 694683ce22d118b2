// The closed form of a rank's memory at the fullest moment of a step.

#ifndef MILLRACE_PLANNER_COST_STEP_MEMORY_H_
#define MILLRACE_PLANNER_COST_STEP_MEMORY_H_

#include <cstdint>

#include "planner/cost/layer_work.h"
#include "planner/graph/style.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"

namespace millrace {

// Bytes of the most loaded rank.
struct StepMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;  // Master weights and moments.
  int64_t activations = 0;
  int64_t working = 0;   // The largest layer's, logits and gathered weights.
  int64_t overhead = 0;  // Context, libraries, communicators.
  int64_t total() const {
    return parameters + gradients + optimizer + activations + working +
           overhead;
  }
};

// The memory that a layer, the embedding or the head adds to a rank. Bytes are
// of one micro-batch.
struct LayerLoad {
  RankParameters parameters;
  int64_t activation_bytes = 0;  // Kept for the input gradients.
  // Kept from then on for the weight gradients: inputs and gradients of
  // outputs.
  int64_t weight_gradient_bytes = 0;
  int64_t working_bytes = 0;  // While it is computed.
};

// The memory that a stage holds for one micro-batch and for the model: sums
// over its layers and over the embedding and head if they are its.
struct StageLoad {
  RankParameters parameters;
  double end_parameters = 0;    // The embedding's and the head's part of these.
  double layer_parameters = 0;  // The largest layer's.
  double layer_float8 = 0;      // The part of these in 8 bits.
  double largest_end = 0;       // The larger of the embedding's and the head's.
  int64_t activation_bytes = 0;
  int64_t weight_gradient_bytes = 0;
  // Parts of activation_bytes: those of the stage's first and of its last
  // chunk.
  int64_t first_chunk_bytes = 0;
  int64_t last_chunk_bytes = 0;
  int64_t layer_working_bytes = 0;  // The largest layer's.
  int64_t end_working_bytes = 0;
  double stream_bytes = 0;  // StreamBytes().
};
void AddLayers(const LayerLoad& layer, int64_t count, StageLoad* stage);
void AddEnd(const LayerLoad& end, StageLoad* stage);

// Micro-batches whose activations a stage holds at its fullest, in parts of all
// of its chunks': min(m, p - stage) in one-forward-one-backward order, min(m,
// p) with zero bubble, and with v chunks (Narayanan et al., 2021, section 2.2)
// those of p (v - 1) + 2 (p - stage - 1) + 1 chunks.
double MicrobatchesHeld(const Layout& layout, int32_t stage);

// The activation bytes of all micro-batches held. With chunks, those that a
// stage holds beyond p of each belong to its first chunk. Those that it lacks
// are its last chunk's, which may have fewer layers beside the embedding and
// the head.
int64_t ActivationBytesHeld(const Layout& layout, const StageLoad& load,
                            int32_t stage);

// The further memory of the process: its communicators, one for each axis.
int64_t OverheadBytes(const Layout& layout, const MemoryOverhead& overhead);

StepMemory MemoryOfStage(const Layout& layout,
                         const Implementation& implementation,
                         const MemoryOverhead& overhead, const StageLoad& load,
                         int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_STEP_MEMORY_H_
