// wgmma with the first operand in registers for heads of 256 columns, which
// attention needs beyond wgmma.cuh; what holds there holds here.

#ifndef MILLRACE_KERNELS_CUDA_WGMMA_ATTENTION_CUH_
#define MILLRACE_KERNELS_CUDA_WGMMA_ATTENTION_CUH_

#include <cstdint>

#include "kernels/cuda/wgmma.cuh"

namespace millrace::hopper {

// clang-format off
#define MILLRACE_D8(i)                                                        \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]),           \
  "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

template <bool kTransposeB>
__device__ __forceinline__ void MultiplyN256(
    float (&d)[128], const uint32_t (&a)[4], uint64_t b,
    bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, p, 1, 1, %134;\n}\n"
        : MILLRACE_D8(0), MILLRACE_D8(8), MILLRACE_D8(16), MILLRACE_D8(24),
          MILLRACE_D8(32), MILLRACE_D8(40), MILLRACE_D8(48), MILLRACE_D8(56),
          MILLRACE_D8(64), MILLRACE_D8(72), MILLRACE_D8(80), MILLRACE_D8(88),
          MILLRACE_D8(96), MILLRACE_D8(104), MILLRACE_D8(112), MILLRACE_D8(120)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
          "r"(static_cast<int>(accumulate)), "n"(kTransposeB ? 1 : 0));
}

#undef MILLRACE_D8
// clang-format on

// Any width of head by a template argument; b is not K-major.
template <int kN>
__device__ __forceinline__ void MultiplyValues(float (&d)[kN / 2],
                                               const uint32_t (&a)[4],
                                               uint64_t b, bool accumulate) {
  if constexpr (kN == 256) {
    MultiplyN256<true>(d, a, b, accumulate);
  } else {
    MultiplyRegisters<kN, true>(d, a, b, accumulate);
  }
}

}  // namespace millrace::hopper

#endif  // MILLRACE_KERNELS_CUDA_WGMMA_ATTENTION_CUH_
