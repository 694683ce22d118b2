// GEMM of e4m3 tensors with scales of their own for blocks of 128 along k
// (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.2):
//   c[m, n] (+)= sum over blocks of a_scale[block, m] *
//                b_scale[n / 128, block] * (a[m, block] b[n, block]^T).
// The scales of b may be stored [block, n / 128] instead, as a weight's are
// that is multiplied by transposed, or be of single rows, [block, n], as in the
// product for a weight's gradient.
//
// Hopper's tensor cores sum fp8 products with some 14 bits. Here they do so
// within a block of 128 only; blocks are scaled and summed in fp32.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_FP8_BLOCK_H_
#define MILLRACE_KERNELS_GEMM_GEMM_FP8_BLOCK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

inline constexpr int64_t kFp8Block = 128;

// Which rows of b share a scale, and how scales are stored.
enum class Fp8ScalesOfB : uint8_t {
  kSquares,        // [ceil(n / 128), k / 128]
  kTurnedSquares,  // [k / 128, ceil(n / 128)]
  // [k / 128, n], its last row b_scale_stride long as well; with fp32_output
  // only.
  kRows,
};

// Row-major, strides in elements. A scale is what one unit of the stored values
// means.
struct GemmFp8BlockArgs {
  void* c;        // [m, n] bf16, or fp32 where `fp32_output`.
  const void* a;  // [m, k] e4m3
  const void* b;  // [n, k] e4m3
  // [k / 128, m], so that a tile reads the scales of its rows side by side; its
  // last row is a_scale_stride long as well.
  const float* a_scale;
  const float* b_scale;  // Stored as scales_of_b says.
  int64_t m, n, k;       // At least one each; k is a multiple of 128.
  int64_t a_stride, b_stride, c_stride;
  int64_t a_scale_stride, b_scale_stride;
  bool fp32_output = false;
  bool accumulate = false;  // With fp32_output only.
  Fp8ScalesOfB scales_of_b = Fp8ScalesOfB::kSquares;
};

// Device pointers at multiples of 16 bytes, but for scales of squares; a_stride
// and b_stride are multiples of 16, c_stride of 16 bytes, strides of scales of
// rows of four. c overlaps no input.
// Enqueues on `stream`, allocates nothing; equal inputs give equal bits.
// `num_multiprocessors` is how many it may use, zero: all. InvalidArgument
// names what cannot be, Unavailable a device that is not a Hopper.
absl::Status LaunchGemmFp8BlockSm90(const GemmFp8BlockArgs& args,
                                    int num_multiprocessors,
                                    cudaStream_t stream);

// The meaning in plain loops, on host pointers. All matrices are fp32 here: a
// and b hold the values of the e4m3 numbers.
void GemmFp8BlockReference(const GemmFp8BlockArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_GEMM_FP8_BLOCK_H_
