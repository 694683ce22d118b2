#include "kernels/pointwise/cast.h"

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
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

// Goal: the scale takes the largest magnitude to the end of the format's range,
// and the unit takes it back, whatever the magnitude. Method: all powers of
// two, then what has no scale.
TEST(Float8ScaleTest, TakesAmaxToTheEndOfTheRange) {
  for (const Float8Format format : {Float8Format::kE4m3, Float8Format::kE5m2}) {
    const float largest = Float8Max(format);
    EXPECT_EQ(DecodeFloat8(EncodeFloat8(1e30f, format), format), largest);
    for (int exponent = -149; exponent < 128; ++exponent) {
      for (const float mantissa : {1.0f, 1.703125f}) {
        const float amax = std::ldexp(mantissa, exponent);
        const float scale = Float8Scale(amax, format);
        const float unit = Float8Unit(amax, format);
        ASSERT_TRUE(std::isnormal(scale)) << amax;
        ASSERT_TRUE(std::isnormal(unit)) << amax;
        EXPECT_NEAR(double{scale} * unit, 1.0, 1e-6) << amax;
        if (amax >= kFloat8LeastAmax) {
          EXPECT_EQ(scale, largest / amax);
          EXPECT_EQ(unit, amax / largest);
          EXPECT_EQ(DecodeFloat8(EncodeFloat8(amax * scale, format), format),
                    largest);
        }
      }
    }
    EXPECT_EQ(Float8Scale(0.0f, format), 1.0f);
    EXPECT_EQ(Float8Unit(0.0f, format), 1.0f);
    for (const float amax : {std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()}) {
      EXPECT_TRUE(std::isnan(Float8Scale(amax, format)));
      EXPECT_TRUE(std::isnan(Float8Unit(amax, format)));
    }
  }
}

// Magnitudes over the whole range of fp32, the middles between neighbours of
// the format and the numbers beside them, and what is not finite.
std::vector<float> ValuesToEncode(Float8Format format) {
  RandomFloats random(3);
  std::vector<float> values = random(3000);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i % 270) - 148);
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int last = EncodeFloat8(kInfinity, format);
  for (int bits = 0; bits < last; ++bits) {
    const float low = DecodeFloat8(static_cast<uint8_t>(bits), format);
    const float high = DecodeFloat8(static_cast<uint8_t>(bits + 1), format);
    const float middle = 0.5f * (low + high);
    for (const float value : {low, middle, std::nextafter(middle, 0.0f),
                              std::nextafter(middle, kInfinity)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (const float value :
       {Float8Max(format), std::nextafter(Float8Max(format), 0.0f), kInfinity,
        -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    values.push_back(value);
  }
  return values;
}

// Goal: on every level the fast loop yields EncodeFloat8()'s bits, and decoding
// yields DecodeFloat8()'s values.
TEST(Float8Test, RunsAreTheirElements) {
  for (const Float8Format format : {Float8Format::kE4m3, Float8Format::kE5m2}) {
    const std::vector<float> x = ValuesToEncode(format);
    const auto size = static_cast<int64_t>(x.size());
    ForEachCpuLevel([&] {
      for (const float scale : {1.0f, 0.37f}) {
        std::vector<uint8_t> y(size);
        ASSERT_TRUE(QuantizeFloat8({.y = y.data(),
                                    .y_transposed = nullptr,
                                    .amax = nullptr,
                                    .x = x.data(),
                                    .rows = 1,
                                    .columns = size,
                                    .scale = scale,
                                    .format = format},
                                   2)
                        .ok());
        for (int64_t i = 0; i < size; ++i) {
          const uint8_t expected = EncodeFloat8(x[i] * scale, format);
          ASSERT_EQ(y[i], expected) << x[i] << " * " << scale;
        }
      }
    });
  }
  for (const Float8Format format : {Float8Format::kE4m3, Float8Format::kE5m2}) {
    constexpr int64_t kSize = 100001;
    std::vector<uint8_t> x(kSize);
    for (int64_t i = 0; i < kSize; ++i) x[i] = static_cast<uint8_t>(7 * i);
    for (const int num_threads : {1, 3}) {
      std::vector<float> y = Poisoned(kSize);
      ASSERT_TRUE(DecodeFloat8({.y = y.data(),
                                .x = x.data(),
                                .num_elements = kSize,
                                .unit = 0.3f,
                                .format = format},
                               num_threads)
                      .ok());
      for (int64_t i = 0; i < kSize; ++i) {
        const float expected = DecodeFloat8(x[i], format) * 0.3f;
        ASSERT_TRUE(y[i] == expected ||
                    (std::isnan(y[i]) && std::isnan(expected)));
      }
    }
  }
}

struct QuantizeOutputs {
  std::vector<uint8_t> y, y_transposed;
  float amax;
};

// Goal: rows, transpose and amax are the reference's, each also without the
// others, on every level and any number of threads. Method: shapes around the
// tile of 64 x 64, large enough for several threads; amax starts below and
// above what it will meet.
TEST(QuantizeTest, GivesTheBitsOfTheReference) {
  struct Shape {
    int64_t rows, columns;
  };
  for (const Shape shape : {Shape{0, 5}, Shape{1, 1}, Shape{63, 65},
                            Shape{64, 64}, Shape{300, 257}, Shape{3, 40000}}) {
    const int64_t size = shape.rows * shape.columns;
    const std::vector<float> x = RandomFloats(4)(size, 300.0f);
    for (const Float8Format format :
         {Float8Format::kE4m3, Float8Format::kE5m2}) {
      for (const float amax_before : {0.0f, 1e6f}) {
        const auto run = [&](bool rows, bool columns, const auto& quantize) {
          QuantizeOutputs out = {std::vector<uint8_t>(size + 1, 0xFF),
                                 std::vector<uint8_t>(size + 1, 0xFF),
                                 amax_before};
          quantize({.y = rows ? out.y.data() : nullptr,
                    .y_transposed = columns ? out.y_transposed.data() : nullptr,
                    .amax = &out.amax,
                    .x = x.data(),
                    .rows = shape.rows,
                    .columns = shape.columns,
                    .scale = 1.7f,
                    .format = format});
          return out;
        };
        for (const auto& [rows, columns] :
             {std::pair(true, true), std::pair(true, false),
              std::pair(false, true), std::pair(false, false)}) {
          const QuantizeOutputs expected =
              run(rows, columns, QuantizeFloat8Reference);
          ForEachCpuLevel([&, rows = rows, columns = columns] {
            for (const int num_threads : {1, 2, 5}) {
              const QuantizeOutputs actual =
                  run(rows, columns, [&](const QuantizeFloat8Args& args) {
                    ASSERT_TRUE(QuantizeFloat8(args, num_threads).ok());
                  });
              EXPECT_EQ(actual.y, expected.y);
              EXPECT_EQ(actual.y_transposed, expected.y_transposed);
              EXPECT_EQ(actual.amax, expected.amax);
            }
          });
        }
      }
    }
  }
  const QuantizeFloat8Args bad = {.rows = -1, .columns = 1};
  EXPECT_TRUE(absl::IsInvalidArgument(QuantizeFloat8(bad, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(QuantizeFloat8({.columns = 0}, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(QuantizeFloat8({.columns = 1}, 0)));
}

// Goal: every byte moves to its place, on any number of threads, and nothing
// around them is written.
TEST(TransposeFloat8Test, SwapsRowsAndColumns) {
  struct Shape {
    int64_t rows, columns;
  };
  for (const Shape shape : {Shape{0, 3}, Shape{1, 1}, Shape{65, 63},
                            Shape{128, 64}, Shape{200, 513}}) {
    const int64_t size = shape.rows * shape.columns;
    std::vector<uint8_t> x(size);
    for (int64_t i = 0; i < size; ++i) x[i] = static_cast<uint8_t>(i * 7 % 251);
    for (const int num_threads : {1, 4}) {
      std::vector<uint8_t> y(size + 1, 0xFF);
      ASSERT_TRUE(TransposeFloat8({.y = y.data(),
                                   .x = x.data(),
                                   .rows = shape.rows,
                                   .columns = shape.columns},
                                  num_threads)
                      .ok());
      for (int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(y[i % shape.columns * shape.rows + i / shape.columns], x[i]);
      }
      EXPECT_EQ(y[size], 0xFF);
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(TransposeFloat8({.columns = 0}, 1)));
}

// Goal: amax is the largest magnitude of any run, also of what was there
// before, and a NaN anywhere shows.
TEST(AmaxTest, FindsTheLargestMagnitude) {
  for (const int64_t size : {0, 1, 15, 16, 17, 100, 70001}) {
    std::vector<float> x = RandomFloats(5)(size);
    if (size > 0) x[size / 2] = -1.5f;
    ForEachCpuLevel([&] {
      for (const int num_threads : {1, 3}) {
        for (const float before : {0.0f, 2.0f}) {
          float amax = before;
          ASSERT_TRUE(Amax({.amax = &amax, .x = x.data(), .num_elements = size},
                           num_threads)
                          .ok());
          EXPECT_EQ(amax, before == 0.0f && size > 0 ? 1.5f : before);
        }
        if (size == 0) continue;
        std::vector<float> with_nan = x;
        with_nan[size / 3] = -std::numeric_limits<float>::quiet_NaN();
        float amax = 0.0f;
        ASSERT_TRUE(
            Amax({.amax = &amax, .x = with_nan.data(), .num_elements = size},
                 num_threads)
                .ok());
        EXPECT_TRUE(std::isnan(amax));
        float reference = 0.0f;
        QuantizeFloat8Reference({.amax = &reference,
                                 .x = with_nan.data(),
                                 .rows = 1,
                                 .columns = size,
                                 .scale = 1.0f});
        EXPECT_TRUE(std::isnan(reference));
      }
    });
  }
}

}  // namespace
}  // namespace millrace
