// wgmma of e4m3 operands with fp32 accumulators. The accumulator lies in
// registers as wgmma.cuh says.
//
// Both operands are K-major, since the instruction transposes no 8-bit
// elements. Let a 64 x 32 first operand be in registers. Thread t (warp w = t /
// 32, lane l = t % 32) holds in byte e of a[r] the element of row 16 w + l / 4
// + 8 (r % 2) and column 16 (r / 2) + 4 (l % 4) + e. An accumulator's columns
// come in pairs instead. So PackFp8Operand() of 32 of them gives the operand
// with its columns in another order, which the other operand's rows must
// follow.
//
// Products are summed with about 14 bits, not with the 24 of fp32.

#ifndef MILLRACE_KERNELS_CUDA_WGMMA_FP8_CUH_
#define MILLRACE_KERNELS_CUDA_WGMMA_FP8_CUH_

#include <cstdint>

namespace millrace::hopper {

// Four floats as e4m3, rounded to nearest even and clipped to 448; a in the
// lowest byte.
__device__ __forceinline__ uint32_t PackFp8(float a, float b, float c,
                                            float d) {
  uint32_t packed;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}\n"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

// 32 columns of an accumulator, d[16 k ... 16 k + 15], as the first operand of
// a product over 32: of each 16 columns, position 4 c + e holds column
// 2 c + e % 2 + 8 (e / 2).
template <int kSize>
__device__ __forceinline__ void PackFp8Operand(const float (&d)[kSize], int k,
                                               uint32_t (&a)[4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int i = 16 * k + r / 2 * 8 + r % 2 * 2;
    a[r] = PackFp8(d[i], d[i + 1], d[i + 4], d[i + 5]);
  }
}

// Describes an e4m3 tile of kRowBytes = 64 or 128 bytes a row in shared memory,
// with a swizzle as wide as a row, as the copy engine writes it; the tile
// starts at a multiple of 8 rows. The next k32 is 32 bytes further.
template <int kRowBytes>
__device__ __forceinline__ uint64_t Fp8RowsDescriptor(uint32_t shared_address) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  constexpr uint64_t kSwizzle = uint64_t{kRowBytes == 128 ? 1 : 2} << 62;
  constexpr uint64_t kEightRows = uint64_t{8 * kRowBytes >> 4} << 32;
  return kSwizzle | kEightRows | ((shared_address & 0x3FFFF) >> 4);
}

// Describes [n / 8][2][8][16] bytes without swizzle: a k32 step as n / 8 groups
// of eight rows, of each its first and its last 16 columns. Nothing but a plain
// copy of contiguous bytes is needed to bring it.
__device__ __forceinline__ uint64_t
Fp8PackedDescriptor(uint32_t shared_address) {
  constexpr uint64_t kColumnStride = uint64_t{128 >> 4} << 16;
  constexpr uint64_t kRowGroupStride = uint64_t{256 >> 4} << 32;
  return kColumnStride | kRowGroupStride | ((shared_address & 0x3FFFF) >> 4);
}

// The same layout `num_bytes` further. The address is the lower half's and
// never carries into the upper one.
__device__ __forceinline__ uint64_t AdvanceDescriptor(uint64_t descriptor,
                                                      uint32_t num_bytes) {
  return (descriptor & ~uint64_t{0xFFFFFFFF}) |
         (static_cast<uint32_t>(descriptor) + (num_bytes >> 4));
}

// d[64, n] += a[64, 32] b[32, n]; d = a b unless `accumulate`. Asynchronous, as
// the products in wgmma.cuh.
// clang-format off
#define MILLRACE_D8(i)                                                        \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]),           \
  "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

// Both operands in shared memory, given by descriptors.
__device__ __forceinline__ void MultiplyFp8N96(
    float (&d)[48], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "%48, %49, p, 1, 1;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ __forceinline__ void MultiplyFp8N128(
    float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40), MILLRACE_D8(48), MILLRACE_D8(56)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ __forceinline__ void MultiplyFp8N192(
    float (&d)[96], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "%96, %97, p, 1, 1;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40), MILLRACE_D8(48), MILLRACE_D8(56),
          MILLRACE_D8(64), MILLRACE_D8(72), MILLRACE_D8(80), MILLRACE_D8(88)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// The first operand in registers.
__device__ __forceinline__ void MultiplyFp8N64(
    float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
          "r"(static_cast<int>(accumulate)));
}

__device__ __forceinline__ void MultiplyFp8N128(
    float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40), MILLRACE_D8(48), MILLRACE_D8(56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
          "r"(static_cast<int>(accumulate)));
}

#undef MILLRACE_D8
// clang-format on

// The same by a template argument.
template <int kN>
__device__ __forceinline__ void MultiplySharedFp8(float (&d)[kN / 2],
                                                  uint64_t a, uint64_t b,
                                                  bool accumulate) {
  static_assert(kN == 96 || kN == 128 || kN == 192,
                "add the instruction of this width");
  if constexpr (kN == 96) {
    MultiplyFp8N96(d, a, b, accumulate);
  } else if constexpr (kN == 128) {
    MultiplyFp8N128(d, a, b, accumulate);
  } else {
    MultiplyFp8N192(d, a, b, accumulate);
  }
}

template <int kN>
__device__ __forceinline__ void MultiplyRegistersFp8(float (&d)[kN / 2],
                                                     const uint32_t (&a)[4],
                                                     uint64_t b,
                                                     bool accumulate) {
  static_assert(kN == 64 || kN == 128, "add the instruction of this width");
  if constexpr (kN == 64) {
    MultiplyFp8N64(d, a, b, accumulate);
  } else {
    MultiplyFp8N128(d, a, b, accumulate);
  }
}

}  // namespace millrace::hopper

#endif  // MILLRACE_KERNELS_CUDA_WGMMA_FP8_CUH_
