#include "kernels/pointwise/bias.h"

#include <tuple>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

using Outputs = std::vector<std::vector<float>>;
using BiasSize = std::pair<int64_t, int64_t>;  // Rows, columns.

const std::vector<BiasSize> kBiasSizes = {{1, 1}, {3, 7}, {65, 33}, {300, 130}};

// Goal: the bias goes to each row, to the bit of one addition.
TEST(BiasTest, AddsToEveryRow) {
  RandomFloats random(1);
  for (const auto& [rows, cols] : kBiasSizes) {
    const std::vector<float> x = random(rows * cols), bias = random(cols);
    std::vector<float> expected = x;
    for (int64_t i = 0; i < rows * cols; ++i) expected[i] += bias[i % cols];
    ExpectKernelMatches({expected}, 0, [&, n = rows, m = cols](int threads) {
      std::vector<float> sum = x;
      EXPECT_TRUE(AddBias({sum.data(), bias.data(), n, m}, threads).ok());
      return Outputs{sum};
    });
  }
}

// Goal: the gradient is the sum over rows, written or added. Method: sums in
// double. Tolerance: a few hundred additions in fp32.
TEST(BiasTest, GradientSumsRows) {
  RandomFloats random(2);
  for (const auto& [rows, cols] : kBiasSizes) {
    const std::vector<float> d_y = random(rows * cols), before = random(cols);
    for (const bool accumulate : {false, true}) {
      std::vector<float> expected(cols);
      for (int64_t c = 0; c < cols; ++c) {
        double sum = accumulate ? before[c] : 0;
        for (int64_t r = 0; r < rows; ++r) sum += d_y[r * cols + c];
        expected[c] = static_cast<float>(sum);
      }
      ExpectKernelMatches(
          {expected}, 2e-6, [&, n = rows, m = cols](int threads) {
            std::vector<float> d_bias = accumulate ? before : Poisoned(m);
            EXPECT_TRUE(
                BiasGradient({d_bias.data(), d_y.data(), n, m, accumulate},
                             threads)
                    .ok());
            return Outputs{d_bias};
          });
    }
  }
}

TEST(BiasTest, HandlesNothingAndRefusesBadShapes) {
  std::vector<float> d_bias = Poisoned(3);
  ASSERT_TRUE(BiasGradient({d_bias.data(), nullptr, 0, 3, false}, 1).ok());
  EXPECT_EQ(d_bias, std::vector<float>(3, 0.0f));
  EXPECT_TRUE(AddBias({nullptr, nullptr, 0, 3}, 1).ok());
  EXPECT_EQ(AddBias({nullptr, nullptr, 1, 0}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BiasGradient({nullptr, nullptr, -1, 1, false}, 1).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
