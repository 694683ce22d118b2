// The frequencies of rotary positions, as kernels take them.

#ifndef MILLRACE_WORKER_TRAIN_ROPE_FREQUENCIES_H_
#define MILLRACE_WORKER_TRAIN_ROPE_FREQUENCIES_H_

#include "kernels/pointwise/rope.h"
#include "planner/program/ops.h"

namespace millrace {

inline RopeFrequencyScaling FrequencyScalingOf(
    const AttentionAttributes& attributes) {
  const RopeScaling& scaling = attributes.rope_scaling;
  if (scaling.kind == RopeScalingKind::kNone) return {};
  return {.factor = scaling.factor,
          .low_freq_factor = scaling.low_freq_factor,
          .high_freq_factor = scaling.high_freq_factor,
          .original_length = scaling.original_max_position_embeddings};
}

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_ROPE_FREQUENCIES_H_
