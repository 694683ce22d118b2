#include "worker/train/rope_frequencies.h"

namespace millrace {

absl::Status FillRopeTableOf(const AttentionAttributes& attributes,
                             const std::vector<double>& rope_factors,
                             float* table) {
  const RopeScaling& scaling = attributes.rope_scaling;
  RopeFrequencyScaling frequencies = {.scale = attributes.rotary_scale};
  switch (scaling.kind) {
    case RopeScalingKind::kNone:
      break;
    case RopeScalingKind::kLinear:
      frequencies.factor = scaling.factor;
      frequencies.is_linear = true;
      break;
    case RopeScalingKind::kLlama3:
      frequencies.factor = scaling.factor;
      frequencies.low_freq_factor = scaling.low_freq_factor;
      frequencies.high_freq_factor = scaling.high_freq_factor;
      frequencies.original_length = scaling.original_max_position_embeddings;
      break;
    case RopeScalingKind::kLongrope:
      if (FingerprintOf(rope_factors) != attributes.rope_factors) {
        return absl::InternalError(
            "a table of rotary positions is of other rope_factors than the "
            "model's");
      }
      frequencies.divisors = rope_factors.data();
      break;
  }
  return FillRopeTable(table, attributes.sequence_length,
                       RotatedElements(attributes), attributes.rope_theta,
                       frequencies);
}

}  // namespace millrace
