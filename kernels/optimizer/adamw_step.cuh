// What follows from a step's number and learning rate, for AdamW on a GPU.

#ifndef MILLRACE_KERNELS_OPTIMIZER_ADAMW_STEP_CUH_
#define MILLRACE_KERNELS_OPTIMIZER_ADAMW_STEP_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/optimizer/adamw_bf16.h"

namespace millrace::gpu {

// base^exponent by squaring: a few roundings of fp64, on the host as on the
// device.
__host__ __device__ inline double Power(double base, int64_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) power *= base;
    base *= base;
  }
  return power;
}

// The factors that follow from a step's number and learning rate, rounded once.
struct StepFactors {
  uint64_t step;
  float keep, step_size, root_factor;
};
struct Hyperparameters {
  double beta1, beta2, weight_decay;
};
__host__ __device__ inline StepFactors FactorsOf(const AdamWStep& step,
                                                 const Hyperparameters& hyper) {
  const double correction1 = 1.0 - Power(hyper.beta1, step.step);
  const double correction2 = 1.0 - Power(hyper.beta2, step.step);
  return {
      .step = static_cast<uint64_t>(step.step),
      .keep = static_cast<float>(1.0 - step.learning_rate * hyper.weight_decay),
      .step_size = static_cast<float>(step.learning_rate / correction1),
      .root_factor = static_cast<float>(1.0 / sqrt(correction2))};
}

__device__ __forceinline__ float FastSquareRoot(float x) {
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

// Constants that all steps share, rounded once.
struct MomentFactors {
  float beta1, rest1, beta2, rest2;
};
__host__ __device__ inline MomentFactors MomentFactorsOf(double beta1,
                                                         double beta2) {
  return {.beta1 = static_cast<float>(beta1),
          .rest1 = static_cast<float>(1.0 - beta1),
          .beta2 = static_cast<float>(beta2),
          .rest2 = static_cast<float>(1.0 - beta2)};
}
// Both moments of an element after a gradient. Each operation is rounded, so
// that the stored bits are those of a CPU (kernels/cpu/adamw_small_moments.cc).
__device__ __forceinline__ void UpdateMoments(const MomentFactors& factors,
                                              float gradient, float& m,
                                              float& v) {
  m = __fadd_rn(__fmul_rn(m, factors.beta1),
                __fmul_rn(gradient, factors.rest1));
  v = __fadd_rn(__fmul_rn(v, factors.beta2),
                __fmul_rn(__fmul_rn(gradient, gradient), factors.rest2));
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_OPTIMIZER_ADAMW_STEP_CUH_
