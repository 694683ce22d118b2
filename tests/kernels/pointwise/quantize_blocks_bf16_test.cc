#include "kernels/pointwise/quantize_blocks_bf16.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// Values of many magnitudes in bf16, one square of zeros and one NaN.
Bf16s UnevenBf16s(int64_t rows, int64_t columns) {
  RandomNormals random;
  std::vector<float> values = random.Floats(rows * columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      float& value = values[r * columns + c];
      value = std::ldexp(value, static_cast<int>(r % 23 - c % 17));
      if (r < kQuantizeBlock && c < kQuantizeBlock) value = 0;
    }
  }
  values.back() = kNan;
  return ToBf16(values);
}

// The bits, so that NaN equals itself.
std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), 4 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) bits[i] = 0x7FFFFFFF;
  }
  return bits;
}

// NaN has either sign.
std::vector<uint8_t> WithoutSignOfNan(std::vector<uint8_t> codes) {
  for (uint8_t& code : codes) {
    if ((code & 0x7F) == 0x7F) code = 0x7F;
  }
  return codes;
}

// Goal: copies and units have the bits of quantize_blocks.h, with one copy and
// with both. Method: against the reference on the same bf16 numbers.
TEST(QuantizeBlocksBf16Test, GivesTheBitsOfTheReference) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{128, 128}, {256, 384}, {1152, 640}}) {
    const int64_t size = rows * columns;
    const Bf16s x = UnevenBf16s(rows, columns);
    const std::vector<float> wide = FromBf16(x);
    std::vector<uint8_t> y(size), turned(size);
    std::vector<float> units(size / kQuantizeBlock);
    std::vector<float> turned_units(size / kQuantizeBlock);
    QuantizeBlocksReference({.y = y.data(),
                             .units = units.data(),
                             .y_transposed = turned.data(),
                             .units_transposed = turned_units.data(),
                             .x = wide.data(),
                             .rows = rows,
                             .columns = columns});
    const DeviceBuffer<uint16_t> device_x = ToDevice(x);
    for (const int copies : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(rows, " x ", columns, " copies ", copies));
      const bool has_rows = copies % 2 == 1, has_turned = copies >= 2;
      DeviceBuffer<uint8_t> device_y =
          ToDevice(std::vector<uint8_t>(size, 0x55));
      DeviceBuffer<uint8_t> device_turned =
          ToDevice(std::vector<uint8_t>(size, 0x55));
      DeviceBuffer<float> device_units = PoisonedFloats(size / kQuantizeBlock);
      DeviceBuffer<float> device_turned_units =
          PoisonedFloats(size / kQuantizeBlock);
      const absl::Status status = LaunchQuantizeBlocksBf16(
          {.y = has_rows ? device_y.data() : nullptr,
           .units = has_rows ? device_units.data() : nullptr,
           .y_transposed = has_turned ? device_turned.data() : nullptr,
           .units_transposed =
               has_turned ? device_turned_units.data() : nullptr,
           .x = device_x.data(),
           .rows = rows,
           .columns = columns},
          nullptr);
      ASSERT_TRUE(status.ok()) << status;
      if (has_rows) {
        EXPECT_TRUE(WithoutSignOfNan(ToHost(device_y)) == WithoutSignOfNan(y));
        EXPECT_TRUE(BitsOf(ToHost(device_units)) == BitsOf(units));
      }
      if (has_turned) {
        EXPECT_TRUE(WithoutSignOfNan(ToHost(device_turned)) ==
                    WithoutSignOfNan(turned));
        EXPECT_TRUE(BitsOf(ToHost(device_turned_units)) ==
                    BitsOf(turned_units));
      }
    }
  }
}

// Goal: the same of squares.
TEST(QuantizeSquaresBf16Test, GivesTheBitsOfTheReference) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{128, 128}, {256, 384}, {1152, 640}}) {
    SCOPED_TRACE(absl::StrCat(rows, " x ", columns));
    const int64_t size = rows * columns;
    const int64_t num_units = size / kQuantizeBlock / kQuantizeBlock;
    const Bf16s x = UnevenBf16s(rows, columns);
    const std::vector<float> wide = FromBf16(x);
    std::vector<uint8_t> y(size), turned(size);
    std::vector<float> units(num_units);
    QuantizeSquaresReference({.y = y.data(),
                              .y_transposed = turned.data(),
                              .units = units.data(),
                              .x = wide.data(),
                              .rows = rows,
                              .columns = columns});
    const DeviceBuffer<uint16_t> device_x = ToDevice(x);
    DeviceBuffer<uint8_t> device_y = ToDevice(std::vector<uint8_t>(size, 0x55));
    DeviceBuffer<uint8_t> device_turned =
        ToDevice(std::vector<uint8_t>(size, 0x55));
    DeviceBuffer<float> device_units = PoisonedFloats(num_units);
    const absl::Status status =
        LaunchQuantizeSquaresBf16({.y = device_y.data(),
                                   .y_transposed = device_turned.data(),
                                   .units = device_units.data(),
                                   .x = device_x.data(),
                                   .rows = rows,
                                   .columns = columns},
                                  nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(WithoutSignOfNan(ToHost(device_y)) == WithoutSignOfNan(y));
    EXPECT_TRUE(WithoutSignOfNan(ToHost(device_turned)) ==
                WithoutSignOfNan(turned));
    EXPECT_TRUE(BitsOf(ToHost(device_units)) == BitsOf(units));
  }
}

// Goal: bad shapes and addresses are refused by name, before any launch.
TEST(QuantizeBlocksBf16Test, RefusesWhatItCannotDo) {
  const absl::Status shape =
      LaunchQuantizeBlocksBf16({.y = nullptr,
                                .units = nullptr,
                                .y_transposed = nullptr,
                                .units_transposed = nullptr,
                                .x = nullptr,
                                .rows = 128,
                                .columns = 100},
                               nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(shape)) << shape;
  const absl::Status address = LaunchQuantizeSquaresBf16(
      {.y = nullptr,
       .y_transposed = nullptr,
       .units = nullptr,
       .x = reinterpret_cast<const void*>(uintptr_t{8}),
       .rows = 128,
       .columns = 128},
      nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(address)) << address;
}

}  // namespace
}  // namespace millrace
