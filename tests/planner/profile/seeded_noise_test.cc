#include "planner/profile/seeded_noise.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// Goal: quantiles are those of the normal distribution, far into the tails.
// Method: the distribution function gives the probability back; known values.
TEST(NoiseTest, NormalQuantileInvertsTheDistribution) {
  for (const double z : {-8.0, -5.0, -2.0, -1e-3, 0.0, 0.5, 1.0, 3.0, 5.0}) {
    const double probability = 0.5 * std::erfc(-z / std::sqrt(2.0));
    EXPECT_NEAR(NormalQuantile(probability), z, 1e-7 * (1 + std::abs(z)));
  }
  EXPECT_NEAR(NormalQuantile(0.95), 1.6448536269514722, 1e-12);
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963984540054, 1e-12);
}

// Goal: the largest of n draws is where it is expected. Method: known means of
// order statistics, which the approximation is nearer to the more draws.
TEST(NoiseTest, LargestOfNormalsIsTheMeanOrderStatistic) {
  EXPECT_NEAR(LargestOfNormals(1), 0, 1e-12);
  EXPECT_NEAR(LargestOfNormals(2), 0.56419, 0.03);
  EXPECT_NEAR(LargestOfNormals(10), 1.53875, 0.015);
  EXPECT_NEAR(LargestOfNormals(100), 2.50759, 0.025);
}

// Goal: factors have mean 1 and the deviation asked for; the table is close to
// the exact quantiles. Method: a million draws; a grid.
TEST(NoiseTest, FactorsAreLogNormalOfMeanOne) {
  constexpr int kDraws = 1'000'000;
  for (const double sigma : {0.0, 0.02, 0.3}) {
    const LogNormalFactors factors(sigma);
    double sum = 0, sum_of_logs = 0, sum_of_squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double factor = factors.At(RandomUniform(11, i));
      sum += factor;
      sum_of_logs += std::log(factor);
      sum_of_squares += std::log(factor) * std::log(factor);
    }
    const double mean_log = sum_of_logs / kDraws;
    EXPECT_NEAR(sum / kDraws, 1, 5 * sigma / 1000 + 1e-12);
    EXPECT_NEAR(std::sqrt(sum_of_squares / kDraws - mean_log * mean_log), sigma,
                0.003 * sigma + 1e-7);
    for (int i = 1; i < 9973; ++i) {
      const double uniform = i / 9973.0;
      EXPECT_NEAR(factors.At(uniform),
                  std::exp(sigma * NormalQuantile(uniform) - sigma * sigma / 2),
                  2e-3 * sigma + 1e-12);
    }
  }
}

// Goal: draws depend on stream and index alone and do not repeat.
TEST(NoiseTest, BitsAreOfStreamAndIndex) {
  std::set<uint64_t> seen;
  for (uint64_t stream = 0; stream < 100; ++stream) {
    for (uint64_t index = 0; index < 100; ++index) {
      seen.insert(RandomBits(RandomBits(1, stream), index));
    }
  }
  EXPECT_EQ(seen.size(), 10'000u);
  EXPECT_EQ(RandomBits(3, 4), RandomBits(3, 4));
}

// Goal: as many machines are slow as the share says, known ones beside.
TEST(NoiseTest, DrawsSlowMachines) {
  int32_t num_slow = 0;
  const std::vector<double> factors = DrawMachines(
      {.num_machines = 100'000, .share = 0.005, .factor = 1.25, .seed = 5},
      {1.0, 2.0}, &num_slow);
  EXPECT_EQ(factors.size(), 100'000u);
  EXPECT_EQ(num_slow, std::count_if(factors.begin(), factors.end(),
                                    [](double f) { return f > 1; }));
  EXPECT_NEAR(num_slow, 500, 4 * std::sqrt(500));
  EXPECT_GE(factors[1], 2.0);
}

}  // namespace
}  // namespace millrace
