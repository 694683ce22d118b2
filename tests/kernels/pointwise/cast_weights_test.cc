#include "kernels/pointwise/cast_weights.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/cast.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

constexpr float kInfiniteWeight = std::numeric_limits<float>::infinity();

// The bits of Float8Scale()'s and Float8Unit()'s results are a CPU's.
struct CastWeight {
  std::vector<uint8_t> y;
  float unit;
};

CastWeight OnGpu(const std::vector<float>& x, int64_t offset,
                 const std::vector<float>& amaxes, int64_t stride) {
  std::vector<float> padded(offset, 0.0f);
  padded.insert(padded.end(), x.begin(), x.end());
  padded.push_back(kNan);  // Never read, and something to allocate.
  std::vector<float> apart(amaxes.size() * stride, 1e30f);
  for (size_t i = 0; i < amaxes.size(); ++i) apart[i * stride] = amaxes[i];
  const DeviceBuffer<float> device_x = ToDevice(padded);
  const DeviceBuffer<float> device_amaxes = ToDevice(apart);
  DeviceBuffer<uint8_t> y =
      ToDevice(std::vector<uint8_t>(x.size() + offset + 1, 0xFF));
  DeviceBuffer<float> unit = ToDevice(std::vector<float>{-1.0f});
  const absl::Status status =
      LaunchQuantizeWeight({.y = y.data() + offset,
                            .unit = unit.data(),
                            .x = device_x.data() + offset,
                            .num_elements = static_cast<int64_t>(x.size()),
                            .amaxes = device_amaxes.data(),
                            .num_amaxes = static_cast<int64_t>(amaxes.size()),
                            .amax_stride = stride},
                           nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return {.y = ToHost(y), .unit = ToHost(unit)[0]};
}

// Goal: weights become the bits that they are on a CPU, with the scale of the
// largest of several ranks' magnitudes, for any size at any address, and
// nothing around them is written. Method: QuantizeFloat8() with that scale.
TEST(CastWeightsTest, GivesTheBitsOfACpu) {
  RandomNormals random;
  for (const int64_t size : {0, 1, 5, 16, 4096, 4097, 100000}) {
    for (const int64_t offset : {0, 1, 16}) {
      for (const int num_ranks : {1, 3, 700}) {
        SCOPED_TRACE(absl::StrCat(size, " from ", offset, ", ", num_ranks));
        const std::vector<float> x = random.Floats(size);
        std::vector<float> amaxes(num_ranks, 0.5f);
        amaxes.back() = 4.25f;
        const CastWeight actual = OnGpu(x, offset, amaxes, 64);
        std::vector<uint8_t> expected(size + offset + 1, 0xFF);
        if (size > 0) {
          ASSERT_TRUE(
              QuantizeFloat8({.y = expected.data() + offset,
                              .y_transposed = nullptr,
                              .amax = nullptr,
                              .x = x.data(),
                              .rows = 1,
                              .columns = size,
                              .scale = Float8Scale(4.25f, Float8Format::kE4m3),
                              .format = Float8Format::kE4m3},
                             1)
                  .ok());
        }
        EXPECT_EQ(actual.y, expected);
        EXPECT_EQ(actual.unit, Float8Unit(4.25f, Float8Format::kE4m3));
      }
    }
  }
}

// Goal: the largest magnitude is that of a CPU, whatever was there before, and
// what is no number hides nowhere. Method: Amax(); one odd weight among many.
TEST(CastWeightsTest, FindsTheLargestMagnitude) {
  RandomNormals random;
  for (const int64_t size : {0, 1, 5, 4096, 4097, 100000}) {
    for (const int64_t offset : {0, 1}) {
      for (const float odd : {0.0f, -7.5f, kInfiniteWeight, kNan}) {
        for (const float before : {0.0f, 9.0f}) {
          SCOPED_TRACE(absl::StrCat(size, " from ", offset, ", ", odd));
          std::vector<float> x = random.Floats(size + offset + 1);
          x.back() = 1e30f;  // Never read.
          if (size > 0 && odd != 0.0f) x[offset + size / 2] = odd;
          float expected = before;
          ASSERT_TRUE(Amax({.amax = &expected,
                            .x = x.data() + offset,
                            .num_elements = size},
                           1)
                          .ok());
          const DeviceBuffer<float> device_x = ToDevice(x);
          DeviceBuffer<float> amax = ToDevice(std::vector<float>{before});
          ASSERT_TRUE(LaunchWeightAmax({.amax = amax.data(),
                                        .x = device_x.data() + offset,
                                        .num_elements = size},
                                       nullptr)
                          .ok());
          const float actual = ToHost(amax)[0];
          EXPECT_TRUE(actual == expected ||
                      (std::isnan(actual) && std::isnan(expected)))
              << actual << " instead of " << expected;
        }
      }
    }
  }
}

// Goal: an amax that is no number makes every weight one, and a rank that found
// it is enough.
TEST(CastWeightsTest, ShowsNanOfAnyRank) {
  for (const float odd : {kNan, kInfiniteWeight}) {
    const CastWeight cast = OnGpu({1.0f, -2.0f}, 0, {1.0f, odd, 2.0f}, 4);
    EXPECT_TRUE(std::isnan(cast.unit));
    for (const size_t i : {0, 1}) {
      EXPECT_TRUE(std::isnan(DecodeFloat8(cast.y[i], Float8Format::kE4m3)));
    }
  }
}

TEST(CastWeightsTest, RefusesBadSizes) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(LaunchWeightAmax({.num_elements = -1}, nullptr).code(), kInvalid);
  EXPECT_EQ(LaunchQuantizeWeight({.num_elements = -1, .num_amaxes = 1}, nullptr)
                .code(),
            kInvalid);
  EXPECT_EQ(LaunchQuantizeWeight({.num_elements = 1, .num_amaxes = 0}, nullptr)
                .code(),
            kInvalid);
}

}  // namespace
}  // namespace millrace
