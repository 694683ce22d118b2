#include <cmath>

#include "kernels/norm/layernorm.h"

namespace millrace {

void LayerNormForwardReference(const LayerNormForwardArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const float* x = args.x + t * args.hidden;
    float* y = args.y + t * args.hidden;
    double mean = 0.0;
    for (int64_t h = 0; h < args.hidden; ++h) mean += double{x[h]};
    mean /= args.hidden;
    double variance = 0.0;
    for (int64_t h = 0; h < args.hidden; ++h) {
      variance += (x[h] - mean) * (x[h] - mean);
    }
    variance /= args.hidden;
    const double rstd = 1.0 / std::sqrt(variance + args.epsilon);
    for (int64_t h = 0; h < args.hidden; ++h) {
      y[h] = static_cast<float>((x[h] - mean) * rstd * args.weight[h] +
                                args.bias[h]);
    }
    args.mean[t] = static_cast<float>(mean);
    args.rstd[t] = static_cast<float>(rstd);
  }
}

void ResidualLayerNormForwardReference(
    const ResidualLayerNormForwardArgs& args) {
  for (int64_t i = 0; i < args.num_tokens * args.hidden; ++i) {
    args.residual[i] = args.x[i] + args.delta[i];
  }
  LayerNormForwardReference({.y = args.y,
                             .mean = args.mean,
                             .rstd = args.rstd,
                             .x = args.residual,
                             .weight = args.weight,
                             .bias = args.bias,
                             .num_tokens = args.num_tokens,
                             .hidden = args.hidden,
                             .epsilon = args.epsilon});
}

void LayerNormBackwardReference(const LayerNormBackwardArgs& args) {
  const auto normalised = [&](int64_t t, int64_t h) {
    return (double{args.x[t * args.hidden + h]} - args.mean[t]) * args.rstd[t];
  };
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const int64_t row = t * args.hidden;
    double mean_g = 0.0;
    double mean_gn = 0.0;
    for (int64_t h = 0; h < args.hidden; ++h) {
      const double g = double{args.d_y[row + h]} * args.weight[h];
      mean_g += g / args.hidden;
      mean_gn += g * normalised(t, h) / args.hidden;
    }
    for (int64_t h = 0; h < args.hidden; ++h) {
      const double g = double{args.d_y[row + h]} * args.weight[h];
      const double residual =
          args.d_residual == nullptr ? 0.0 : args.d_residual[row + h];
      args.d_x[row + h] = static_cast<float>(
          args.rstd[t] * (g - mean_g - normalised(t, h) * mean_gn) + residual);
    }
  }
  for (int64_t h = 0; h < args.hidden; ++h) {
    double d_weight = args.accumulate ? args.d_weight[h] : 0.0;
    double d_bias = args.accumulate ? args.d_bias[h] : 0.0;
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      d_weight += args.d_y[t * args.hidden + h] * normalised(t, h);
      d_bias += args.d_y[t * args.hidden + h];
    }
    args.d_weight[h] = static_cast<float>(d_weight);
    args.d_bias[h] = static_cast<float>(d_bias);
  }
}

}  // namespace millrace
