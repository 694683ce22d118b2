// Flat runs: AdamW, add and squared norm. Bound by memory bandwidth.

#ifndef MILLRACE_KERNELS_CPU_OPTIMIZER_LOOPS_H_
#define MILLRACE_KERNELS_CPU_OPTIMIZER_LOOPS_H_

#include "kernels/cpu/vector.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/pointwise/elementwise.h"

namespace millrace {
namespace {

// By repeated squaring: the bias corrections need 1 - beta^step to full double
// precision, without the C library's pow (see loops_table.h).
inline double Power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

// Moments in fp32. Constants are folded in double and rounded once.
void AdamWLoop(const AdamWArgs& args, int64_t begin, int64_t end) {
  const double correction1 = 1.0 - Power(args.beta1, args.step);
  const double correction2 = 1.0 - Power(args.beta2, args.step);
  const float keep =
      static_cast<float>(1.0 - args.learning_rate * args.weight_decay);
  const float beta1 = static_cast<float>(args.beta1);
  const float beta2 = static_cast<float>(args.beta2);
  const float rest1 = static_cast<float>(1.0 - args.beta1);
  const float rest2 = static_cast<float>(1.0 - args.beta2);
  const float step_size = static_cast<float>(args.learning_rate / correction1);
  const float root_factor =
      static_cast<float>(1.0 / __builtin_sqrt(correction2));
  const float epsilon = static_cast<float>(args.epsilon);
  const float gradient_scale = static_cast<float>(args.gradient_scale);
  float* const exp_avg = static_cast<float*>(args.exp_avg);
  float* const exp_avg_sq = static_cast<float*>(args.exp_avg_sq);
  ForEachVector(begin, end, [&](const auto& load, const auto& store) {
    const Floats g = load(args.gradients) * gradient_scale;
    const Floats m = load(exp_avg) * beta1 + g * rest1;
    const Floats v = load(exp_avg_sq) * beta2 + g * g * rest2;
    const Floats denominator = SquareRoot(v) * root_factor + epsilon;
    store(exp_avg, m);
    store(exp_avg_sq, v);
    store(args.parameters,
          load(args.parameters) * keep - m * step_size / denominator);
  });
}

void AddLoop(const AddArgs& args, int64_t begin, int64_t end) {
  ForEachVector(begin, end, [&](const auto& load, const auto& store) {
    store(args.out, load(args.a) + load(args.b));
  });
}

// Sixteen sums in double whatever the vector width, so that the order of
// additions, and with it every bit, is the same on every processor.
double SquaredNormLoop(const float* x, int64_t num_elements) {
  constexpr int kHalf = 8;
  using Doubles = double __attribute__((vector_size(8 * kHalf)));
  using HalfFloats =
      float __attribute__((vector_size(4 * kHalf), aligned(4), may_alias));
  Doubles sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * kHalf <= num_elements; i += 2 * kHalf) {
    for (int half = 0; half < 2; ++half) {
      const Doubles v = __builtin_convertvector(
          *reinterpret_cast<const HalfFloats*>(x + i + half * kHalf), Doubles);
      sums[half] += v * v;
    }
  }
  for (int lane = 0; i < num_elements; ++i, ++lane) {
    const double v = x[i];
    sums[lane / kHalf][lane % kHalf] += v * v;
  }
  double total = 0.0;
  for (int lane = 0; lane < 2 * kHalf; ++lane) {
    total += sums[lane / kHalf][lane % kHalf];
  }
  return total;
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_OPTIMIZER_LOOPS_H_
