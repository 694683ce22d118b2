#include "base/units.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace millrace {
namespace {

// Goal: three significant digits in the largest unit that keeps the value at
// one or above. Method: values on both sides of each unit's edge.
TEST(UnitsTest, FormatsBytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(kKiB), "1.00 KiB");
  EXPECT_EQ(FormatBytes(3 * kMiB + kMiB / 2), "3.50 MiB");
  EXPECT_EQ(FormatBytes(99 * kGiB), "99.0 GiB");
  EXPECT_EQ(FormatBytes(1000 * kGiB), "1000 GiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8192 PiB");
}

TEST(UnitsTest, FormatsSeconds) {
  EXPECT_EQ(FormatSeconds(850e-9), "850 ns");
  EXPECT_EQ(FormatSeconds(12.3e-6), "12.3 us");
  EXPECT_EQ(FormatSeconds(4.56e-3), "4.56 ms");
  EXPECT_EQ(FormatSeconds(1.234), "1.23 s");
  EXPECT_EQ(FormatSeconds(125), "2 min 05 s");
  EXPECT_EQ(FormatSeconds(3600), "1 h 00 min");
  EXPECT_EQ(FormatSeconds(11220), "3 h 07 min");
  EXPECT_EQ(FormatSeconds(-0.5), "-500 ms");
}

TEST(UnitsTest, FormatsCounts) {
  EXPECT_EQ(FormatCount(950), "950");
  EXPECT_EQ(FormatCount(12300), "12.3 k");
  EXPECT_EQ(FormatCount(4.56e6), "4.56 M");
  EXPECT_EQ(FormatCount(7.89e9), "7.89 G");
}

// Goal: RoundUp is the smallest multiple not below. Method: check that meaning
// for every small pair.
TEST(UnitsTest, RoundsUpToMultiples) {
  for (int64_t alignment = 1; alignment <= 9; ++alignment) {
    for (int64_t value = 0; value <= 40; ++value) {
      const int64_t rounded = RoundUp(value, alignment);
      EXPECT_EQ(rounded % alignment, 0);
      EXPECT_GE(rounded, value);
      EXPECT_LT(rounded - value, alignment);
    }
  }
}

}  // namespace
}  // namespace millrace
