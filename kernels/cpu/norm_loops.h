// RMSNorm and LayerNorm: row by row, two passes over a row (LayerNorm: three),
// which stays in the first-level cache; bound by the memory traffic of the
// first.

#ifndef MILLRACE_KERNELS_CPU_NORM_LOOPS_H_
#define MILLRACE_KERNELS_CPU_NORM_LOOPS_H_

#include "kernels/cpu/vector.h"
#include "kernels/norm/layernorm.h"
#include "kernels/norm/rmsnorm.h"

namespace millrace {
namespace {

inline float ReciprocalNorm(float sum_of_squares, int64_t hidden,
                            float epsilon) {
  return 1.0f /
         __builtin_sqrtf(sum_of_squares / static_cast<float>(hidden) + epsilon);
}

// The number that a norm adds to its weights.
inline float WeightOffset(bool adds_one) { return adds_one ? 1.0f : 0.0f; }

// y = x * factor * (weight + offset) of one row.
inline void ScaleRow(float* y, const float* x, const float* weight,
                     float offset, int64_t hidden, float factor) {
  ForEachVector(0, hidden, [=](const auto& load, const auto& store) {
    store(y, load(x) * factor * (load(weight) + offset));
  });
}

void RmsNormForwardLoop(const RmsNormForwardArgs& args, int64_t begin,
                        int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* x = args.x + t * args.hidden;
    Floats sum = {};
    ForEachVector(0, args.hidden, [&](const auto& load, const auto&) {
      const Floats v = load(x);
      sum += v * v;
    });
    const float rstd =
        ReciprocalNorm(SumOfLanes(sum), args.hidden, args.epsilon);
    ScaleRow(args.y + t * args.hidden, x, args.weight,
             WeightOffset(args.adds_one), args.hidden, rstd);
    args.rstd[t] = rstd;
  }
}

void ResidualRmsNormForwardLoop(const ResidualRmsNormForwardArgs& args,
                                int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* x = args.x + t * args.hidden;
    const float* delta = args.delta + t * args.hidden;
    float* residual = args.residual + t * args.hidden;
    Floats sum = {};
    ForEachVector(0, args.hidden, [&](const auto& load, const auto& store) {
      const Floats v = load(x) + load(delta);
      store(residual, v);
      sum += v * v;
    });
    const float rstd =
        ReciprocalNorm(SumOfLanes(sum), args.hidden, args.epsilon);
    ScaleRow(args.y + t * args.hidden, residual, args.weight,
             WeightOffset(args.adds_one), args.hidden, rstd);
    args.rstd[t] = rstd;
  }
}

void RmsNormInputGradientLoop(const RmsNormBackwardArgs& args, int64_t begin,
                              int64_t end) {
  const float* weight = args.weight;
  const float offset = WeightOffset(args.adds_one);
  for (int64_t t = begin; t < end; ++t) {
    const float* d_y = args.d_y + t * args.hidden;
    const float* x = args.x + t * args.hidden;
    float* d_x = args.d_x + t * args.hidden;
    Floats sum = {};
    ForEachVector(0, args.hidden, [&](const auto& load, const auto&) {
      sum += load(d_y) * (load(weight) + offset) * load(x);
    });
    const float rstd = args.rstd[t];
    const float x_factor =
        SumOfLanes(sum) * rstd * rstd * rstd / static_cast<float>(args.hidden);
    if (args.d_residual == nullptr) {
      ForEachVector(0, args.hidden, [=](const auto& load, const auto& store) {
        store(d_x,
              load(d_y) * (load(weight) + offset) * rstd - load(x) * x_factor);
      });
    } else {
      const float* d_residual = args.d_residual + t * args.hidden;
      ForEachVector(0, args.hidden, [=](const auto& load, const auto& store) {
        store(d_x, load(d_y) * (load(weight) + offset) * rstd -
                       load(x) * x_factor + load(d_residual));
      });
    }
  }
}

// Four vectors of columns at a time run down all tokens in registers, in token
// order, so a column's sum does not depend on how columns are dealt out.
template <int kVectors>
inline int64_t WeightGradientColumns(const RmsNormBackwardArgs& args,
                                     int64_t begin, int64_t end) {
  int64_t h = begin;
  for (; h + kVectors * kLanes <= end; h += kVectors * kLanes) {
    Floats sums[kVectors] = {};
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      const float* d_y = args.d_y + t * args.hidden + h;
      const float* x = args.x + t * args.hidden + h;
      const float rstd = args.rstd[t];
      for (int v = 0; v < kVectors; ++v) {
        sums[v] += Load(d_y + v * kLanes) * (Load(x + v * kLanes) * rstd);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      float* d_weight = args.d_weight + h + v * kLanes;
      Store(d_weight, args.accumulate ? Load(d_weight) + sums[v] : sums[v]);
    }
  }
  return h;
}

void RmsNormWeightGradientLoop(const RmsNormBackwardArgs& args, int64_t begin,
                               int64_t end) {
  int64_t h = WeightGradientColumns<4>(args, begin, end);
  h = WeightGradientColumns<1>(args, h, end);
  if (h == end) return;
  const int64_t rest = end - h;
  Floats sum = {};
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const int64_t offset = t * args.hidden + h;
    sum += LoadPartial(args.d_y + offset, rest) *
           (LoadPartial(args.x + offset, rest) * args.rstd[t]);
  }
  if (args.accumulate) sum += LoadPartial(args.d_weight + h, rest);
  StorePartial(args.d_weight + h, sum, rest);
}

// The variance is taken from the mean, not from a sum of squares, which loses
// digits where the mean is large.
void LayerNormForwardLoop(const LayerNormForwardArgs& args, int64_t begin,
                          int64_t end) {
  const int64_t hidden = args.hidden;
  const float* weight = args.weight;
  const float* bias = args.bias;
  for (int64_t t = begin; t < end; ++t) {
    const float* x = args.x + t * hidden;
    float* y = args.y + t * hidden;
    Floats sum = {};
    ForEachVector(0, hidden,
                  [&](const auto& load, const auto&) { sum += load(x); });
    const float mean = SumOfLanes(sum) / static_cast<float>(hidden);
    Floats squares = {};
    int64_t h = 0;
    for (; h + kLanes <= hidden; h += kLanes) {
      const Floats v = Load(x + h) - mean;
      squares += v * v;
    }
    for (int lane = 0; h < hidden; ++h, ++lane) {
      squares[lane] += (x[h] - mean) * (x[h] - mean);
    }
    const float rstd =
        ReciprocalNorm(SumOfLanes(squares), hidden, args.epsilon);
    ForEachVector(0, hidden, [=](const auto& load, const auto& store) {
      store(y, (load(x) - mean) * rstd * load(weight) + load(bias));
    });
    args.mean[t] = mean;
    args.rstd[t] = rstd;
  }
}

void LayerNormInputGradientLoop(const LayerNormBackwardArgs& args,
                                int64_t begin, int64_t end) {
  const int64_t hidden = args.hidden;
  const float* weight = args.weight;
  for (int64_t t = begin; t < end; ++t) {
    const float* d_y = args.d_y + t * hidden;
    const float* x = args.x + t * hidden;
    float* d_x = args.d_x + t * hidden;
    const float* d_residual =
        args.d_residual == nullptr ? nullptr : args.d_residual + t * hidden;
    const float mean = args.mean[t];
    const float rstd = args.rstd[t];
    Floats sum = {};
    Floats product = {};
    // Lanes beyond the row add nothing: their weight is zero.
    ForEachVector(0, hidden, [&](const auto& load, const auto&) {
      const Floats g = load(d_y) * load(weight);
      sum += g;
      product += g * ((load(x) - mean) * rstd);
    });
    const float of_g = SumOfLanes(sum) / static_cast<float>(hidden);
    const float of_product = SumOfLanes(product) / static_cast<float>(hidden);
    ForEachVector(0, hidden, [=](const auto& load, const auto& store) {
      Floats gradient = rstd * (load(d_y) * load(weight) - of_g -
                                (load(x) - mean) * rstd * of_product);
      if (d_residual != nullptr) gradient += load(d_residual);
      store(d_x, gradient);
    });
  }
}

// A vector of columns at a time runs down all tokens, in token order.
void LayerNormWeightGradientsLoop(const LayerNormBackwardArgs& args,
                                  int64_t begin, int64_t end) {
  float* d_weight = args.d_weight;
  float* d_bias = args.d_bias;
  ForEachVector(begin, end, [&](const auto& load, const auto& store) {
    Floats of_weight = {};
    Floats of_bias = {};
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      const Floats d_y = load(args.d_y + t * args.hidden);
      const Floats x = load(args.x + t * args.hidden);
      of_weight += d_y * ((x - args.mean[t]) * args.rstd[t]);
      of_bias += d_y;
    }
    if (args.accumulate) {
      of_weight += load(d_weight);
      of_bias += load(d_bias);
    }
    store(d_weight, of_weight);
    store(d_bias, of_bias);
  });
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_NORM_LOOPS_H_
