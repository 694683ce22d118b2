#include "kernels/norm/rmsnorm.h"

#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

using Outputs = std::vector<std::vector<float>>;

constexpr float kEpsilon = 1e-5f;

struct Shape {
  int64_t num_tokens;
  int64_t hidden;
};

// Around every vector width, and one large enough to be spread over threads.
const std::vector<Shape> kShapes = {{1, 1},  {3, 5},   {7, 16},   {2, 33},
                                    {5, 63}, {9, 130}, {300, 257}};

// Goal: forward and residual forward mean what their references say. Tolerance:
// sums of up to 257 squares in float, each addition rounded at 6e-8.
TEST(RmsNormTest, ForwardMatchesReference) {
  RandomFloats random(1);
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.num_tokens, " x ", shape.hidden));
    const int64_t size = shape.num_tokens * shape.hidden;
    const std::vector<float> x = random(size, 3.0f);
    const std::vector<float> weight = random(shape.hidden);
    for (const bool adds_one : {false, true}) {
      const auto run = [&](int num_threads) -> Outputs {
        std::vector<float> y = Poisoned(size),
                           rstd = Poisoned(shape.num_tokens);
        const RmsNormForwardArgs args = {
            y.data(),         rstd.data(),  x.data(), weight.data(),
            shape.num_tokens, shape.hidden, kEpsilon, adds_one};
        if (num_threads == 0) {
          RmsNormForwardReference(args);
        } else {
          EXPECT_TRUE(RmsNormForward(args, num_threads).ok());
        }
        return {y, rstd};
      };
      ExpectKernelMatches(run(0), 1e-6, run);
    }
  }
}

TEST(RmsNormTest, ResidualForwardMatchesReference) {
  RandomFloats random(2);
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.num_tokens, " x ", shape.hidden));
    const int64_t size = shape.num_tokens * shape.hidden;
    const std::vector<float> x = random(size, 3.0f);
    const std::vector<float> delta = random(size);
    const std::vector<float> weight = random(shape.hidden);
    for (const bool adds_one : {false, true}) {
      const auto run = [&](int num_threads) -> Outputs {
        std::vector<float> residual = Poisoned(size), y = Poisoned(size),
                           rstd = Poisoned(shape.num_tokens);
        const ResidualRmsNormForwardArgs args = {
            residual.data(), y.data(),      rstd.data(),      x.data(),
            delta.data(),    weight.data(), shape.num_tokens, shape.hidden,
            kEpsilon,        adds_one};
        if (num_threads == 0) {
          ResidualRmsNormForwardReference(args);
        } else {
          EXPECT_TRUE(ResidualRmsNormForward(args, num_threads).ok());
        }
        return {residual, y, rstd};
      };
      ExpectKernelMatches(run(0), 1e-6, run);
    }
  }
}

// Goal: the backward pass means what its reference says, with and without a
// residual gradient and accumulation. Tolerance: weight gradients are sums over
// 300 tokens, of values up to three.
TEST(RmsNormTest, BackwardMatchesReference) {
  RandomFloats random(3);
  for (const Shape& shape : kShapes) {
    for (int flags = 0; flags < 8; ++flags) {
      SCOPED_TRACE(absl::StrCat(shape.num_tokens, " x ", shape.hidden,
                                " flags ", flags));
      const int64_t size = shape.num_tokens * shape.hidden;
      const std::vector<float> x = random(size, 3.0f);
      const std::vector<float> d_y = random(size);
      const std::vector<float> d_residual = random(size);
      const std::vector<float> weight = random(shape.hidden);
      const bool accumulate = (flags & 1) != 0;
      const std::vector<float> before =
          accumulate ? random(shape.hidden) : Poisoned(shape.hidden);
      std::vector<float> y(size), rstd(shape.num_tokens);
      RmsNormForwardReference({y.data(), rstd.data(), x.data(), weight.data(),
                               shape.num_tokens, shape.hidden, kEpsilon});
      const auto run = [&](int num_threads) -> Outputs {
        std::vector<float> d_x = Poisoned(size), d_weight = before;
        const RmsNormBackwardArgs args = {
            .d_x = d_x.data(),
            .d_weight = d_weight.data(),
            .d_y = d_y.data(),
            .x = x.data(),
            .rstd = rstd.data(),
            .weight = weight.data(),
            .d_residual = (flags & 2) != 0 ? d_residual.data() : nullptr,
            .num_tokens = shape.num_tokens,
            .hidden = shape.hidden,
            .accumulate = accumulate,
            .adds_one = (flags & 4) != 0};
        if (num_threads == 0) {
          RmsNormBackwardReference(args);
        } else {
          EXPECT_TRUE(RmsNormBackward(args, num_threads).ok());
        }
        return {d_x, d_weight};
      };
      ExpectKernelMatches(run(0), 2e-6, run);
    }
  }
}

// Goal: one more than a weight is what the sum says, forward and backward.
// Method: the same weights, one more by hand.
TEST(RmsNormTest, AddsOne) {
  RandomFloats random(6);
  constexpr int64_t kTokens = 5, kHidden = 37, kSize = kTokens * kHidden;
  const std::vector<float> x = random(kSize), d_y = random(kSize),
                           weight = random(kHidden);
  std::vector<float> more = weight;
  for (float& w : more) w += 1.0f;
  const auto run = [&](const std::vector<float>& of, bool adds_one) -> Outputs {
    std::vector<float> y(kSize), rstd(kTokens), d_x(kSize), d_weight(kHidden);
    EXPECT_TRUE(RmsNormForward({y.data(), rstd.data(), x.data(), of.data(),
                                kTokens, kHidden, kEpsilon, adds_one},
                               1)
                    .ok());
    EXPECT_TRUE(RmsNormBackward({d_x.data(), d_weight.data(), d_y.data(),
                                 x.data(), rstd.data(), of.data(), nullptr,
                                 kTokens, kHidden, false, adds_one},
                                1)
                    .ok());
    return {y, d_x, d_weight};
  };
  ForEachCpuLevel([&] {
    const Outputs added = run(weight, true), by_hand = run(more, false);
    for (size_t i = 0; i < added.size(); ++i) {
      ExpectSameBits(added[i], by_hand[i], absl::StrCat("output ", i));
    }
  });
}

// Goal: the reference's gradients are the derivatives of its forward pass.
// Method: central differences of sum(y * d_y). Tolerance: y is rounded at 6e-8
// over a step of 2e-2, beside the third-order term.
TEST(RmsNormTest, ReferenceGradientIsTheDerivative) {
  RandomFloats random(4);
  constexpr int64_t kTokens = 3, kHidden = 6;
  std::vector<float> x = random(kTokens * kHidden, 2.0f);
  std::vector<float> weight = random(kHidden);
  const std::vector<float> d_y = random(kTokens * kHidden);
  std::vector<float> y(x.size()), rstd(kTokens), d_x(x.size()),
      d_weight(kHidden);
  const auto objective = [&] {
    RmsNormForwardReference({y.data(), rstd.data(), x.data(), weight.data(),
                             kTokens, kHidden, kEpsilon});
    double sum = 0.0;
    for (size_t i = 0; i < y.size(); ++i) sum += double{y[i]} * d_y[i];
    return sum;
  };
  objective();
  RmsNormBackwardReference({d_x.data(), d_weight.data(), d_y.data(), x.data(),
                            rstd.data(), weight.data(), nullptr, kTokens,
                            kHidden, false});
  const auto derivative = [&](float& value) {
    const float kept = value;
    value = kept + 0.01f;
    const double above = objective();
    value = kept - 0.01f;
    const double below = objective();
    value = kept;
    return (above - below) / 0.02;
  };
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(derivative(x[i]), d_x[i], 1e-3) << i;
  }
  for (size_t i = 0; i < weight.size(); ++i) {
    EXPECT_NEAR(derivative(weight[i]), d_weight[i], 1e-3) << i;
  }
}

// Goal: the aliases that the header allows give the same bits.
TEST(RmsNormTest, AllowedAliases) {
  RandomFloats random(5);
  constexpr int64_t kTokens = 4, kHidden = 37, kSize = kTokens * kHidden;
  const std::vector<float> x = random(kSize), delta = random(kSize),
                           d_y = random(kSize), weight = random(kHidden);
  ForEachCpuLevel([&] {
    std::vector<float> residual(kSize), y(kSize), rstd(kTokens);
    const ResidualRmsNormForwardArgs apart = {
        residual.data(), y.data(), rstd.data(), x.data(), delta.data(),
        weight.data(),   kTokens,  kHidden,     kEpsilon};
    ASSERT_TRUE(ResidualRmsNormForward(apart, 1).ok());
    std::vector<float> x_then_residual = x, delta_then_y = delta;
    ResidualRmsNormForwardArgs aliased = apart;
    aliased.residual = x_then_residual.data();
    aliased.x = x_then_residual.data();
    aliased.y = delta_then_y.data();
    aliased.delta = delta_then_y.data();
    ASSERT_TRUE(ResidualRmsNormForward(aliased, 1).ok());
    ExpectSameBits(x_then_residual, residual, "residual");
    ExpectSameBits(delta_then_y, y, "y");

    std::vector<float> in_place = x;
    ASSERT_TRUE(RmsNormForward({in_place.data(), rstd.data(), in_place.data(),
                                weight.data(), kTokens, kHidden, kEpsilon},
                               1)
                    .ok());
    ASSERT_TRUE(RmsNormForward({y.data(), rstd.data(), x.data(), weight.data(),
                                kTokens, kHidden, kEpsilon},
                               1)
                    .ok());
    ExpectSameBits(in_place, y, "y in place");

    std::vector<float> d_x(kSize), d_weight(kHidden), d_residual = delta;
    RmsNormBackwardArgs backward = {
        d_x.data(),    d_weight.data(), d_y.data(), x.data(), rstd.data(),
        weight.data(), delta.data(),    kTokens,    kHidden,  false};
    ASSERT_TRUE(RmsNormBackward(backward, 1).ok());
    backward.d_x = d_residual.data();
    backward.d_residual = d_residual.data();
    ASSERT_TRUE(RmsNormBackward(backward, 1).ok());
    ExpectSameBits(d_residual, d_x, "d_x in place");
  });
}

// Goal: no tokens means nothing to do, but a gradient that is not accumulated
// is still set; and bad shapes are refused by name.
TEST(RmsNormTest, EmptyAndBadShapes) {
  std::vector<float> d_weight = Poisoned(3);
  RmsNormBackwardArgs args = {.d_weight = d_weight.data(),
                              .num_tokens = 0,
                              .hidden = 3,
                              .accumulate = false};
  EXPECT_TRUE(RmsNormBackward(args, 1).ok());
  EXPECT_EQ(d_weight, std::vector<float>(3, 0.0f));
  args.hidden = 0;
  EXPECT_EQ(RmsNormBackward(args, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RmsNormForward({.num_tokens = -1, .hidden = 3}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ResidualRmsNormForward({.num_tokens = 1, .hidden = 3}, 0).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
