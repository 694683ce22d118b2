#include "kernels/pointwise/cast_bf16.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool SameBf16(uint16_t a, uint16_t b) {
  return a == b || (std::isnan(FromBf16(a)) && std::isnan(FromBf16(b)));
}

// Values of many magnitudes, then what rounding may trip over.
std::vector<float> Values(int64_t size) {
  RandomNormals random;
  std::vector<float> values = random.Floats(size);
  const std::vector<float> exponents = random.Floats(size);
  for (int64_t i = 0; i < size; ++i) values[i] *= std::exp2(20 * exponents[i]);
  const float odd[] = {0.0f,   -0.0f,    kInfinity, -kInfinity, kNan,
                       1e-42f, 3.38e38f, -3.38e38f, 1.00390625f};
  for (size_t i = 0; i < std::size(odd) && i < values.size(); ++i) {
    values[values.size() - 1 - i] = odd[i];
  }
  return values;
}

// Goal: both roundings give the bits of cast.h for any size at any address, and
// nothing around them is written; widening is exact.
TEST(CastBf16Test, GivesTheBitsOfTheReference) {
  for (const int64_t size : {1, 5, 8, 1029, 100000}) {
    for (const int64_t offset : {0, 1, 8}) {
      SCOPED_TRACE(absl::StrCat(size, " from ", offset));
      const std::vector<float> x = Values(offset + size);
      DeviceBuffer<float> device_x = ToDevice(x);
      for (const bool stochastic : {false, true}) {
        DeviceBuffer<uint16_t> y = PoisonedBf16(offset + size + 3);
        CastToBf16Args args = {.y = y.data() + offset,
                               .x = device_x.data() + offset,
                               .num_elements = size,
                               .stochastic = stochastic,
                               .seed = 0x123456789ABCDEF,
                               .stream = 7,
                               .first_index = int64_t{1} << 36};
        ASSERT_TRUE(LaunchCastToBf16(args, nullptr).ok());
        const Bf16s actual = ToHost(y);
        for (int64_t i = 0; i < offset + size + 3; ++i) {
          const int64_t element = i - offset;
          uint16_t expected = kNanBf16;
          if (element >= 0 && element < size) {
            expected = stochastic
                           ? EncodeBf16Stochastic(x[i], args.seed, args.stream,
                                                  args.first_index + element)
                           : EncodeBf16(x[i]);
          }
          ASSERT_TRUE(SameBf16(actual[i], expected))
              << i << ": " << x[i] << " became " << FromBf16(actual[i])
              << ", expected " << FromBf16(expected);
        }
      }
      const Bf16s narrow = ToBf16(x);
      DeviceBuffer<uint16_t> device_narrow = ToDevice(narrow);
      DeviceBuffer<float> wide = PoisonedFloats(offset + size);
      ASSERT_TRUE(LaunchCastToFloat({.y = wide.data() + offset,
                                     .x = device_narrow.data() + offset,
                                     .num_elements = size},
                                    nullptr)
                      .ok());
      const std::vector<float> actual = ToHost(wide);
      for (int64_t i = 0; i < offset + size; ++i) {
        const float expected = i < offset ? kNan : FromBf16(narrow[i]);
        ASSERT_TRUE(actual[i] == expected ||
                    (std::isnan(actual[i]) && std::isnan(expected)))
            << i;
      }
    }
  }
}

// Goal: the mean over many elements is the value itself. Method: four million
// copies of a value a third of the way between two of bf16; five standard
// deviations of the mean.
TEST(CastBf16Test, StochasticRoundingIsUnbiased) {
  constexpr int64_t kSize = 1 << 22;
  constexpr double kStep = 0x1p-7;
  const float value = static_cast<float>(1.0 + kStep / 3);
  DeviceBuffer<float> x = ToDevice(std::vector<float>(kSize, value));
  DeviceBuffer<uint16_t> y = PoisonedBf16(kSize);
  ASSERT_TRUE(LaunchCastToBf16({.y = y.data(),
                                .x = x.data(),
                                .num_elements = kSize,
                                .stochastic = true,
                                .seed = 3,
                                .stream = 0,
                                .first_index = 0},
                               nullptr)
                  .ok());
  double sum = 0.0;
  for (const uint16_t bits : ToHost(y)) sum += FromBf16(bits);
  const double deviation = kStep * std::sqrt(2.0 / 9.0 / kSize);
  EXPECT_NEAR(sum / kSize, value, 5 * deviation);
}

// Goal: the reference numbers every 8-bit value by its bits and rounds to the
// nearest. Method: all 256 there and back, and the middles between neighbours.
TEST(Float8Test, RoundsToNearestEven) {
  for (const Float8Format format : {Float8Format::kE4m3, Float8Format::kE5m2}) {
    const int last = format == Float8Format::kE4m3 ? 0x7E : 0x7B;
    EXPECT_EQ(DecodeFloat8(static_cast<uint8_t>(last), format),
              format == Float8Format::kE4m3 ? 448.0f : 57344.0f);
    for (int bits = 0; bits <= last; ++bits) {
      const float value = DecodeFloat8(static_cast<uint8_t>(bits), format);
      EXPECT_EQ(EncodeFloat8(value, format), bits);
      EXPECT_EQ(EncodeFloat8(-value, format), bits | 0x80);
      if (bits == last) continue;
      const float next = DecodeFloat8(static_cast<uint8_t>(bits + 1), format);
      ASSERT_LT(value, next);
      const float middle = 0.5f * (value + next);
      EXPECT_EQ(EncodeFloat8(middle, format), bits + bits % 2);
      EXPECT_EQ(EncodeFloat8(std::nextafter(middle, 0.0f), format), bits);
      EXPECT_EQ(EncodeFloat8(std::nextafter(middle, kInfinity), format),
                bits + 1);
    }
    EXPECT_EQ(EncodeFloat8(kInfinity, format), last);
    EXPECT_TRUE(std::isnan(DecodeFloat8(EncodeFloat8(kNan, format), format)));
  }
}

struct Shape {
  int64_t rows, columns, padding, offset;
};

class QuantizeTest : public testing::TestWithParam<Shape> {};

// Goal: rows, transpose and amax are those of cast.h, to the bit, each also
// without the others, and nothing around them is written. Method: both formats
// on values that underflow and saturate; in the largest, one pass covers many
// tiles. amax starts below and above what it will meet.
TEST_P(QuantizeTest, GivesTheBitsOfTheReference) {
  const Shape shape = GetParam();
  const int64_t size = shape.rows * shape.columns;
  const int64_t stride = shape.columns + shape.padding;
  RandomNormals random;
  std::vector<float> x = random.Floats(size);
  const std::vector<float> exponents = random.Floats(size);
  for (int64_t i = 0; i < size; ++i) x[i] *= std::exp2(3 * exponents[i]);
  x[size / 2] = -3e5f;
  x = FromBf16(ToBf16(x));
  Bf16s spread(shape.offset + shape.rows * stride, kNanBf16);
  for (int64_t i = 0; i < size; ++i) {
    spread[shape.offset + i / shape.columns * stride + i % shape.columns] =
        ToBf16(x[i]);
  }
  DeviceBuffer<uint16_t> device_x = ToDevice(spread);
  const float scale = 1.7f;
  DeviceBuffer<float> device_scale = ToDevice(std::vector<float>{scale});
  for (const Float8Format format : {Float8Format::kE4m3, Float8Format::kE5m2}) {
    for (const float amax_before : {0.0f, 1e6f}) {
      std::vector<uint8_t> y(size), y_transposed(size);
      float amax = amax_before;
      QuantizeFloat8Reference({y.data(), y_transposed.data(), &amax, x.data(),
                               shape.rows, shape.columns, scale, format});
      DeviceBuffer<uint8_t> device_y =
          ToDevice(std::vector<uint8_t>(size + 1, 0xFF));
      DeviceBuffer<uint8_t> device_transposed =
          ToDevice(std::vector<uint8_t>(size + 1, 0xFF));
      DeviceBuffer<float> device_amax =
          ToDevice(std::vector<float>{amax_before});
      const bool want_rows = amax_before == 0.0f || shape.rows % 2 == 0;
      const bool want_columns = amax_before == 0.0f || !want_rows;
      const absl::Status status = LaunchQuantizeFloat8Bf16(
          {.y = want_rows ? device_y.data() : nullptr,
           .y_transposed = want_columns ? device_transposed.data() : nullptr,
           .amax = device_amax.data(),
           .x = device_x.data() + shape.offset,
           .x_row_stride = stride,
           .rows = shape.rows,
           .columns = shape.columns,
           .scale = device_scale.data(),
           .format = format},
          nullptr);
      ASSERT_TRUE(status.ok()) << status;
      y.push_back(0xFF);
      y_transposed.push_back(0xFF);
      const std::vector<uint8_t> untouched(size + 1, 0xFF);
      EXPECT_EQ(ToHost(device_y), want_rows ? y : untouched);
      EXPECT_EQ(ToHost(device_transposed),
                want_columns ? y_transposed : untouched);
      EXPECT_EQ(ToHost(device_amax)[0], amax);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, QuantizeTest,
    testing::Values(Shape{1, 1, 0, 0}, Shape{7, 9, 0, 0}, Shape{8, 8, 0, 0},
                    Shape{16, 264, 8, 0}, Shape{128, 128, 0, 8},
                    Shape{129, 130, 3, 1}, Shape{1000, 136, 0, 0},
                    Shape{250, 1000, 0, 0}),
    [](const testing::TestParamInfo<Shape>& info) {
      return absl::StrCat(info.param.rows, "x", info.param.columns, "P",
                          info.param.padding, "O", info.param.offset);
    });

// Goal: every byte moves to its place, for any shape at any address, and
// nothing around them is written. Method: the shapes of the test, and multiples
// of sixteen, whose accesses are wide.
class TransposeTest : public testing::TestWithParam<Shape> {};
TEST_P(TransposeTest, SwapsRowsAndColumns) {
  const Shape shape = GetParam();
  const int64_t size = shape.rows * shape.columns;
  const int64_t stride = shape.columns + shape.padding;
  std::vector<uint8_t> x(shape.offset + shape.rows * stride, 0xFF);
  std::vector<uint8_t> expected(size + 1, 0xFF);
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t c = 0; c < shape.columns; ++c) {
      const auto value = static_cast<uint8_t>((r * 131 + c * 7) % 255);
      x[shape.offset + r * stride + c] = value;
      expected[c * shape.rows + r] = value;
    }
  }
  const DeviceBuffer<uint8_t> device_x = ToDevice(x);
  DeviceBuffer<uint8_t> y = ToDevice(std::vector<uint8_t>(size + 1, 0xFF));
  const absl::Status status =
      LaunchTransposeFloat8({.y = y.data(),
                             .x = device_x.data() + shape.offset,
                             .x_row_stride = stride,
                             .rows = shape.rows,
                             .columns = shape.columns},
                            nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(ToHost(y), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, TransposeTest,
    testing::Values(Shape{1, 1, 0, 0}, Shape{7, 9, 0, 0}, Shape{16, 16, 0, 0},
                    Shape{16, 272, 16, 0}, Shape{128, 128, 0, 16},
                    Shape{129, 130, 3, 1}, Shape{1008, 144, 0, 0},
                    Shape{256, 1000, 0, 0}, Shape{1040, 2064, 32, 0}),
    [](const testing::TestParamInfo<Shape>& info) {
      return absl::StrCat(info.param.rows, "x", info.param.columns, "P",
                          info.param.padding, "O", info.param.offset);
    });

// Goal: a NaN reaches amax and the output instead of hiding.
TEST(QuantizeEdgeTest, ShowsNan) {
  DeviceBuffer<uint16_t> x = ToDevice(Bf16s{0x3F80, kNanBf16, 0xBF80});
  DeviceBuffer<uint8_t> y = ToDevice(std::vector<uint8_t>(3, 0));
  DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
  ASSERT_TRUE(LaunchQuantizeFloat8Bf16({.y = y.data(),
                                        .y_transposed = nullptr,
                                        .amax = amax.data(),
                                        .x = x.data(),
                                        .x_row_stride = 3,
                                        .rows = 1,
                                        .columns = 3,
                                        .scale = nullptr,
                                        .format = Float8Format::kE4m3},
                                       nullptr)
                  .ok());
  EXPECT_TRUE(std::isnan(ToHost(amax)[0]));
  const std::vector<uint8_t> bits = ToHost(y);
  EXPECT_EQ(DecodeFloat8(bits[0], Float8Format::kE4m3), 1.0f);
  EXPECT_TRUE(std::isnan(DecodeFloat8(bits[1], Float8Format::kE4m3)));
}

// Goal: with the scale chosen by an amax on the device, values and unit are
// those of Float8Scale() and Float8Unit() on a CPU, to the bit. Method: amaxes
// of all kinds; what is not finite makes every value NaN.
TEST(QuantizeEdgeTest, ChoosesTheScaleByAmax) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kColumns = 72;
  RandomNormals random;
  const Bf16s x = random.Bits(kRows * kColumns);
  const std::vector<float> values = FromBf16(x);
  DeviceBuffer<uint16_t> device_x = ToDevice(x);
  for (const Float8Format format : {Float8Format::kE4m3, Float8Format::kE5m2}) {
    for (const float amax :
         {3.7f, 0.0f, 1e-38f, 3e38f, 1.0f / 3.0f, kInfinity, kNan}) {
      SCOPED_TRACE(absl::StrCat("amax ", amax));
      std::vector<uint8_t> y(x.size()), y_transposed(x.size());
      QuantizeFloat8Reference({.y = y.data(),
                               .y_transposed = y_transposed.data(),
                               .amax = nullptr,
                               .x = values.data(),
                               .rows = kRows,
                               .columns = kColumns,
                               .scale = Float8Scale(amax, format),
                               .format = format});
      DeviceBuffer<uint8_t> device_y = ToDevice(std::vector<uint8_t>(x.size()));
      DeviceBuffer<uint8_t> device_transposed =
          ToDevice(std::vector<uint8_t>(x.size()));
      DeviceBuffer<float> device_amax = ToDevice(std::vector<float>{amax});
      DeviceBuffer<float> unit = PoisonedFloats(1);
      ASSERT_TRUE(
          LaunchQuantizeFloat8Bf16({.y = device_y.data(),
                                    .y_transposed = device_transposed.data(),
                                    .amax = nullptr,
                                    .x = device_x.data(),
                                    .x_row_stride = kColumns,
                                    .rows = kRows,
                                    .columns = kColumns,
                                    .scale = nullptr,
                                    .scale_of_amax = device_amax.data(),
                                    .unit = unit.data(),
                                    .format = format},
                                   nullptr)
              .ok());
      const float expected_unit = Float8Unit(amax, format);
      const float actual_unit = ToHost(unit)[0];
      if (std::isnan(expected_unit)) {
        EXPECT_TRUE(std::isnan(actual_unit));
        for (const uint8_t bits : ToHost(device_y)) {
          ASSERT_TRUE(std::isnan(DecodeFloat8(bits, format)));
        }
      } else {
        EXPECT_EQ(actual_unit, expected_unit);
        EXPECT_EQ(ToHost(device_y), y);
        EXPECT_EQ(ToHost(device_transposed), y_transposed);
      }
    }
  }
}

// Goal: amax is the largest magnitude inside the rows, for any shape at any
// address, also of what was there before; NaN shows. Method: the gaps between
// rows hold NaN; the largest value moves through the matrix.
TEST_P(QuantizeTest, FindsTheLargestMagnitude) {
  const Shape shape = GetParam();
  const int64_t size = shape.rows * shape.columns;
  const int64_t stride = shape.columns + shape.padding;
  RandomNormals random;
  const Bf16s x = random.Bits(size);
  for (const int64_t place : {int64_t{0}, size / 3, size - 1}) {
    Bf16s spread(shape.offset + shape.rows * stride, kNanBf16);
    float expected = 0.0f;
    for (int64_t i = 0; i < size; ++i) {
      const uint16_t value = i == place ? ToBf16(-9.5f) : x[i];
      expected = std::fmax(expected, std::fabs(FromBf16(value)));
      spread[shape.offset + i / shape.columns * stride + i % shape.columns] =
          value;
    }
    DeviceBuffer<uint16_t> device_x = ToDevice(spread);
    const auto find = [&](const DeviceBuffer<uint16_t>& from, float before) {
      DeviceBuffer<float> amax = ToDevice(std::vector<float>{before});
      const absl::Status status =
          LaunchAmaxBf16({.amax = amax.data(),
                          .x = from.data() + shape.offset,
                          .x_row_stride = stride,
                          .rows = shape.rows,
                          .columns = shape.columns},
                         nullptr);
      EXPECT_TRUE(status.ok()) << status;
      return ToHost(amax)[0];
    };
    EXPECT_EQ(find(device_x, 0.0f), expected);
    EXPECT_EQ(find(device_x, 100.0f), 100.0f);
    spread[shape.offset + place / shape.columns * stride +
           place % shape.columns] = kNanBf16;
    EXPECT_TRUE(std::isnan(find(ToDevice(spread), 0.0f)));
  }
}

TEST(QuantizeEdgeTest, RefusesWhatCannotBe) {
  auto refuse = [](QuantizeFloat8Bf16Args args) {
    EXPECT_EQ(LaunchQuantizeFloat8Bf16(args, nullptr).code(),
              absl::StatusCode::kInvalidArgument);
  };
  refuse({.x_row_stride = 8, .rows = -1, .columns = 8});
  refuse({.x_row_stride = 8, .rows = 1, .columns = 0});
  refuse({.x_row_stride = 7, .rows = 1, .columns = 8});
  float number = 1.0f;
  refuse({.x_row_stride = 8,
          .rows = 1,
          .columns = 8,
          .scale = &number,
          .scale_of_amax = &number});
  refuse({.amax = &number,
          .x_row_stride = 8,
          .rows = 1,
          .columns = 8,
          .scale_of_amax = &number});
  refuse({.x_row_stride = 8, .rows = 1, .columns = 8, .unit = &number});
  auto refuse_amax = [](AmaxBf16Args args) {
    EXPECT_EQ(LaunchAmaxBf16(args, nullptr).code(),
              absl::StatusCode::kInvalidArgument);
  };
  refuse_amax({.x_row_stride = 8, .rows = -1, .columns = 8});
  EXPECT_EQ(LaunchTransposeFloat8({.x_row_stride = 7, .rows = 1, .columns = 8},
                                  nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
  refuse_amax({.x_row_stride = 8, .rows = 1, .columns = 0});
  refuse_amax({.x_row_stride = 7, .rows = 1, .columns = 8});
  EXPECT_EQ(
      LaunchCastToBf16(
          {.num_elements = 8, .stochastic = true, .first_index = 4}, nullptr)
          .code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchCastToFloat({.num_elements = -1}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
