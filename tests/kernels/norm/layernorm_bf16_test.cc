#include "kernels/norm/layernorm_bf16.h"

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/norm/layernorm.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

constexpr float kEpsilon = 1e-5f;
// Half a unit in the last place of bf16, 2^-8, and fp32 noise.
constexpr double kRounding = 0x1.02p-8;

struct Shape {
  int64_t num_tokens;
  int64_t hidden;
};

// Every way a row lies over threads, full and not, one row and many.
const std::vector<Shape> kShapes = {
    {1, 8},     {777, 8},    {33, 24},   {100, 64},   {65, 72},     {777, 128},
    {40, 256},  {7, 264},    {50, 512},  {9, 520},    {300, 768},   {33, 1024},
    {13, 1032}, {20, 2048},  {5, 2056},  {777, 4096}, {3, 4088},    {5, 4104},
    {11, 7168}, {400, 8192}, {2, 8200},  {6, 14336},  {300, 16384}, {3, 16392},
    {2, 32768}, {2, 40960},  {35, 65536}};

class LayerNormBf16Test : public testing::TestWithParam<Shape> {
 protected:
  const int64_t num_tokens_ = GetParam().num_tokens;
  const int64_t hidden_ = GetParam().hidden;
  const int64_t size_ = num_tokens_ * hidden_;
  RandomNormals random_;
};

// Goal: forward means what layernorm.h says and writes every element, also
// where outputs lie over inputs; a residual is the sum, rounded once. Method:
// outputs poisoned with NaN against the reference on the same bf16 inputs.
// Tolerance: one rounding of y to bf16; rstd is fp32 (rsqrt within 2 units,
// sums of up to 65536 squares in pairs).
TEST_P(LayerNormBf16Test, ForwardMatchesTheReference) {
  const Bf16s x = random_.Bits(size_);
  const Bf16s delta = random_.Bits(size_);
  const Bf16s weight = random_.Bits(hidden_);
  std::vector<float> sum(size_);
  for (int64_t i = 0; i < size_; ++i)
    sum[i] = FromBf16(x[i]) + FromBf16(delta[i]);
  const Bf16s bias = random_.Bits(hidden_);
  const DeviceBuffer<uint16_t> device_weight = ToDevice(weight),
                               device_bias = ToDevice(bias);
  const std::vector<float> wide_weight = FromBf16(weight),
                           wide_bias = FromBf16(bias);
  auto expect = [&](const Bf16s& y, const std::vector<float>& mean,
                    const std::vector<float>& rstd, const Bf16s& normalised,
                    const std::string& what) {
    const std::vector<float> wide = FromBf16(normalised);
    std::vector<float> expected_y(size_), expected_mean(num_tokens_),
        expected_rstd(num_tokens_);
    LayerNormForwardReference({.y = expected_y.data(),
                               .mean = expected_mean.data(),
                               .rstd = expected_rstd.data(),
                               .x = wide.data(),
                               .weight = wide_weight.data(),
                               .bias = wide_bias.data(),
                               .num_tokens = num_tokens_,
                               .hidden = hidden_,
                               .epsilon = kEpsilon});
    ExpectNear(FromBf16(y), expected_y, kRounding, 1e-5, "y " + what);
    ExpectNear(mean, expected_mean, 0, 2e-6, "mean " + what);
    ExpectNear(rstd, expected_rstd, 2e-6, 0, "rstd " + what);
  };

  for (const bool in_place : {false, true}) {
    const std::string what = in_place ? "in place" : "apart";
    DeviceBuffer<uint16_t> device_x = ToDevice(x);
    DeviceBuffer<uint16_t> y = PoisonedBf16(size_);
    DeviceBuffer<float> mean = PoisonedFloats(num_tokens_);
    DeviceBuffer<float> rstd = PoisonedFloats(num_tokens_);
    DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
    const absl::Status status =
        LaunchLayerNormForwardBf16({.y = in_place ? device_x.data() : y.data(),
                                    .mean = mean.data(),
                                    .rstd = rstd.data(),
                                    .x = device_x.data(),
                                    .weight = device_weight.data(),
                                    .bias = device_bias.data(),
                                    .num_tokens = num_tokens_,
                                    .hidden = hidden_,
                                    .epsilon = kEpsilon,
                                    .amax = in_place ? amax.data() : nullptr},
                                   nullptr);
    ASSERT_TRUE(status.ok()) << status;
    const Bf16s host_y = ToHost(in_place ? device_x : y);
    expect(host_y, ToHost(mean), ToHost(rstd), x, what);
    EXPECT_EQ(ToHost(amax)[0], in_place ? LargestMagnitude(host_y) : 0.0f);
  }
  for (const bool in_place : {false, true}) {
    const std::string what = in_place ? "of a sum in place" : "of a sum";
    DeviceBuffer<uint16_t> device_x = ToDevice(x);
    DeviceBuffer<uint16_t> device_delta = ToDevice(delta);
    DeviceBuffer<uint16_t> y = PoisonedBf16(size_);
    DeviceBuffer<uint16_t> residual = PoisonedBf16(size_);
    DeviceBuffer<float> mean = PoisonedFloats(num_tokens_);
    DeviceBuffer<float> rstd = PoisonedFloats(num_tokens_);
    DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
    const absl::Status status = LaunchResidualLayerNormForwardBf16(
        {.residual = in_place ? device_x.data() : residual.data(),
         .y = in_place ? device_delta.data() : y.data(),
         .mean = mean.data(),
         .rstd = rstd.data(),
         .x = device_x.data(),
         .delta = device_delta.data(),
         .weight = device_weight.data(),
         .bias = device_bias.data(),
         .num_tokens = num_tokens_,
         .hidden = hidden_,
         .epsilon = kEpsilon,
         .amax = in_place ? amax.data() : nullptr},
        nullptr);
    ASSERT_TRUE(status.ok()) << status;
    const Bf16s host_residual = ToHost(in_place ? device_x : residual);
    EXPECT_EQ(host_residual, ToBf16(sum)) << what;
    const Bf16s host_y = ToHost(in_place ? device_delta : y);
    expect(host_y, ToHost(mean), ToHost(rstd), host_residual, what);
    EXPECT_EQ(ToHost(amax)[0], in_place ? LargestMagnitude(host_y) : 0.0f);
  }
}

// Goal: backward means what layernorm.h says, with and without a residual
// gradient, with d_x apart from it or over it, d_weight set or added to, and
// equal bits on a second run, which also finds the largest |d_x|. Tolerance:
// one rounding of d_x to bf16 beside fp32 noise of its terms, of size 10 at
// most; d_weight is a sum of up to 777 fp32 terms of size 10.
TEST_P(LayerNormBf16Test, BackwardMatchesTheReference) {
  const Bf16s x = random_.Bits(size_);
  const Bf16s d_y = random_.Bits(size_);
  const Bf16s d_residual = random_.Bits(size_);
  const Bf16s weight = random_.Bits(hidden_);
  const std::vector<float> before = random_.Floats(hidden_);
  const std::vector<float> bias_before = random_.Floats(hidden_);
  const std::vector<float> wide_x = FromBf16(x), wide_d_y = FromBf16(d_y),
                           wide_d_residual = FromBf16(d_residual),
                           wide_weight = FromBf16(weight);
  std::vector<float> mean(num_tokens_), rstd(num_tokens_), unused(size_);
  LayerNormForwardReference({.y = unused.data(),
                             .mean = mean.data(),
                             .rstd = rstd.data(),
                             .x = wide_x.data(),
                             .weight = wide_weight.data(),
                             .bias = wide_weight.data(),
                             .num_tokens = num_tokens_,
                             .hidden = hidden_,
                             .epsilon = kEpsilon});
  const DeviceBuffer<uint16_t> device_x = ToDevice(x),
                               device_d_y = ToDevice(d_y),
                               device_weight = ToDevice(weight);
  const DeviceBuffer<float> device_mean = ToDevice(mean),
                            device_rstd = ToDevice(rstd);

  for (const bool with_residual : {true, false}) {
    for (const bool accumulate : {false, true}) {
      std::vector<float> d_x(size_), d_weight = before, d_bias = bias_before;
      LayerNormBackwardReference(
          {.d_x = d_x.data(),
           .d_weight = d_weight.data(),
           .d_bias = d_bias.data(),
           .d_y = wide_d_y.data(),
           .x = wide_x.data(),
           .mean = mean.data(),
           .rstd = rstd.data(),
           .weight = wide_weight.data(),
           .d_residual = with_residual ? wide_d_residual.data() : nullptr,
           .num_tokens = num_tokens_,
           .hidden = hidden_,
           .accumulate = accumulate});
      auto run = [&](bool in_place, bool with_amax) {
        DeviceBuffer<uint16_t> device_d_residual = ToDevice(d_residual);
        DeviceBuffer<uint16_t> device_d_x = PoisonedBf16(size_);
        DeviceBuffer<float> device_d_weight =
            accumulate ? ToDevice(before) : PoisonedFloats(hidden_);
        DeviceBuffer<float> device_d_bias =
            accumulate ? ToDevice(bias_before) : PoisonedFloats(hidden_);
        DeviceBuffer<float> workspace = PoisonedFloats(
            LayerNormBackwardBf16WorkspaceBytes(num_tokens_, hidden_) / 4);
        DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
        const absl::Status status = LaunchLayerNormBackwardBf16(
            {.d_x = in_place ? device_d_residual.data() : device_d_x.data(),
             .d_weight = device_d_weight.data(),
             .d_bias = device_d_bias.data(),
             .d_y = device_d_y.data(),
             .x = device_x.data(),
             .mean = device_mean.data(),
             .rstd = device_rstd.data(),
             .weight = device_weight.data(),
             .d_residual = with_residual ? device_d_residual.data() : nullptr,
             .workspace = workspace.data(),
             .num_tokens = num_tokens_,
             .hidden = hidden_,
             .accumulate = accumulate,
             .amax = with_amax ? amax.data() : nullptr},
            nullptr);
        EXPECT_TRUE(status.ok()) << status;
        const Bf16s host_d_x =
            ToHost(in_place ? device_d_residual : device_d_x);
        EXPECT_EQ(ToHost(amax)[0],
                  with_amax ? LargestMagnitude(host_d_x) : 0.0f);
        return std::tuple{host_d_x, ToHost(device_d_weight),
                          ToHost(device_d_bias)};
      };
      SCOPED_TRACE(absl::StrCat("residual ", with_residual, ", accumulate ",
                                accumulate));
      const auto first = run(false, false);
      ExpectNear(FromBf16(std::get<0>(first)), d_x, kRounding, 2e-5, "d_x");
      ExpectNear(std::get<1>(first), d_weight, 1e-5, 1e-4, "d_weight");
      ExpectNear(std::get<2>(first), d_bias, 1e-5, 1e-4, "d_bias");
      EXPECT_EQ(run(with_residual, true), first) << "the second run differs";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LayerNormBf16Test, testing::ValuesIn(kShapes),
                         [](const testing::TestParamInfo<Shape>& info) {
                           return absl::StrCat(info.param.num_tokens, "x",
                                               info.param.hidden);
                         });

// Goal: no tokens launch nothing but still set a weight gradient.
TEST(LayerNormBf16ShapeTest, NoTokens) {
  EXPECT_TRUE(
      LaunchLayerNormForwardBf16({.num_tokens = 0, .hidden = 64}, nullptr)
          .ok());
  EXPECT_TRUE(LaunchResidualLayerNormForwardBf16(
                  {.num_tokens = 0, .hidden = 64}, nullptr)
                  .ok());
  DeviceBuffer<float> d_weight = PoisonedFloats(64);
  DeviceBuffer<float> d_bias = PoisonedFloats(64);
  LayerNormBackwardBf16Args args = {.d_weight = d_weight.data(),
                                    .d_bias = d_bias.data(),
                                    .num_tokens = 0,
                                    .hidden = 64};
  EXPECT_TRUE(LaunchLayerNormBackwardBf16(args, nullptr).ok());
  EXPECT_EQ(ToHost(d_weight), std::vector<float>(64, 0.0f));
  EXPECT_EQ(ToHost(d_bias), std::vector<float>(64, 0.0f));
  const std::vector<float> before(64, 3.0f);
  d_weight = ToDevice(before);
  args.d_weight = d_weight.data();
  d_bias = ToDevice(before);
  args.d_bias = d_bias.data();
  args.accumulate = true;
  EXPECT_TRUE(LaunchLayerNormBackwardBf16(args, nullptr).ok());
  EXPECT_EQ(ToHost(d_weight), before);
  EXPECT_EQ(ToHost(d_bias), before);
}

// Goal: what the kernels cannot do is refused by name, before any launch.
TEST(LayerNormBf16ShapeTest, RefusesWhatItCannotDo) {
  for (const int64_t hidden : {0, 4, 12, 4095, 65544}) {
    const absl::Status status = LaunchLayerNormForwardBf16(
        {.num_tokens = 3, .hidden = hidden}, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().find(absl::StrCat("3 rows of ", hidden)) !=
                absl::string_view::npos)
        << status;
    EXPECT_EQ(LayerNormBackwardBf16WorkspaceBytes(3, hidden), 0);
  }
  for (const int64_t num_tokens : {int64_t{-1}, int64_t{1} << 31}) {
    EXPECT_EQ(LaunchResidualLayerNormForwardBf16(
                  {.num_tokens = num_tokens, .hidden = 8}, nullptr)
                  .code(),
              absl::StatusCode::kInvalidArgument);
  }
  auto* odd = reinterpret_cast<void*>(uintptr_t{8});
  EXPECT_EQ(LaunchLayerNormBackwardBf16(
                {.d_x = odd, .num_tokens = 1, .hidden = 8}, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
