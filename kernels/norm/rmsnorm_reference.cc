#include <cmath>

#include "kernels/norm/rmsnorm.h"

namespace millrace {
namespace {

template <typename Args>
double FactorOf(const Args& args, int64_t h) {
  return (args.adds_one ? 1.0 : 0.0) + args.weight[h];
}

}  // namespace

void RmsNormForwardReference(const RmsNormForwardArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const float* x = args.x + t * args.hidden;
    float* y = args.y + t * args.hidden;
    double sum_of_squares = 0.0;
    for (int64_t h = 0; h < args.hidden; ++h) {
      sum_of_squares += double{x[h]} * x[h];
    }
    const double rstd =
        1.0 / std::sqrt(sum_of_squares / args.hidden + args.epsilon);
    for (int64_t h = 0; h < args.hidden; ++h) {
      y[h] = static_cast<float>(x[h] * rstd * FactorOf(args, h));
    }
    args.rstd[t] = static_cast<float>(rstd);
  }
}

void ResidualRmsNormForwardReference(const ResidualRmsNormForwardArgs& args) {
  for (int64_t i = 0; i < args.num_tokens * args.hidden; ++i) {
    args.residual[i] = args.x[i] + args.delta[i];
  }
  RmsNormForwardReference({.y = args.y,
                           .rstd = args.rstd,
                           .x = args.residual,
                           .weight = args.weight,
                           .num_tokens = args.num_tokens,
                           .hidden = args.hidden,
                           .epsilon = args.epsilon,
                           .adds_one = args.adds_one});
}

void RmsNormBackwardReference(const RmsNormBackwardArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const int64_t row = t * args.hidden;
    const double rstd = args.rstd[t];
    double mean = 0.0;
    for (int64_t h = 0; h < args.hidden; ++h) {
      mean += double{args.d_y[row + h]} * FactorOf(args, h) * args.x[row + h] *
              rstd / args.hidden;
    }
    for (int64_t h = 0; h < args.hidden; ++h) {
      const double g = double{args.d_y[row + h]} * FactorOf(args, h);
      const double residual =
          args.d_residual == nullptr ? 0.0 : args.d_residual[row + h];
      args.d_x[row + h] = static_cast<float>(
          rstd * (g - args.x[row + h] * rstd * mean) + residual);
    }
  }
  for (int64_t h = 0; h < args.hidden; ++h) {
    double sum = args.accumulate ? args.d_weight[h] : 0.0;
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      const int64_t i = t * args.hidden + h;
      sum += double{args.d_y[i]} * args.x[i] * args.rstd[t];
    }
    args.d_weight[h] = static_cast<float>(sum);
  }
}

}  // namespace millrace
