// Transposes bytes in registers, for kernels that turn matrices of 8-bit
// floats.

#ifndef MILLRACE_KERNELS_CUDA_TRANSPOSE_BYTES_CUH_
#define MILLRACE_KERNELS_CUDA_TRANSPOSE_BYTES_CUH_

#include <cstdint>

namespace millrace::gpu {

// Transposes 4 x 4 bytes; a word is a row, its lowest byte first.
__device__ __forceinline__ void TransposeBytes(uint32_t (&rows)[4]) {
  const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140);
  const uint32_t high01 = __byte_perm(rows[0], rows[1], 0x7362);
  const uint32_t low23 = __byte_perm(rows[2], rows[3], 0x5140);
  const uint32_t high23 = __byte_perm(rows[2], rows[3], 0x7362);
  rows[0] = __byte_perm(low01, low23, 0x5410);
  rows[1] = __byte_perm(low01, low23, 0x7632);
  rows[2] = __byte_perm(high01, high23, 0x5410);
  rows[3] = __byte_perm(high01, high23, 0x7632);
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_TRANSPOSE_BYTES_CUH_
