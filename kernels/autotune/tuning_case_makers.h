// Makes the cases of tuning_cases.h, a kernel each. Internal to it.

#ifndef MILLRACE_KERNELS_AUTOTUNE_TUNING_CASE_MAKERS_H_
#define MILLRACE_KERNELS_AUTOTUNE_TUNING_CASE_MAKERS_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/autotune/tuning_cases.h"

namespace millrace {

struct NormCase {
  bool is_layer, has_residual;
  int64_t num_tokens, hidden;
  // Threads of a row that are compiled for it.
  bool Applies(int64_t threads, int64_t max_vectors) const {
    int64_t row = std::max<int64_t>(8, SizeClass(hidden / 8));
    if (row == 16) row = 32;
    return row % threads == 0 && row / threads <= max_vectors;
  }
};

absl::StatusOr<TuningCase> MakeNormForward(const NormCase& c);
absl::StatusOr<TuningCase> MakeNormBackward(const NormCase& c);
absl::StatusOr<TuningCase> MakeSwiglu(bool is_backward, int64_t num_tokens,
                                      int64_t ffn_hidden);
absl::StatusOr<TuningCase> MakeRopeNorm(int64_t num_tokens, int64_t head_dim,
                                        int64_t num_heads,
                                        int64_t num_kv_heads);
// Without documents.
absl::StatusOr<TuningCase> MakeAttention(AttentionBf16Shape shape);
absl::StatusOr<TuningCase> MakeCrossEntropyRows(int64_t num_rows,
                                                int64_t vocabulary);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_AUTOTUNE_TUNING_CASE_MAKERS_H_
