#include "kernels/pointwise/cast.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

// Goal: a bf16 is the nearest there is, ties going to even mantissas. Method:
// its neighbours are no nearer, for magnitudes of all exponents and for ties.
TEST(CastTest, EncodesTheNearestBf16) {
  RandomFloats random(1);
  std::vector<float> values = random(2000, 4.0f);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i % 250) - 125);
  }
  for (const uint32_t tie : {0x3F808000u, 0x3F818000u, 0xC0FF8000u, 0x8000u}) {
    values.push_back(std::bit_cast<float>(tie));
  }
  for (const float value : values) {
    const uint16_t bits = EncodeBf16(value);
    const double error = std::fabs(double{DecodeBf16(bits)} - value);
    for (const int step : {-1, 1}) {
      const auto neighbour = static_cast<uint16_t>(bits + step);
      const double other = std::fabs(double{DecodeBf16(neighbour)} - value);
      if (!std::isfinite(other)) continue;
      EXPECT_TRUE(error < other || (error == other && bits % 2 == 0)) << value;
    }
  }
}

TEST(CastTest, KeepsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(DecodeBf16(EncodeBf16(kInfinity)), kInfinity);
  EXPECT_EQ(DecodeBf16(EncodeBf16(-kInfinity)), -kInfinity);
  EXPECT_EQ(DecodeBf16(EncodeBf16(std::numeric_limits<float>::max())),
            kInfinity);
  // A NaN whose mantissa bits are all among those cut off.
  EXPECT_TRUE(
      std::isnan(DecodeBf16(EncodeBf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(
      DecodeBf16(EncodeBf16(std::numeric_limits<float>::quiet_NaN()))));
}

// Goal: runs are their elements, on any number of threads. Method: to bf16 and
// back, around the vector widths.
TEST(CastTest, RunsAreTheirElements) {
  RandomFloats random(2);
  for (const int64_t size : {0, 1, 3, 15, 16, 17, 63, 100, 70001}) {
    const std::vector<float> x = random(size);
    for (const int num_threads : {1, 2, 3}) {
      std::vector<uint16_t> bits(size + 1, 0x5555);
      ASSERT_TRUE(EncodeBf16({bits.data(), x.data(), size}, num_threads).ok());
      std::vector<float> back = Poisoned(size);
      ASSERT_TRUE(
          DecodeBf16({back.data(), bits.data(), size}, num_threads).ok());
      for (int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(bits[i], EncodeBf16(x[i]));
        ASSERT_EQ(back[i], DecodeBf16(bits[i]));
      }
      EXPECT_EQ(bits[size], 0x5555);
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(EncodeBf16({nullptr, nullptr, -1}, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeBf16({nullptr, nullptr, 1}, 0)));
}

}  // namespace
}  // namespace millrace
