// Adds up partial sums that the blocks of another kernel wrote, one row each.
// It is the second half of a weight gradient that is summed in a fixed order.

#ifndef MILLRACE_KERNELS_CUDA_COLUMN_SUM_H_
#define MILLRACE_KERNELS_CUDA_COLUMN_SUM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// out[c] (+)= sum over r of rows[r, c].
struct ColumnSum {
  float* out;         // [num_columns]
  const float* rows;  // [num_rows, num_columns], 16-byte aligned.
  int64_t num_rows;   // Zero is allowed and sums to zero.
};

struct ColumnSumArgs {
  ColumnSum sums[2];
  int num_sums;         // One or two, done in one launch.
  int64_t num_columns;  // A multiple of four; of none nothing is done.
  bool accumulate;      // The sums are added to `out`, not written over it.
};

// Enqueues on `stream`, allocates nothing. Device pointers. The order of the
// additions depends on the sizes alone. The kernel that leaves the rows may
// call LetNextKernelStart() (dependent_launch.cuh), so that this one waits
// beside it rather than being launched after it.
absl::Status LaunchColumnSum(const ColumnSumArgs& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_COLUMN_SUM_H_
