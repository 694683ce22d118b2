// The table of rotary positions that attributes ask for.

#ifndef MILLRACE_WORKER_TRAIN_ROPE_FREQUENCIES_H_
#define MILLRACE_WORKER_TRAIN_ROPE_FREQUENCIES_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "kernels/pointwise/rope.h"
#include "planner/program/ops.h"

namespace millrace {

// All that decides a table.
using RopeKey = std::tuple<int64_t, int64_t, double, RopeScalingKind, double,
                           double, double, int64_t, double, uint64_t>;

// Elements of a head that are rotated.
inline int64_t RotatedElements(const AttentionAttributes& attributes) {
  return attributes.rotary_dim > 0 ? attributes.rotary_dim
                                   : attributes.head_dim;
}

inline RopeKey RopeKeyOf(const AttentionAttributes& attributes) {
  const RopeScaling& scaling = attributes.rope_scaling;
  return {attributes.sequence_length,
          RotatedElements(attributes),
          attributes.rope_theta,
          scaling.kind,
          scaling.factor,
          scaling.low_freq_factor,
          scaling.high_freq_factor,
          scaling.original_max_position_embeddings,
          attributes.rotary_scale,
          attributes.rope_factors};
}

inline int64_t RopeBytesOf(const AttentionAttributes& attributes) {
  return RopeTableBytes(attributes.sequence_length,
                        RotatedElements(attributes));
}

// `rope_factors` are the model's. Internal if the attributes are of others.
absl::Status FillRopeTableOf(const AttentionAttributes& attributes,
                             const std::vector<double>& rope_factors,
                             float* table);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_ROPE_FREQUENCIES_H_
