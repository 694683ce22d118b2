#include "kernels/cuda/count_not_finite.h"

#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// Values of a format by their bits: finite ones at the edge of its range, and
// some that are not finite.
template <typename Word>
struct ValuesOf {
  ValueFormat format;
  std::vector<Word> finite;
  std::vector<Word> others;
};

// Goal: infinities and NaNs of either sign and any payload count once, numbers
// never, and neighbours and the count before stay as they are. Method: random
// finite values at any address and size, with values that are not finite at
// both ends and in between.
template <typename Word>
void ExpectExactCounts(const ValuesOf<Word>& values) {
  std::mt19937 random(7);
  constexpr int64_t kMost = (1 << 22) + 77;  // More than a round of blocks.
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{33},
                             int64_t{4096}, int64_t{100003}, kMost}) {
    for (const int64_t offset : {0, 1, 3, 8}) {
      SCOPED_TRACE(
          absl::StrCat(sizeof(Word), " bytes, ", size, " from ", offset));
      // Around the values lies what would count.
      std::vector<Word> x(static_cast<size_t>(offset + size + 16),
                          values.others[0]);
      for (int64_t i = 0; i < size; ++i) {
        x[offset + i] = values.finite[random() % values.finite.size()];
      }
      DeviceBuffer<Word> device = ToDevice(x);
      DeviceBuffer<uint64_t> count = ToDevice(std::vector<uint64_t>{5});
      const auto counted = [&] {
        EXPECT_EQ(LaunchCountNotFinite({.count = count.data(),
                                        .x = device.data() + offset,
                                        .num_values = size,
                                        .format = values.format},
                                       nullptr),
                  absl::OkStatus());
        return ToHost(count)[0];
      };
      EXPECT_EQ(counted(), 5u);
      uint64_t expected = 5;
      for (int64_t i = 0; i < size; ++i) {
        if (i != 0 && i != size - 1 && random() % 1000 != 0) continue;
        x[offset + i] = values.others[random() % values.others.size()];
        ++expected;
      }
      device = ToDevice(x);
      EXPECT_EQ(counted(), expected);
    }
  }
}

TEST(CountNotFiniteTest, CountsExactly) {
  ExpectExactCounts<uint32_t>(
      {.format = ValueFormat::kFloat32,
       .finite = {0, 0x80000000, 1, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000},
       .others = {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF}});
  ExpectExactCounts<uint64_t>(
      {.format = ValueFormat::kFloat64,
       .finite = {0, 1, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF,
                  0x3FF00000FFFFFFFF},
       .others = {0x7FF0000000000000, 0xFFF0000000000000, 0x7FF0000000000001,
                  0xFFFFFFFFFFFFFFFF}});
  ExpectExactCounts<uint16_t>(
      {.format = ValueFormat::kBfloat16,
       .finite = {0, 0x8000, 1, 0x7F7F, 0xFF7F, 0x3F80},
       .others = {0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF}});
  ExpectExactCounts<uint8_t>({.format = ValueFormat::kFloat8E4m3,
                              .finite = {0, 0x80, 1, 0x7E, 0xFE, 0x38},
                              .others = {0x7F, 0xFF}});
}

TEST(CountNotFiniteTest, RefusesWhatCannotBe) {
  EXPECT_EQ(LaunchCountNotFinite({.num_values = -1}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      LaunchCountNotFinite(
          {.x = reinterpret_cast<const void*>(6), .num_values = 1}, nullptr)
          .code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
