#include "kernels/cuda/fast_divide.h"

#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr uint32_t kLimit = uint32_t{1} << 31;

void ExpectDivides(uint32_t dividend, const FastDivisor& by) {
  ASSERT_EQ(by.Quotient(dividend), dividend / by.divisor)
      << dividend << " / " << by.divisor;
  ASSERT_EQ(by.Remainder(dividend), dividend % by.divisor)
      << dividend << " % " << by.divisor;
}

// Goal: quotient and remainder are those of the processor. Method: small
// divisors, powers of two and their neighbours and random ones, each with
// dividends around its multiples, where a wrong rounding shows first.
TEST(FastDivideTest, MatchesDivision) {
  std::mt19937 generator(1);
  std::uniform_int_distribution<uint32_t> any(1, kLimit - 1);
  auto check = [&](uint32_t divisor) {
    const FastDivisor by = MakeFastDivisor(divisor);
    for (uint32_t dividend = 0; dividend < 100; ++dividend) {
      ExpectDivides(dividend, by);
      ExpectDivides(kLimit - 1 - dividend, by);
    }
    for (int i = 0; i < 100; ++i) {
      const uint32_t multiple = any(generator) / divisor * divisor;
      ExpectDivides(multiple, by);
      if (multiple > 0) ExpectDivides(multiple - 1, by);
    }
  };
  for (uint32_t divisor = 1; divisor <= 1000; ++divisor) check(divisor);
  for (uint32_t power = 1024; power < kLimit; power *= 2) {
    check(power - 1);
    check(power);
    check(power + 1);
  }
  check(kLimit - 1);
  for (int i = 0; i < 1000; ++i) check(any(generator));
}

}  // namespace
}  // namespace millrace
