// GEMM of fp8 tensors on the GPU, through the door of gemm_bf16.h:
//   c[m, n] = a_scale[0] * b_scale[0] * a[m, k] b[n, k]^T + bias[n]  (+= when
//   `accumulate`), summed in fp32, c in bf16 or fp32.
//
// Hopper's tensor cores take fp8 with rows along k only, so both operands are
// stored so; a backward pass needs transposed copies. One scale a tensor, on
// the device: what one unit of the stored value means.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_FP8_H_
#define MILLRACE_KERNELS_GEMM_GEMM_FP8_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/fwd.h"
#include "kernels/gemm/gemm_bf16.h"

namespace millrace {

struct GemmFp8Shape {
  int64_t m, n, k;  // k and the strides of a and b are multiples of 16.
  // e5m2 in place of e4m3, as gradients are; not both.
  bool a_is_e5m2 = false;
  bool b_is_e5m2 = false;
  bool fp32_output = false;
  bool accumulate = false;
  bool bias = false;  // With a bf16 output only, and not with `accumulate`.
  // Leaves sums in the tensor cores, which keep fewer bits than fp32: faster,
  // and common in forward passes.
  bool fast_accumulation = false;
  int64_t a_stride = 0;  // In elements; zero: dense.
  int64_t b_stride = 0;
  int64_t c_stride = 0;
};

// Device pointers, aligned to 16 bytes, scales too. c overlaps no input.
struct GemmFp8Args {
  void* c = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  const void* bias = nullptr;  // [n] bf16, if the shape has one.
  float scale = 1.0f;
  void* workspace = nullptr;  // workspace_bytes(), aligned to 256.
};

// As GemmBf16Plan; algorithms are cuBLASLt's. Unavailable below compute
// capability 8.9, which has no fp8.
class GemmFp8Plan {
 public:
  static absl::StatusOr<GemmFp8Plan> Create(const GemmFp8Shape& shape,
                                            const GemmBf16Options& options);
  GemmFp8Plan(GemmFp8Plan&&) noexcept;
  GemmFp8Plan& operator=(GemmFp8Plan&&) noexcept;
  ~GemmFp8Plan();

  const GemmFp8Shape& shape() const;
  const GemmAlgorithm& algorithm() const;
  int64_t workspace_bytes() const;
  absl::Status Run(const GemmFp8Args& args, cudaStream_t stream) const;

 private:
  struct Impl;
  explicit GemmFp8Plan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_GEMM_FP8_H_
