// wgmma for wide tiles: 192 and 256 columns. The notes of wgmma.cuh hold here
// too. Each instruction reads the rows of its first operand once for more
// columns, which helps a GEMM that shared-memory bandwidth limits.

#ifndef MILLRACE_KERNELS_CUDA_WGMMA_WIDE_CUH_
#define MILLRACE_KERNELS_CUDA_WGMMA_WIDE_CUH_

#include <cstdint>

#include "kernels/cuda/wgmma.cuh"

namespace millrace::hopper {

// clang-format off
#define MILLRACE_D8(i)                                                        \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]),           \
  "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

template <bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void MultiplyN192(
    float (&d)[96], uint64_t a, uint64_t b,
    bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "%96, %97, p, 1, 1, %99, %100;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40), MILLRACE_D8(48), MILLRACE_D8(56),
          MILLRACE_D8(64), MILLRACE_D8(72), MILLRACE_D8(80), MILLRACE_D8(88)
        : "l"(a), "l"(b),
          "r"(static_cast<int>(accumulate)), "n"(kTransposeA ? 1 : 0),
          "n"(kTransposeB ? 1 : 0));
}

template <bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void MultiplyN256(
    float (&d)[128], uint64_t a, uint64_t b,
    bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, %131, %132;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40), MILLRACE_D8(48), MILLRACE_D8(56),
          MILLRACE_D8(64), MILLRACE_D8(72), MILLRACE_D8(80), MILLRACE_D8(88),
          MILLRACE_D8(96), MILLRACE_D8(104), MILLRACE_D8(112), MILLRACE_D8(120)
        : "l"(a), "l"(b),
          "r"(static_cast<int>(accumulate)), "n"(kTransposeA ? 1 : 0),
          "n"(kTransposeB ? 1 : 0));
}

#undef MILLRACE_D8
// clang-format on

// Any width from 64 on, by a template argument.
template <int kN, bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void MultiplyWide(float (&d)[kN / 2], uint64_t a,
                                             uint64_t b, bool accumulate) {
  if constexpr (kN == 192) {
    MultiplyN192<kTransposeA, kTransposeB>(d, a, b, accumulate);
  } else if constexpr (kN == 256) {
    MultiplyN256<kTransposeA, kTransposeB>(d, a, b, accumulate);
  } else {
    MultiplyShared<kN, kTransposeA, kTransposeB>(d, a, b, accumulate);
  }
}

}  // namespace millrace::hopper

#endif  // MILLRACE_KERNELS_CUDA_WGMMA_WIDE_CUH_
