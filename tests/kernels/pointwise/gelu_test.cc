#include "kernels/pointwise/gelu.h"

#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

// Goal: both directions mean what their references say, from values near zero
// to those whose exponential overflows a float. Tolerance: a handful of
// roundings and an exponential of two units in the last place; in front of
// large numbers the slope is one or nothing.
TEST(GeluTest, MatchesReference) {
  RandomFloats random(1);
  for (const int64_t size : {1, 5, 33, 50000}) {
    for (const float magnitude : {0.01f, 1.0f, 10.0f, 2000.0f}) {
      for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
        SCOPED_TRACE(absl::StrCat(size, " of ", magnitude, " form ",
                                  static_cast<int>(form)));
        const std::vector<float> x = random(size, magnitude),
                                 d_y = random(size);
        const auto forward = [&](int threads) {
          std::vector<float> y = Poisoned(size);
          const GeluForwardArgs args = {
              .y = y.data(), .x = x.data(), .num_elements = size, .form = form};
          if (threads == 0) {
            GeluForwardReference(args);
          } else {
            EXPECT_TRUE(GeluForward(args, threads).ok());
          }
          return std::vector<std::vector<float>>{y};
        };
        const auto backward = [&](int threads) {
          std::vector<float> d_x = Poisoned(size);
          const GeluBackwardArgs args = {.d_x = d_x.data(),
                                         .x = x.data(),
                                         .d_y = d_y.data(),
                                         .num_elements = size,
                                         .form = form};
          if (threads == 0) {
            GeluBackwardReference(args);
          } else {
            EXPECT_TRUE(GeluBackward(args, threads).ok());
          }
          return std::vector<std::vector<float>>{d_x};
        };
        ExpectKernelMatches(forward(0), 1e-6, forward);
        ExpectKernelMatches(backward(0), 2e-6, backward);
      }
    }
  }
}

TEST(GeluTest, HandlesNothingAndRefusesWhatItHasNot) {
  EXPECT_TRUE(GeluForward({}, 1).ok());
  EXPECT_TRUE(GeluBackward({}, 1).ok());
  EXPECT_EQ(GeluBackward({.num_elements = -1}, 1).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
