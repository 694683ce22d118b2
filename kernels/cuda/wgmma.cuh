// wgmma: the warpgroup-wide matrix multiply-accumulate of Hopper, bf16 in and
// fp32 out, for tiles that the copy engine wrote with 128-byte swizzle.
//
// Thread t of the warpgroup (warp w = t / 32, lane l = t % 32) holds, of a 64 x
// n accumulator, in d[4 j + e] the element of row 16 w + l / 4 + 8 (e / 2) and
// column 8 j + 2 (l % 4) + e % 2. Packed in pairs, d[8 k ... 8 k + 7] is the A
// operand of the next product's k-th 16 columns, without any exchange of lanes.

#ifndef MILLRACE_KERNELS_CUDA_WGMMA_CUH_
#define MILLRACE_KERNELS_CUDA_WGMMA_CUH_

#include <cstdint>

namespace millrace::hopper {

// Describes a bf16 tile in shared memory with 128-byte swizzle, as the copy
// engine writes it: rows of 64 elements, 8 rows an atom of 1024 bytes.
// K-major (the 64 elements run along k): the next k16 is 32 bytes further.
// MN-major (they run along m or n): the next k16 is 2048 bytes further, and
// `group_stride_bytes` leads from one group of 64 columns to the next.
__device__ __forceinline__ uint64_t
SwizzledDescriptor(uint32_t shared_address, uint32_t group_stride_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kAtomStride = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kAtomStride | (uint64_t{group_stride_bytes >> 4} << 16) |
         ((shared_address & 0x3FFFF) >> 4);
}

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps the compiler from moving accesses to registers that an asynchronous
// wgmma reads or writes across this point.
template <typename T, int kSize>
__device__ __forceinline__ void RegisterFence(T (&registers)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if constexpr (sizeof(T) == 4 && !__is_same(T, float)) {
      asm volatile("" : "+r"(registers[i])::"memory");
    } else {
      asm volatile("" : "+f"(registers[i])::"memory");
    }
  }
}
// d[64, n] += a[64, 16] b[16, n]; d = a b unless `accumulate`. Asynchronous:
// WgmmaFence() before the first of a batch, WgmmaCommit() after it, and no
// access to d, or to registers of a, before WgmmaWait(). An operand that is not
// transposed is K-major.
// clang-format off
#define MILLRACE_D8(i)                                                        \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]),           \
  "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

// Both operands in shared memory, given by descriptors.
template <bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void MultiplyN64(
    float (&d)[32], uint64_t a, uint64_t b,
    bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, %35, %36;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24)
        : "l"(a), "l"(b),
          "r"(static_cast<int>(accumulate)), "n"(kTransposeA ? 1 : 0),
          "n"(kTransposeB ? 1 : 0));
}

template <bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void MultiplyN96(
    float (&d)[48], uint64_t a, uint64_t b,
    bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "%48, %49, p, 1, 1, %51, %52;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40)
        : "l"(a), "l"(b),
          "r"(static_cast<int>(accumulate)), "n"(kTransposeA ? 1 : 0),
          "n"(kTransposeB ? 1 : 0));
}

template <bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void MultiplyN128(
    float (&d)[64], uint64_t a, uint64_t b,
    bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, %67, %68;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40), MILLRACE_D8(48), MILLRACE_D8(56)
        : "l"(a), "l"(b),
          "r"(static_cast<int>(accumulate)), "n"(kTransposeA ? 1 : 0),
          "n"(kTransposeB ? 1 : 0));
}

// The first operand in registers.
template <bool kTransposeB>
__device__ __forceinline__ void MultiplyN64(
    float (&d)[32], const uint32_t (&a)[4], uint64_t b,
    bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
          "r"(static_cast<int>(accumulate)), "n"(kTransposeB ? 1 : 0));
}

template <bool kTransposeB>
__device__ __forceinline__ void MultiplyN96(
    float (&d)[48], const uint32_t (&a)[4], uint64_t b,
    bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "{%48, %49, %50, %51}, %52, p, 1, 1, %54;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
          "r"(static_cast<int>(accumulate)), "n"(kTransposeB ? 1 : 0));
}

template <bool kTransposeB>
__device__ __forceinline__ void MultiplyN128(
    float (&d)[64], const uint32_t (&a)[4], uint64_t b,
    bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40), MILLRACE_D8(48), MILLRACE_D8(56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
          "r"(static_cast<int>(accumulate)), "n"(kTransposeB ? 1 : 0));
}

#undef MILLRACE_D8
// clang-format on

// The same by a template argument.
template <int kN, bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void MultiplyShared(float (&d)[kN / 2], uint64_t a,
                                               uint64_t b, bool accumulate) {
  static_assert(kN == 64 || kN == 96 || kN == 128,
                "add the instruction of this width");
  if constexpr (kN == 64) {
    MultiplyN64<kTransposeA, kTransposeB>(d, a, b, accumulate);
  } else if constexpr (kN == 96) {
    MultiplyN96<kTransposeA, kTransposeB>(d, a, b, accumulate);
  } else {
    MultiplyN128<kTransposeA, kTransposeB>(d, a, b, accumulate);
  }
}

template <int kN, bool kTransposeB>
__device__ __forceinline__ void MultiplyRegisters(float (&d)[kN / 2],
                                                  const uint32_t (&a)[4],
                                                  uint64_t b, bool accumulate) {
  static_assert(kN == 64 || kN == 96 || kN == 128,
                "add the instruction of this width");
  if constexpr (kN == 64) {
    MultiplyN64<kTransposeB>(d, a, b, accumulate);
  } else if constexpr (kN == 96) {
    MultiplyN96<kTransposeB>(d, a, b, accumulate);
  } else {
    MultiplyN128<kTransposeB>(d, a, b, accumulate);
  }
}

}  // namespace millrace::hopper

#endif  // MILLRACE_KERNELS_CUDA_WGMMA_CUH_
