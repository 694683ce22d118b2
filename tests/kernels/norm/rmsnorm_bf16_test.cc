#include "kernels/norm/rmsnorm_bf16.h"

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/norm/rmsnorm.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

constexpr float kRmsNormEpsilon = 1e-5f;
// Half a unit in the last place of bf16, 2^-8, and fp32 noise.
constexpr double kRmsNormRounding = 0x1.02p-8;

struct RmsNormShape {
  int64_t num_tokens;
  int64_t hidden;
};

// Every way a row lies over threads, full and not, one row and many.
const std::vector<RmsNormShape> kRmsNormShapes = {
    {1, 8},     {777, 8},    {33, 24},   {100, 64},   {65, 72},     {777, 128},
    {40, 256},  {7, 264},    {50, 512},  {9, 520},    {300, 768},   {33, 1024},
    {13, 1032}, {20, 2048},  {5, 2056},  {777, 4096}, {3, 4088},    {5, 4104},
    {11, 7168}, {400, 8192}, {2, 8200},  {6, 14336},  {300, 16384}, {3, 16392},
    {2, 32768}, {2, 40960},  {35, 65536}};

// Shapes, and whether weights are fp32.
class RmsNormBf16Test
    : public testing::TestWithParam<std::tuple<RmsNormShape, bool>> {
 protected:
  RmsNormBf16Test()
      : weight_(random_.Floats(hidden_)),
        bf16_weight_(ToDevice(ToBf16(weight_))),
        float_weight_(ToDevice(weight_)) {
    if (!fp32_weight_) weight_ = FromBf16(ToBf16(weight_));
  }

  const void* device_weight() const {
    return fp32_weight_ ? static_cast<const void*>(float_weight_.data())
                        : bf16_weight_.data();
  }

  const int64_t num_tokens_ = std::get<0>(GetParam()).num_tokens;
  const int64_t hidden_ = std::get<0>(GetParam()).hidden;
  const bool fp32_weight_ = std::get<1>(GetParam());
  const int64_t size_ = num_tokens_ * hidden_;
  RandomNormals random_;
  std::vector<float> weight_;  // As the kernel reads them.
  const DeviceBuffer<uint16_t> bf16_weight_;
  const DeviceBuffer<float> float_weight_;
};

// Goal: forward means what rmsnorm.h says and writes every element, also where
// outputs lie over inputs; a residual is the sum, rounded once; amax is the
// largest |y|. Method: outputs
// poisoned with NaN against the reference on the same bf16 inputs. Tolerance:
// one rounding of y to bf16; rstd is fp32 (rsqrt within 2 units, sums of up to
// 65536 squares in pairs).
TEST_P(RmsNormBf16Test, ForwardMatchesTheReference) {
  const Bf16s x = random_.Bits(size_);
  const Bf16s delta = random_.Bits(size_);
  std::vector<float> sum(size_);
  for (int64_t i = 0; i < size_; ++i)
    sum[i] = FromBf16(x[i]) + FromBf16(delta[i]);
  auto expect = [&](const Bf16s& y, const std::vector<float>& rstd,
                    const Bf16s& normalised, const std::string& what) {
    const std::vector<float> wide = FromBf16(normalised);
    std::vector<float> expected_y(size_), expected_rstd(num_tokens_);
    RmsNormForwardReference({.y = expected_y.data(),
                             .rstd = expected_rstd.data(),
                             .x = wide.data(),
                             .weight = weight_.data(),
                             .num_tokens = num_tokens_,
                             .hidden = hidden_,
                             .epsilon = kRmsNormEpsilon});
    ExpectNear(FromBf16(y), expected_y, kRmsNormRounding, 1e-30, "y " + what);
    ExpectNear(rstd, expected_rstd, 2e-6, 0, "rstd " + what);
  };

  for (const bool in_place : {false, true}) {
    const std::string what = in_place ? "in place" : "apart";
    DeviceBuffer<uint16_t> device_x = ToDevice(x);
    DeviceBuffer<uint16_t> y = PoisonedBf16(size_);
    DeviceBuffer<float> rstd = PoisonedFloats(num_tokens_);
    DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
    const absl::Status status =
        LaunchRmsNormForwardBf16({.y = in_place ? device_x.data() : y.data(),
                                  .rstd = rstd.data(),
                                  .x = device_x.data(),
                                  .weight = device_weight(),
                                  .num_tokens = num_tokens_,
                                  .hidden = hidden_,
                                  .epsilon = kRmsNormEpsilon,
                                  .fp32_weight = fp32_weight_,
                                  .amax = in_place ? amax.data() : nullptr},
                                 nullptr);
    ASSERT_TRUE(status.ok()) << status;
    const Bf16s host_y = ToHost(in_place ? device_x : y);
    expect(host_y, ToHost(rstd), x, what);
    EXPECT_EQ(ToHost(amax)[0], in_place ? LargestMagnitude(host_y) : 0.0f);
  }
  for (const bool in_place : {false, true}) {
    const std::string what = in_place ? "of a sum in place" : "of a sum";
    DeviceBuffer<uint16_t> device_x = ToDevice(x);
    DeviceBuffer<uint16_t> device_delta = ToDevice(delta);
    DeviceBuffer<uint16_t> y = PoisonedBf16(size_);
    DeviceBuffer<uint16_t> residual = PoisonedBf16(size_);
    DeviceBuffer<float> rstd = PoisonedFloats(num_tokens_);
    DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
    const absl::Status status = LaunchResidualRmsNormForwardBf16(
        {.residual = in_place ? device_x.data() : residual.data(),
         .y = in_place ? device_delta.data() : y.data(),
         .rstd = rstd.data(),
         .x = device_x.data(),
         .delta = device_delta.data(),
         .weight = device_weight(),
         .num_tokens = num_tokens_,
         .hidden = hidden_,
         .epsilon = kRmsNormEpsilon,
         .fp32_weight = fp32_weight_,
         .amax = in_place ? amax.data() : nullptr},
        nullptr);
    ASSERT_TRUE(status.ok()) << status;
    const Bf16s host_residual = ToHost(in_place ? device_x : residual);
    EXPECT_EQ(host_residual, ToBf16(sum)) << what;
    const Bf16s host_y = ToHost(in_place ? device_delta : y);
    expect(host_y, ToHost(rstd), host_residual, what);
    EXPECT_EQ(ToHost(amax)[0], in_place ? LargestMagnitude(host_y) : 0.0f);
  }
}

// Goal: backward means what rmsnorm.h says, with and without a residual
// gradient, with d_x apart from it or over it, d_weight set or added to, and
// equal bits on a second run, which also finds the largest |d_x|. Tolerance:
// one rounding of d_x to bf16 beside fp32 noise of its terms, of size 10 at
// most; d_weight is a sum of up to 777 fp32 terms of size 10.
TEST_P(RmsNormBf16Test, BackwardMatchesTheReference) {
  const Bf16s x = random_.Bits(size_);
  const Bf16s d_y = random_.Bits(size_);
  const Bf16s d_residual = random_.Bits(size_);
  const std::vector<float> before = random_.Floats(hidden_);
  const std::vector<float> wide_x = FromBf16(x), wide_d_y = FromBf16(d_y),
                           wide_d_residual = FromBf16(d_residual);
  std::vector<float> rstd(num_tokens_), unused(size_);
  RmsNormForwardReference({.y = unused.data(),
                           .rstd = rstd.data(),
                           .x = wide_x.data(),
                           .weight = weight_.data(),
                           .num_tokens = num_tokens_,
                           .hidden = hidden_,
                           .epsilon = kRmsNormEpsilon});
  const DeviceBuffer<uint16_t> device_x = ToDevice(x),
                               device_d_y = ToDevice(d_y);
  const DeviceBuffer<float> device_rstd = ToDevice(rstd);

  for (const bool with_residual : {true, false}) {
    for (const bool accumulate : {false, true}) {
      std::vector<float> d_x(size_), d_weight = before;
      RmsNormBackwardReference(
          {.d_x = d_x.data(),
           .d_weight = d_weight.data(),
           .d_y = wide_d_y.data(),
           .x = wide_x.data(),
           .rstd = rstd.data(),
           .weight = weight_.data(),
           .d_residual = with_residual ? wide_d_residual.data() : nullptr,
           .num_tokens = num_tokens_,
           .hidden = hidden_,
           .accumulate = accumulate});
      auto run = [&](bool in_place,
                     bool with_amax) -> std::pair<Bf16s, std::vector<float>> {
        DeviceBuffer<uint16_t> device_d_residual = ToDevice(d_residual);
        DeviceBuffer<uint16_t> device_d_x = PoisonedBf16(size_);
        DeviceBuffer<float> device_d_weight =
            accumulate ? ToDevice(before) : PoisonedFloats(hidden_);
        DeviceBuffer<float> workspace = PoisonedFloats(
            RmsNormBackwardBf16WorkspaceBytes(num_tokens_, hidden_) / 4);
        DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
        const absl::Status status = LaunchRmsNormBackwardBf16(
            {.d_x = in_place ? device_d_residual.data() : device_d_x.data(),
             .d_weight = device_d_weight.data(),
             .d_y = device_d_y.data(),
             .x = device_x.data(),
             .rstd = device_rstd.data(),
             .weight = device_weight(),
             .d_residual = with_residual ? device_d_residual.data() : nullptr,
             .workspace = workspace.data(),
             .num_tokens = num_tokens_,
             .hidden = hidden_,
             .accumulate = accumulate,
             .fp32_weight = fp32_weight_,
             .amax = with_amax ? amax.data() : nullptr},
            nullptr);
        EXPECT_TRUE(status.ok()) << status;
        const Bf16s host_d_x =
            ToHost(in_place ? device_d_residual : device_d_x);
        EXPECT_EQ(ToHost(amax)[0],
                  with_amax ? LargestMagnitude(host_d_x) : 0.0f);
        return {host_d_x, ToHost(device_d_weight)};
      };
      SCOPED_TRACE(absl::StrCat("residual ", with_residual, ", accumulate ",
                                accumulate));
      const auto first = run(false, false);
      ExpectNear(FromBf16(first.first), d_x, kRmsNormRounding, 2e-5, "d_x");
      ExpectNear(first.second, d_weight, 1e-5, 1e-4, "d_weight");
      EXPECT_EQ(run(with_residual, true), first) << "the second run differs";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RmsNormBf16Test,
    testing::Combine(testing::ValuesIn(kRmsNormShapes), testing::Bool()),
    [](const testing::TestParamInfo<std::tuple<RmsNormShape, bool>>& info) {
      const RmsNormShape& shape = std::get<0>(info.param);
      return absl::StrCat(shape.num_tokens, "x", shape.hidden,
                          std::get<1>(info.param) ? "_fp32_weight" : "");
    });

// Goal: no tokens launch nothing but still set a weight gradient.
TEST(RmsNormBf16ShapeTest, NoTokens) {
  EXPECT_TRUE(
      LaunchRmsNormForwardBf16({.num_tokens = 0, .hidden = 64}, nullptr).ok());
  EXPECT_TRUE(
      LaunchResidualRmsNormForwardBf16({.num_tokens = 0, .hidden = 64}, nullptr)
          .ok());
  DeviceBuffer<float> d_weight = PoisonedFloats(64);
  RmsNormBackwardBf16Args args = {
      .d_weight = d_weight.data(), .num_tokens = 0, .hidden = 64};
  EXPECT_TRUE(LaunchRmsNormBackwardBf16(args, nullptr).ok());
  EXPECT_EQ(ToHost(d_weight), std::vector<float>(64, 0.0f));
  const std::vector<float> before(64, 3.0f);
  d_weight = ToDevice(before);
  args.d_weight = d_weight.data();
  args.accumulate = true;
  EXPECT_TRUE(LaunchRmsNormBackwardBf16(args, nullptr).ok());
  EXPECT_EQ(ToHost(d_weight), before);
}

// Goal: what the kernels cannot do is refused by name, before any launch.
TEST(RmsNormBf16ShapeTest, RefusesWhatItCannotDo) {
  for (const int64_t hidden : {0, 4, 12, 4095, 65544}) {
    const absl::Status status =
        LaunchRmsNormForwardBf16({.num_tokens = 3, .hidden = hidden}, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().find(absl::StrCat("3 rows of ", hidden)) !=
                absl::string_view::npos)
        << status;
    EXPECT_EQ(RmsNormBackwardBf16WorkspaceBytes(3, hidden), 0);
  }
  for (const int64_t num_tokens : {int64_t{-1}, int64_t{1} << 31}) {
    EXPECT_EQ(LaunchResidualRmsNormForwardBf16(
                  {.num_tokens = num_tokens, .hidden = 8}, nullptr)
                  .code(),
              absl::StatusCode::kInvalidArgument);
  }
  auto* odd = reinterpret_cast<void*>(uintptr_t{8});
  EXPECT_EQ(LaunchRmsNormBackwardBf16(
                {.d_x = odd, .num_tokens = 1, .hidden = 8}, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
