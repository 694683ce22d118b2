// Counts the values of a tensor that are infinite or NaN.

#ifndef MILLRACE_KERNELS_CUDA_COUNT_NOT_FINITE_H_
#define MILLRACE_KERNELS_CUDA_COUNT_NOT_FINITE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// e4m3 has no infinity, and one NaN of either sign.
enum class ValueFormat : uint8_t {
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat8E4m3,
};

struct CountNotFiniteArgs {
  uint64_t* count;     // On the device; the kernel adds to it.
  const void* x;       // At any address that is a multiple of a value's size.
  int64_t num_values;  // Zero is allowed and does nothing.
  ValueFormat format = ValueFormat::kFloat32;
};

// Enqueues on `stream`, allocates nothing. The test is on the values' bits, and
// exact. InvalidArgument names a bad number or address.
absl::Status LaunchCountNotFinite(const CountNotFiniteArgs& args,
                                  cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_COUNT_NOT_FINITE_H_
