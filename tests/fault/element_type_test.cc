#include "fault/element_type.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace millrace {
namespace {

constexpr ElementType kNarrow[] = {ElementType::kFp16, ElementType::kBf16};

int MantissaBits(ElementType type) {
  return type == ElementType::kFp16 ? 10 : 7;
}

// The value of 16 bits, by the definition of the formats.
double ValueOf(ElementType type, uint16_t bits) {
  const int mantissa_bits = MantissaBits(type);
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1 + fraction, exponent - bias);
}

std::vector<uint16_t> AllBits() {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  return all;
}

// Goal: every 16-bit number widens to its value, and narrowing it again gives
// the same bits. Method: all 65536 of both types, from an odd address too.
TEST(ElementTypeTest, WidensAndNarrowsEveryNumber) {
  for (const ElementType type : kNarrow) {
    const std::vector<uint16_t> all = AllBits();
    std::vector<char> shifted(2 * all.size() + 1);
    std::memcpy(shifted.data() + 1, all.data(), 2 * all.size());
    std::vector<float> wide(all.size());
    WidenToFp32(type, shifted.data() + 1, static_cast<int64_t>(all.size()),
                wide.data());
    std::vector<uint16_t> back(all.size());
    NarrowFromFp32(type, wide.data(), static_cast<int64_t>(all.size()),
                   back.data());
    for (size_t i = 0; i < all.size(); ++i) {
      const double value = ValueOf(type, all[i]);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
        const bool is_fp16 = type == ElementType::kFp16;
        ASSERT_EQ(back[i], is_fp16 ? all[i] | 0x200 : all[i]) << i;
        continue;
      }
      ASSERT_EQ(wide[i], value) << i;
      ASSERT_EQ(std::signbit(wide[i]), (all[i] & 0x8000) != 0) << i;
      ASSERT_EQ(back[i], all[i]) << i;
    }
  }
}

// Goal: narrowing takes the nearest number, of two equally near the even one.
// Method: random bits, and what lies on and beside every middle between two
// neighbours, against a search among all numbers.
TEST(ElementTypeTest, RoundsToNearestEven) {
  for (const ElementType type : kNarrow) {
    const uint16_t infinity = type == ElementType::kFp16 ? 0x7c00 : 0x7f80;
    std::vector<float> values;
    for (uint16_t bits = 0; bits < infinity; ++bits) {
      // The middle before infinity is where the next number would lie.
      const double step =
          ValueOf(type, bits) - ValueOf(type, bits == 0 ? 1 : bits - 1);
      const double next = bits + 1 == infinity ? ValueOf(type, bits) + step
                                               : ValueOf(type, bits + 1);
      const auto middle = static_cast<float>((ValueOf(type, bits) + next) / 2);
      values.push_back(middle);
      values.push_back(std::nextafterf(middle, 0.0f));
      values.push_back(
          std::nextafterf(middle, std::numeric_limits<float>::max()));
    }
    std::vector<uint16_t> narrowed(values.size());
    NarrowFromFp32(type, values.data(), static_cast<int64_t>(values.size()),
                   narrowed.data());
    for (uint16_t bits = 0; bits < infinity; ++bits) {
      const size_t i = 3 * static_cast<size_t>(bits);
      if (!std::isfinite(values[i])) continue;
      ASSERT_EQ(narrowed[i], bits + bits % 2) << bits;
      ASSERT_EQ(narrowed[i + 1], bits) << bits;
      ASSERT_EQ(narrowed[i + 2], bits + 1) << bits;
    }
    const float huge[] = {3.4e38f, -3.4e38f,
                          std::numeric_limits<float>::infinity()};
    uint16_t of_huge[3];
    NarrowFromFp32(type, huge, 3, of_huge);
    EXPECT_EQ(of_huge[0], infinity);
    EXPECT_EQ(of_huge[1], infinity | 0x8000);
    EXPECT_EQ(of_huge[2], infinity);
  }
  // A NaN whose payload the narrow type has no room for stays one.
  const float nan = std::bit_cast<float>(0x7f80'0001u);
  for (const ElementType type : kNarrow) {
    uint16_t bits = 0;
    NarrowFromFp32(type, &nan, 1, &bits);
    EXPECT_TRUE(std::isnan(ValueOf(type, bits)));
  }
}

}  // namespace
}  // namespace millrace
