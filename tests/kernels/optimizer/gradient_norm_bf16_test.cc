#include "kernels/optimizer/gradient_norm_bf16.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

void Add(const SquaredNormBf16Args& args) {
  const absl::Status status = LaunchSquaredNormBf16(args, nullptr);
  ASSERT_TRUE(status.ok()) << status;
}

// Goal: any number of elements at any address is summed once, into a sum that
// several buffers share, with equal bits every time. Method: odd sizes and
// addresses of both types against fp64; fp32 sums of thirty-two squares are
// good to 1e-6 of the whole.
TEST(SquaredNormBf16Test, SumsBuffersOfAnySizeAndAddress) {
  RandomNormals random;
  constexpr int64_t kMost = (1 << 24) + 77;  // More than one round of blocks.
  const std::vector<float> x = FromBf16(random.Bits(kMost));
  DeviceBuffer<float> wide = ToDevice(x);
  DeviceBuffer<uint16_t> narrow = ToDevice(ToBf16(x));
  DeviceBuffer<double> sum = ToDevice(std::vector<double>{kNan});
  DeviceBuffer<uint8_t> workspace =
      ToDevice(std::vector<uint8_t>(SquaredNormBf16WorkspaceBytes(), 0));
  for (const int64_t size :
       {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{8}, int64_t{23},
        int64_t{4096}, int64_t{100003}, kMost - 9}) {
    for (const int64_t offset : {0, 1, 3, 7, 8}) {
      SCOPED_TRACE(absl::StrCat(size, " from ", offset));
      double expected = 0.0;
      for (int64_t i = 0; i < size; ++i) {
        expected += double{x[offset + i]} * x[offset + i];
      }
      auto run = [&] {
        Add({.sum = sum.data(),
             .x = wide.data() + offset,
             .num_elements = size,
             .is_bf16 = false,
             .overwrite = true,
             .workspace = workspace.data()});
        Add({.sum = sum.data(),
             .x = narrow.data() + offset,
             .num_elements = size,
             .is_bf16 = true,
             .overwrite = false,
             .share = 0.25,
             .workspace = workspace.data()});
        return ToHost(sum)[0];
      };
      const double actual = run();
      EXPECT_NEAR(actual, 1.25 * expected, 1e-6 * expected);
      EXPECT_EQ(run(), actual) << "the second run differs";
    }
  }
}

// Goal: norm, clip factor and the word to skip follow from the sum, also where
// it or the loss is not finite.
TEST(GradientNormBf16Test, TurnsTheSumIntoClipFactorAndSkip) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  auto run = [](double sum, double max_norm, const double* loss = nullptr,
                const double* scale = nullptr) {
    DeviceBuffer<double> device_sum = ToDevice(std::vector<double>{sum});
    DeviceBuffer<float> out = PoisonedFloats(2);
    DeviceBuffer<int32_t> skip = ToDevice(std::vector<int32_t>{-1});
    const absl::Status status =
        LaunchGradientNormBf16({.norm = out.data(),
                                .clip_factor = out.data() + 1,
                                .skip = skip.data(),
                                .sum = device_sum.data(),
                                .max_norm = max_norm,
                                .loss = loss,
                                .scale = scale},
                               nullptr);
    EXPECT_TRUE(status.ok()) << status;
    std::vector<float> result = ToHost(out);
    result.push_back(static_cast<float>(ToHost(skip)[0]));
    return result;
  };
  EXPECT_EQ(run(0.25, 1.0), (std::vector<float>{0.5f, 1.0f, 0.0f}));
  EXPECT_EQ(run(0.0, 1.0), (std::vector<float>{0.0f, 1.0f, 0.0f}));
  EXPECT_EQ(run(1e30, kInfinity), (std::vector<float>{1e15f, 1.0f, 0.0f}));
  EXPECT_EQ(
      run(16.0, 1.0),
      (std::vector<float>{4.0f, static_cast<float>(1.0 / (4.0 + 1e-6)), 0.0f}));
  // Gradients of norm 0.5 that lack the factor 4: their norm is 2, and they
  // are scaled down to 1.
  DeviceBuffer<double> scale = ToDevice(std::vector<double>{4.0});
  EXPECT_EQ(
      run(0.25, 1.0, nullptr, scale.data()),
      (std::vector<float>{2.0f, static_cast<float>(4.0 / (2.0 + 1e-6)), 0.0f}));
  EXPECT_EQ(run(0.25, kInfinity, nullptr, scale.data()),
            (std::vector<float>{2.0f, 4.0f, 0.0f}));
  EXPECT_EQ(run(kInfinity, 1.0)[1], 0.0f);
  EXPECT_EQ(run(kInfinity, 1.0)[2], 1.0f);
  EXPECT_TRUE(std::isnan(run(std::nan(""), 1.0)[0]));
  EXPECT_EQ(run(std::nan(""), 1.0)[2], 1.0f);
  for (const double loss : {2.5, kInfinity, std::nan("")}) {
    DeviceBuffer<double> device_loss = ToDevice(std::vector<double>{loss});
    const float good = std::isfinite(loss) ? 1.0f : 0.0f;
    EXPECT_EQ(run(0.25, 1.0, device_loss.data()),
              (std::vector<float>{0.5f, good, 1.0f - good}));
  }
}

// Goal: after a norm or a loss that is not finite, all are skipped until the
// host clears the word. Method: good ones before, in between and after.
TEST(GradientNormBf16Test, HoldsUntilCleared) {
  DeviceBuffer<int32_t> hold = ToDevice(std::vector<int32_t>{0});
  DeviceBuffer<int32_t> skip = ToDevice(std::vector<int32_t>{-1});
  DeviceBuffer<float> clip_factor = PoisonedFloats(1);
  auto is_skipped = [&](double sum, double loss) {
    DeviceBuffer<double> device_sum = ToDevice(std::vector<double>{sum});
    DeviceBuffer<double> device_loss = ToDevice(std::vector<double>{loss});
    const absl::Status status =
        LaunchGradientNormBf16({.norm = nullptr,
                                .clip_factor = clip_factor.data(),
                                .skip = skip.data(),
                                .sum = device_sum.data(),
                                .max_norm = 1.0,
                                .loss = device_loss.data(),
                                .hold = hold.data()},
                               nullptr);
    EXPECT_TRUE(status.ok()) << status;
    const bool skipped = ToHost(skip)[0] != 0;
    EXPECT_EQ(ToHost(clip_factor)[0], skipped ? 0.0f : 1.0f);
    return skipped;
  };
  EXPECT_FALSE(is_skipped(0.25, 2.0));
  for (const bool of_loss : {false, true}) {
    EXPECT_TRUE(of_loss ? is_skipped(0.25, std::nan(""))
                        : is_skipped(std::nan(""), 2.0));
    EXPECT_TRUE(is_skipped(0.25, 2.0));
    EXPECT_TRUE(is_skipped(0.25, 2.0));
    hold = ToDevice(std::vector<int32_t>{0});
    EXPECT_FALSE(is_skipped(0.25, 2.0));
  }
}

TEST(GradientNormBf16Test, RefusesWhatCannotBe) {
  EXPECT_EQ(LaunchGradientNormBf16({.max_norm = 0.0}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchSquaredNormBf16({.num_elements = -1}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchSquaredNormBf16({.x = reinterpret_cast<const void*>(6),
                                   .num_elements = 1,
                                   .is_bf16 = false},
                                  nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
