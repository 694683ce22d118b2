// Products of bf16 tensors for a mixture of experts, in one launch: the rows of
// a are sorted by group, and each group g has its own b:
//   c[r, n] = scale * a[r, k] op(b[g])[k, n]  for offsets[g] <= r <
//   offsets[g + 1],
// summed in fp32. On Hopper GPUs, by the kernel of gemm_bf16_sm90.cuh. The
// sizes of groups stay on the device: nothing waits for the host.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_GROUPED_BF16_H_
#define MILLRACE_KERNELS_GEMM_GEMM_GROUPED_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

struct GroupedGemmBf16Shape {
  // Rows of a and c as allocated. The last offset is at most this. Zero does
  // nothing.
  int64_t num_rows;
  int64_t n, k;  // Multiples of 8.
  int64_t num_groups;
  // b[g] is stored [n, k], as weights [out, in] are; else [k, n], and k is a
  // multiple of 64.
  bool trans_b = false;
};

// Device pointers, aligned to 16 bytes; dense. c overlaps no input.
struct GroupedGemmBf16Args {
  void* c;        // [num_rows, n] bf16. Rows of no group are left as they are.
  const void* a;  // [num_rows, k] bf16.
  const void* b;  // [num_groups, n, k] or [num_groups, k, n] bf16.
  // [num_groups + 1], ascending; a group may be empty.
  const int32_t* group_offsets;
  float scale = 1.0f;
  GroupedGemmBf16Shape shape;
};

// Enqueues on `stream`, allocates nothing. Equal inputs give equal bits.
// InvalidArgument names a shape that cannot be, Unavailable a device that is
// not a Hopper.
absl::Status LaunchGroupedGemmBf16(const GroupedGemmBf16Args& args,
                                   cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_GEMM_GROUPED_BF16_H_
