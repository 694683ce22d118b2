#include "kernels/norm/layernorm.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

// Goal: the reference's gradients are the derivatives of its forward pass.
// Method: central differences of sum(y d_y) in fp32. Tolerance: y is rounded at
// 6e-8 over a step of 2e-2, beside the third-order term.
TEST(LayerNormTest, GradientIsTheDerivative) {
  RandomFloats random(1);
  constexpr int64_t kTokens = 3, kHidden = 6;
  std::vector<float> x = random(kTokens * kHidden);
  std::vector<float> weight = random(kHidden);
  std::vector<float> bias = random(kHidden);
  const std::vector<float> d_y = random(kTokens * kHidden);
  std::vector<float> y(x.size()), mean(kTokens), rstd(kTokens), d_x(x.size()),
      d_weight(kHidden), d_bias(kHidden);
  const auto objective = [&] {
    LayerNormForwardReference({.y = y.data(),
                               .mean = mean.data(),
                               .rstd = rstd.data(),
                               .x = x.data(),
                               .weight = weight.data(),
                               .bias = bias.data(),
                               .num_tokens = kTokens,
                               .hidden = kHidden,
                               .epsilon = 0.5f});
    double sum = 0.0;
    for (size_t i = 0; i < y.size(); ++i) sum += double{y[i]} * d_y[i];
    return sum;
  };
  objective();
  LayerNormBackwardReference({.d_x = d_x.data(),
                              .d_weight = d_weight.data(),
                              .d_bias = d_bias.data(),
                              .d_y = d_y.data(),
                              .x = x.data(),
                              .mean = mean.data(),
                              .rstd = rstd.data(),
                              .weight = weight.data(),
                              .d_residual = nullptr,
                              .num_tokens = kTokens,
                              .hidden = kHidden,
                              .accumulate = false});
  const auto expect = [&](std::vector<float>& values,
                          const std::vector<float>& gradient) {
    for (size_t i = 0; i < values.size(); ++i) {
      const float kept = values[i];
      values[i] = kept + 0.01f;
      const double above = objective();
      values[i] = kept - 0.01f;
      const double below = objective();
      values[i] = kept;
      EXPECT_NEAR((above - below) / 0.02, gradient[i], 2e-3) << i;
    }
  };
  expect(x, d_x);
  expect(weight, d_weight);
  expect(bias, d_bias);
}

// Goal: a residual is the sum, and its norm that of the sum.
TEST(LayerNormTest, NormalisesTheResidual) {
  RandomFloats random(2);
  constexpr int64_t kTokens = 2, kHidden = 5;
  const std::vector<float> x = random(kTokens * kHidden);
  const std::vector<float> delta = random(kTokens * kHidden);
  const std::vector<float> ones(kHidden, 1.0f), zeros(kHidden, 0.0f);
  std::vector<float> residual = Poisoned(x.size()), y = Poisoned(x.size()),
                     mean = Poisoned(kTokens), rstd = Poisoned(kTokens);
  ResidualLayerNormForwardReference({.residual = residual.data(),
                                     .y = y.data(),
                                     .mean = mean.data(),
                                     .rstd = rstd.data(),
                                     .x = x.data(),
                                     .delta = delta.data(),
                                     .weight = ones.data(),
                                     .bias = zeros.data(),
                                     .num_tokens = kTokens,
                                     .hidden = kHidden,
                                     .epsilon = 0.0f});
  for (int64_t t = 0; t < kTokens; ++t) {
    double sum = 0.0, squares = 0.0;
    for (int64_t i = t * kHidden; i < (t + 1) * kHidden; ++i) {
      EXPECT_FLOAT_EQ(residual[i], x[i] + delta[i]);
      sum += y[i];
      squares += double{y[i]} * y[i];
    }
    EXPECT_NEAR(sum, 0.0, 1e-5);
    EXPECT_NEAR(squares, kHidden, 1e-4);
  }
}

}  // namespace
}  // namespace millrace
