#include "kernels/pointwise/rope.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {

int64_t RopeTableBytes(int64_t sequence_length, int64_t head_dim) {
  return sequence_length * head_dim * static_cast<int64_t>(sizeof(float));
}

namespace {

double ScaledFrequency(double frequency, const RopeFrequencyScaling& scaling) {
  if (scaling.factor == 1) return frequency;
  if (scaling.is_linear) return frequency / scaling.factor;
  // Wavelengths that fit in the sequences the model saw first.
  const double turns =
      static_cast<double>(scaling.original_length) * frequency / (2 * M_PI);
  const double kept =
      std::clamp((turns - scaling.low_freq_factor) /
                     (scaling.high_freq_factor - scaling.low_freq_factor),
                 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

}  // namespace

absl::Status FillRopeTable(float* table, int64_t sequence_length,
                           int64_t head_dim, double theta,
                           const RopeFrequencyScaling& scaling) {
  if (sequence_length < 1 || head_dim < 2 || head_dim % 2 != 0 ||
      !(theta > 0.0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RoPE table got sequence_length ", sequence_length, ", head_dim ",
        head_dim, ", theta ", theta,
        "; needs at least one, an even number of at least two, above zero"));
  }
  if (scaling.factor < 1 ||
      (scaling.factor > 1 && !scaling.is_linear &&
       (scaling.high_freq_factor <= scaling.low_freq_factor ||
        scaling.original_length < 1))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RoPE table got frequencies scaled by factor ", scaling.factor,
        ", low_freq_factor ", scaling.low_freq_factor, ", high_freq_factor ",
        scaling.high_freq_factor, " of ", scaling.original_length,
        " tokens; needs a factor of at least one, the second below the third, "
        "and at least one token"));
  }
  const int64_t half = head_dim / 2;
  float* sines = table + sequence_length * half;
  std::vector<double> frequencies(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    frequencies[i] =
        ScaledFrequency(std::pow(theta, -2.0 * i / head_dim), scaling);
    if (scaling.divisors != nullptr) frequencies[i] /= scaling.divisors[i];
  }
  for (int64_t position = 0; position < sequence_length; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = position * frequencies[i];
      table[position * half + i] =
          static_cast<float>(scaling.scale * std::cos(angle));
      sines[position * half + i] =
          static_cast<float>(scaling.scale * std::sin(angle));
    }
  }
  return absl::OkStatus();
}

absl::Status Rope(const RopeArgs& args, int num_threads) {
  if (args.sequence_length < 1 || args.num_heads < 1 || args.num_kv_heads < 1 ||
      args.head_dim < 2 || args.head_dim % 2 != 0 || args.rotary_dim < 0 ||
      args.rotary_dim > args.head_dim || args.rotary_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Rope got sequence_length ", args.sequence_length, ", ", args.num_heads,
        " query and ", args.num_kv_heads, " key-value heads of head_dim ",
        args.head_dim, ", rotary_dim ", args.rotary_dim,
        "; needs at least one of each, an even head_dim and an even rotary_dim "
        "that is no larger"));
  }
  const int64_t row = (args.num_heads + 2 * args.num_kv_heads) * args.head_dim;
  RETURN_IF_ERROR(
      CheckRowsAndThreads("Rope", args.num_tokens, row, num_threads));
  ParallelRanges(
      ThreadsForFloats(num_threads, args.num_tokens * row), args.num_tokens,
      [&](int64_t begin, int64_t end) { Loops().rope(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace millrace
