// A rectangle of a matrix product, as kernels/cpu/gemm.cc hands it to one
// thread.

#ifndef MILLRACE_KERNELS_CPU_GEMM_RANGE_H_
#define MILLRACE_KERNELS_CPU_GEMM_RANGE_H_

#include <cstdint>

namespace millrace {

// The steps of the depth that one chain of additions has. They decide the bits
// of every product, so they are the same for all sizes and levels.
inline constexpr int64_t kGemmDepth = 256;

// Copied blocks: 384 columns of b are 384 KiB and 48 rows of a 48 KiB, both
// for the second-level cache. Half or twice as many changed the time by less
// than 2 %.
inline constexpr int64_t kGemmBlockRows = 48;
inline constexpr int64_t kGemmBlockCols = 384;

// Rows and columns at which a product is cut for threads: whole tiles of every
// level.
inline constexpr int64_t kGemmRowUnit = 8;
inline constexpr int64_t kGemmColUnit = 48;

inline constexpr int64_t kGemmWorkspaceFloats =
    kGemmDepth * (kGemmBlockRows + kGemmBlockCols);

// c[i, j] (+)= sum over p of a[i, p] b[p, j], for i < rows and j < cols.
struct GemmRange {
  float* c;          // [i, j] at i * c_stride + j.
  const float* a;    // [i, p] at i * a_row + p * a_step; one of them is 1.
  const float* b;    // [p, j] at p * b_step + j * b_col; one of them is 1.
  float* workspace;  // kGemmWorkspaceFloats of this thread's own.
  int64_t c_stride;
  int64_t a_row;
  int64_t a_step;
  int64_t b_step;
  int64_t b_col;
  int64_t rows;
  int64_t cols;
  int64_t depth;
  bool accumulate;
};

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_GEMM_RANGE_H_
