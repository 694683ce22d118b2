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

struct LayerNormShape {
  int64_t num_tokens, hidden;
};
// Around every vector width, and one large enough to be spread over threads.
const std::vector<LayerNormShape> kLayerNormShapes = {
    {1, 1}, {3, 5}, {7, 16}, {2, 33}, {5, 63}, {9, 130}, {300, 257}};

// Goal: both forward kernels mean what the reference says, also where the mean
// is far above the deviation. Tolerance: sums of up to 257 terms in float; a
// mean of 50 costs its digits.
TEST(LayerNormTest, ForwardMatchesReference) {
  RandomFloats random(3);
  for (const LayerNormShape& shape : kLayerNormShapes) {
    for (const float mean_of_x : {0.0f, 50.0f}) {
      SCOPED_TRACE(absl::StrCat(shape.num_tokens, " x ", shape.hidden, " mean ",
                                mean_of_x));
      const int64_t size = shape.num_tokens * shape.hidden;
      std::vector<float> x = random(size, 3.0f);
      for (float& value : x) value += mean_of_x;
      const std::vector<float> delta = random(size);
      const std::vector<float> weight = random(shape.hidden);
      const std::vector<float> bias = random(shape.hidden);
      const auto run = [&](int num_threads, bool adds) {
        std::vector<float> residual = adds ? Poisoned(size) : x,
                           y = Poisoned(size),
                           mean = Poisoned(shape.num_tokens),
                           rstd = Poisoned(shape.num_tokens);
        ResidualLayerNormForwardArgs args = {.residual = residual.data(),
                                             .y = y.data(),
                                             .mean = mean.data(),
                                             .rstd = rstd.data(),
                                             .x = x.data(),
                                             .delta = delta.data(),
                                             .weight = weight.data(),
                                             .bias = bias.data(),
                                             .num_tokens = shape.num_tokens,
                                             .hidden = shape.hidden,
                                             .epsilon = 1e-2f};
        const LayerNormForwardArgs plain = {.y = y.data(),
                                            .mean = mean.data(),
                                            .rstd = rstd.data(),
                                            .x = x.data(),
                                            .weight = weight.data(),
                                            .bias = bias.data(),
                                            .num_tokens = shape.num_tokens,
                                            .hidden = shape.hidden,
                                            .epsilon = 1e-2f};
        if (num_threads == 0) {
          adds ? ResidualLayerNormForwardReference(args)
               : LayerNormForwardReference(plain);
        } else {
          EXPECT_TRUE((adds ? ResidualLayerNormForward(args, num_threads)
                            : LayerNormForward(plain, num_threads))
                          .ok());
        }
        return std::vector<std::vector<float>>{residual, y, mean, rstd};
      };
      for (const bool adds : {false, true}) {
        ExpectKernelMatches(run(0, adds), mean_of_x == 0 ? 2e-6 : 3e-5,
                            [&](int threads) { return run(threads, adds); });
      }
    }
  }
}

// Goal: the backward pass means what its reference says, with and without a
// residual gradient and accumulation. Tolerance: sums over 300 tokens.
TEST(LayerNormTest, BackwardMatchesReference) {
  RandomFloats random(4);
  for (const LayerNormShape& shape : kLayerNormShapes) {
    for (int flags = 0; flags < 4; ++flags) {
      SCOPED_TRACE(absl::StrCat(shape.num_tokens, " x ", shape.hidden,
                                " flags ", flags));
      const int64_t size = shape.num_tokens * shape.hidden;
      const std::vector<float> x = random(size, 3.0f), d_y = random(size),
                               d_residual = random(size),
                               weight = random(shape.hidden),
                               bias = random(shape.hidden);
      const bool accumulate = (flags & 1) != 0;
      const std::vector<float> before =
          accumulate ? random(shape.hidden) : Poisoned(shape.hidden);
      std::vector<float> y(size), mean(shape.num_tokens),
          rstd(shape.num_tokens);
      LayerNormForwardReference({.y = y.data(),
                                 .mean = mean.data(),
                                 .rstd = rstd.data(),
                                 .x = x.data(),
                                 .weight = weight.data(),
                                 .bias = bias.data(),
                                 .num_tokens = shape.num_tokens,
                                 .hidden = shape.hidden,
                                 .epsilon = 1e-2f});
      const auto run = [&](int num_threads) {
        std::vector<float> d_x = Poisoned(size), d_weight = before,
                           d_bias = before;
        const LayerNormBackwardArgs args = {
            .d_x = d_x.data(),
            .d_weight = d_weight.data(),
            .d_bias = d_bias.data(),
            .d_y = d_y.data(),
            .x = x.data(),
            .mean = mean.data(),
            .rstd = rstd.data(),
            .weight = weight.data(),
            .d_residual = (flags & 2) != 0 ? d_residual.data() : nullptr,
            .num_tokens = shape.num_tokens,
            .hidden = shape.hidden,
            .accumulate = accumulate};
        if (num_threads == 0) {
          LayerNormBackwardReference(args);
        } else {
          EXPECT_TRUE(LayerNormBackward(args, num_threads).ok());
        }
        return std::vector<std::vector<float>>{d_x, d_weight, d_bias};
      };
      ExpectKernelMatches(run(0), 3e-6, run);
    }
  }
}

TEST(LayerNormTest, HandlesNothingAndRefusesBadShapes) {
  LayerNormForwardArgs args = {};
  args.hidden = 1;
  EXPECT_TRUE(LayerNormForward(args, 1).ok());
  args.hidden = 0;
  EXPECT_EQ(LayerNormForward(args, 1).code(),
            absl::StatusCode::kInvalidArgument);
  LayerNormBackwardArgs backward = {};
  backward.num_tokens = -1;
  backward.hidden = 1;
  EXPECT_EQ(LayerNormBackward(backward, 1).code(),
            absl::StatusCode::kInvalidArgument);
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
