#include "kernels/pointwise/swiglu.h"

#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

using Outputs = std::vector<std::vector<float>>;

struct SwigluShape {
  int64_t num_tokens, ffn_hidden;
};
const std::vector<SwigluShape> kSwigluShapes = {{1, 1},  {3, 5},   {2, 16},
                                                {7, 33}, {4, 100}, {200, 250}};

Outputs Forward(const SwigluShape& shape, const std::vector<float>& gate_up,
                int num_threads, GluGate gate = GluGate::kSilu) {
  std::vector<float> activation = Poisoned(shape.num_tokens * shape.ffn_hidden);
  const SwigluForwardArgs args = {activation.data(), gate_up.data(),
                                  shape.num_tokens, shape.ffn_hidden, gate};
  if (num_threads == 0) {
    SwigluForwardReference(args);
  } else {
    EXPECT_TRUE(SwigluForward(args, num_threads).ok());
  }
  return {activation};
}

Outputs Backward(const SwigluShape& shape, const std::vector<float>& gate_up,
                 const std::vector<float>& d_activation, int num_threads,
                 GluGate gate = GluGate::kSilu) {
  std::vector<float> d_gate_up = Poisoned(gate_up.size());
  const SwigluBackwardArgs args = {d_gate_up.data(),    gate_up.data(),
                                   d_activation.data(), shape.num_tokens,
                                   shape.ffn_hidden,    gate};
  if (num_threads == 0) {
    SwigluBackwardReference(args);
  } else {
    EXPECT_TRUE(SwigluBackward(args, num_threads).ok());
  }
  return {d_gate_up};
}

// Goal: both directions mean what their references say, from gates near zero to
// those whose exponential overflows a float. Tolerance: a handful of roundings
// and an exponential of two units in the last place.
TEST(SwigluTest, MatchesReference) {
  RandomFloats random(1);
  for (const SwigluShape& shape : kSwigluShapes) {
    for (float magnitude : {1.0f, 10.0f, 200.0f}) {
      SCOPED_TRACE(absl::StrCat(shape.num_tokens, " x ", shape.ffn_hidden,
                                " of ", magnitude));
      const int64_t size = shape.num_tokens * shape.ffn_hidden;
      const std::vector<float> gate_up = random(2 * size, magnitude);
      const std::vector<float> d_activation = random(size);
      ExpectKernelMatches(Forward(shape, gate_up, 0), 1e-6, [&](int threads) {
        return Forward(shape, gate_up, threads);
      });
      ExpectKernelMatches(
          Backward(shape, gate_up, d_activation, 0), 1e-6, [&](int threads) {
            return Backward(shape, gate_up, d_activation, threads);
          });
      const GluGate gelu = GluGate::kGelu;
      ExpectKernelMatches(
          Forward(shape, gate_up, 0, gelu), 1e-6,
          [&](int threads) { return Forward(shape, gate_up, threads, gelu); });
      ExpectKernelMatches(Backward(shape, gate_up, d_activation, 0, gelu), 2e-6,
                          [&](int threads) {
                            return Backward(shape, gate_up, d_activation,
                                            threads, gelu);
                          });
    }
  }
}

// Goal: the reference's gradient is the derivative of its forward pass. Method:
// central differences of sum(activation * d_activation).
TEST(SwigluTest, ReferenceGradientIsTheDerivative) {
  RandomFloats random(2);
  const SwigluShape shape = {3, 4};
  std::vector<float> gate_up = random(24, 3.0f);
  const std::vector<float> d_activation = random(12);
  for (const GluGate gate : {GluGate::kSilu, GluGate::kGelu}) {
    const std::vector<float> gradient =
        Backward(shape, gate_up, d_activation, 0, gate)[0];
    const auto objective = [&] {
      const std::vector<float> activation = Forward(shape, gate_up, 0, gate)[0];
      double sum = 0.0;
      for (size_t i = 0; i < activation.size(); ++i) {
        sum += double{activation[i]} * d_activation[i];
      }
      return sum;
    };
    for (size_t i = 0; i < gate_up.size(); ++i) {
      const float kept = gate_up[i];
      gate_up[i] = kept + 0.01f;
      const double above = objective();
      gate_up[i] = kept - 0.01f;
      const double below = objective();
      gate_up[i] = kept;
      EXPECT_NEAR((above - below) / 0.02, gradient[i], 1e-3) << i;
    }
  }
}

// Goal: the gradient may be written over its input.
TEST(SwigluTest, BackwardInPlace) {
  RandomFloats random(3);
  const SwigluShape shape = {5, 37};
  const std::vector<float> gate_up = random(2 * 5 * 37);
  const std::vector<float> d_activation = random(5 * 37);
  ForEachCpuLevel([&] {
    std::vector<float> in_place = gate_up;
    ASSERT_TRUE(
        SwigluBackward(
            {in_place.data(), in_place.data(), d_activation.data(), 5, 37}, 1)
            .ok());
    ExpectSameBits(in_place, Backward(shape, gate_up, d_activation, 1)[0],
                   "d_gate_up");
  });
}

TEST(SwigluTest, RefusesBadShapes) {
  EXPECT_EQ(SwigluForward({nullptr, nullptr, -1, 4}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SwigluBackward({nullptr, nullptr, nullptr, 1, 0}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(SwigluForward({nullptr, nullptr, 0, 4}, 1).ok());
}

}  // namespace
}  // namespace millrace
