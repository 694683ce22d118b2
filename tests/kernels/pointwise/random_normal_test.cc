#include "kernels/pointwise/random_normal.h"

#include <cmath>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

std::vector<float> Fill(uint64_t seed, uint64_t stream, uint64_t first_index,
                        int64_t count) {
  std::vector<float> out = Poisoned(count);
  FillNormal({.out = out.data(),
              .std = 1.0,
              .seed = seed,
              .stream = stream,
              .first_index = first_index,
              .count = count});
  return out;
}

// Goal: the generator is Philox4x32-10. Method: the known answers published
// with the paper's reference implementation.
TEST(RandomNormalTest, PhiloxKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c,
                                     0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6,
                                     0x6d5451fd}));
}

// Goal: any slice equals that part of the whole, wherever it starts and ends.
TEST(RandomNormalTest, SlicesAgreeWithTheWhole) {
  const std::vector<float> whole = Fill(7, 9, 0, 50);
  for (int64_t begin = 0; begin < 50; ++begin) {
    for (int64_t end = begin; end <= 50; ++end) {
      ExpectSameBits(Fill(7, 9, begin, end - begin),
                     {whole.begin() + begin, whole.begin() + end}, "slice");
    }
  }
  // Also across the counter's lower word.
  const uint64_t far = (uint64_t{1} << 34) - 2;
  const std::vector<float> across = Fill(7, 9, far, 4);
  ExpectSameBits(Fill(7, 9, far + 2, 2), {across.begin() + 2, across.end()},
                 "far slice");
}

// Goal: mean, variance and tails of a normal distribution. Method: a million
// draws of a fixed seed; bounds are five standard errors.
TEST(RandomNormalTest, LooksNormal) {
  constexpr int64_t kCount = 1000000;
  const std::vector<float> values = Fill(123, 456, 0, kCount);
  double sum = 0.0, squares = 0.0, fourth = 0.0;
  int64_t beyond_two = 0;
  for (float value : values) {
    sum += value;
    squares += double{value} * value;
    fourth += std::pow(double{value}, 4);
    beyond_two += std::fabs(value) > 2.0f;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 5e-3);
  EXPECT_NEAR(squares / kCount, 1.0, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(fourth / kCount, 3.0, 5 * std::sqrt(96.0 / kCount));
  EXPECT_NEAR(beyond_two / double{kCount}, 0.0455, 1.1e-3);
}

// Goal: seeds and streams are independent. Method: correlation over 100,000
// draws, bounded by five standard errors.
TEST(RandomNormalTest, SeedsAndStreamsDiffer) {
  constexpr int64_t kCount = 100000;
  const std::vector<float> base = Fill(1, 1, 0, kCount);
  for (const std::vector<float>& other :
       {Fill(2, 1, 0, kCount), Fill(1, 2, 0, kCount),
        Fill(1, uint64_t{1} << 32, 0, kCount), Fill(1, 1, 1, kCount)}) {
    double product = 0.0;
    for (int64_t i = 0; i < kCount; ++i) product += double{base[i]} * other[i];
    EXPECT_LT(std::fabs(product / kCount), 5 / std::sqrt(double{kCount}));
  }
}

TEST(RandomNormalTest, ScalesByTheStandardDeviation) {
  const std::vector<float> unit = Fill(5, 6, 0, 10);
  std::vector<float> scaled(10);
  FillNormal({scaled.data(), 0.02, 5, 6, 0, 10});
  for (int i = 0; i < 10; ++i) EXPECT_NEAR(scaled[i], 0.02 * unit[i], 1e-8);
}

}  // namespace
}  // namespace millrace
