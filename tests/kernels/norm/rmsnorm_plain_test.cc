#include "kernels/norm/rmsnorm_plain.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/norm/rmsnorm.h"
#include "tests/kernels/plain_testing.h"

namespace millrace {
namespace {

constexpr float kEpsilon = 1e-5f;
// Sums of a row in fp32 by 256 threads, then a tree.
constexpr double kRelative = 2e-6;
constexpr double kAbsolute = 1e-6;

struct Size {
  int64_t num_tokens, hidden;
};
// The types of the rows and of the weights that scale them.
struct Types {
  ElementType rows, weight;
};
constexpr Types kTypes[] = {{ElementType::kFloat32, ElementType::kFloat32},
                            {ElementType::kBfloat16, ElementType::kBfloat16},
                            {ElementType::kBfloat16, ElementType::kFloat32}};
constexpr Size kSizes[] = {{1, 1},     {3, 7},    {5, 256},
                           {129, 100}, {70, 999}, {2100, 48}};

// Goal: norm and statistics mean what rmsnorm.h says, alone and of a residual
// sum, apart from their inputs and in their place. Method: against the fp64
// reference on fresh normal inputs, in all types, outputs poisoned with NaN.
TEST(PlainRmsNormTest, ForwardMatchesTheReference) {
  RandomNormals random;
  for (const auto [type, weight_type] : kTypes) {
    const bool fp32_weight = weight_type == ElementType::kFloat32;
    for (const auto [num_tokens, hidden] : kSizes) {
      SCOPED_TRACE(absl::StrCat(num_tokens, " x ", hidden));
      const int64_t size = num_tokens * hidden;
      const std::vector<float> x = Rounded(type, random.Floats(size));
      const std::vector<float> delta = Rounded(type, random.Floats(size));
      const std::vector<float> weight =
          Rounded(weight_type, random.Floats(hidden));
      std::vector<float> y(size), rstd(num_tokens), residual(size);
      RmsNormForwardReference({y.data(), rstd.data(), x.data(), weight.data(),
                               num_tokens, hidden, kEpsilon});
      PlainTensor device_x(type, x), device_weight(weight_type, weight);
      PlainTensor device_delta(type, delta);
      PlainTensor device_y(type, size), device_residual(type, size);
      DeviceBuffer<float> device_rstd = PoisonedFloats(num_tokens);
      PlainRmsNormForwardArgs args = {device_y.data(), device_rstd.data(),
                                      device_x.data(), device_weight.data(),
                                      num_tokens,      hidden,
                                      kEpsilon,        fp32_weight};
      absl::Status status = LaunchPlainRmsNormForward(args, type, nullptr);
      ASSERT_TRUE(status.ok()) << status;
      ExpectPlain(type, device_y.Host(), y, kRelative, kAbsolute, "y");
      ExpectPlain(ElementType::kFloat32, ToHost(device_rstd), rstd, kRelative,
                  kAbsolute, "rstd");

      for (size_t i = 0; i < residual.size(); ++i) {
        residual[i] = x[i] + delta[i];
      }
      residual = Rounded(type, residual);
      RmsNormForwardReference({y.data(), rstd.data(), residual.data(),
                               weight.data(), num_tokens, hidden, kEpsilon});
      status = LaunchPlainResidualRmsNormForward(
          {device_residual.data(), device_y.data(), device_rstd.data(),
           device_x.data(), device_delta.data(), device_weight.data(),
           num_tokens, hidden, kEpsilon, fp32_weight},
          type, nullptr);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(device_residual.Host(), residual);
      ExpectPlain(type, device_y.Host(), y, kRelative, kAbsolute,
                  "y of residual");
      ExpectPlain(ElementType::kFloat32, ToHost(device_rstd), rstd, kRelative,
                  kAbsolute, "rstd of residual");
      const std::vector<float> apart = device_y.Host();
      status = LaunchPlainResidualRmsNormForward(
          {device_x.data(), device_delta.data(), device_rstd.data(),
           device_x.data(), device_delta.data(), device_weight.data(),
           num_tokens, hidden, kEpsilon, fp32_weight},
          type, nullptr);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(device_x.Host(), residual) << "in place";
      ExpectEqualBits(device_delta.Host(), apart, "y in place");
    }
  }
}

// Goal: both gradients, added to and overwritten, with and without a
// residual's; equal runs give equal bits. Method: as above.
TEST(PlainRmsNormTest, BackwardMatchesTheReferenceAndRepeats) {
  RandomNormals random;
  for (const auto [type, weight_type] : kTypes) {
    const bool fp32_weight = weight_type == ElementType::kFloat32;
    for (const auto [num_tokens, hidden] : kSizes) {
      for (const bool has_residual : {false, true}) {
        SCOPED_TRACE(
            absl::StrCat(num_tokens, " x ", hidden, " ", has_residual));
        const int64_t size = num_tokens * hidden;
        const std::vector<float> x = Rounded(type, random.Floats(size));
        const std::vector<float> d_y = Rounded(type, random.Floats(size));
        const std::vector<float> d_residual =
            Rounded(type, random.Floats(size));
        const std::vector<float> weight =
            Rounded(weight_type, random.Floats(hidden));
        const std::vector<float> before = random.Floats(hidden);
        std::vector<float> y(size), rstd(num_tokens), d_x(size);
        RmsNormForwardReference({y.data(), rstd.data(), x.data(), weight.data(),
                                 num_tokens, hidden, kEpsilon});
        std::vector<float> d_weight = before;
        RmsNormBackwardReference({d_x.data(), d_weight.data(), d_y.data(),
                                  x.data(), rstd.data(), weight.data(),
                                  has_residual ? d_residual.data() : nullptr,
                                  num_tokens, hidden, has_residual});
        PlainTensor device_x(type, x), device_d_y(type, d_y);
        PlainTensor device_weight(weight_type, weight);
        DeviceBuffer<float> device_rstd = ToDevice(rstd);
        std::vector<float> first_d_x, first_d_weight;
        for (int run = 0; run < 2; ++run) {
          PlainTensor device_d_x(type, size);
          if (has_residual) device_d_x.Write(d_residual);
          DeviceBuffer<float> device_d_weight =
              has_residual ? ToDevice(before) : PoisonedFloats(hidden);
          DeviceBuffer<float> workspace = PoisonedFloats(
              PlainRmsNormBackwardWorkspaceBytes(num_tokens, hidden) / 4);
          const absl::Status status = LaunchPlainRmsNormBackward(
              {device_d_x.data(), device_d_weight.data(), device_d_y.data(),
               device_x.data(), device_rstd.data(), device_weight.data(),
               has_residual ? device_d_x.data() : nullptr, workspace.data(),
               num_tokens, hidden, has_residual, fp32_weight},
              type, nullptr);
          ASSERT_TRUE(status.ok()) << status;
          if (run == 0) {
            first_d_x = device_d_x.Host();
            first_d_weight = ToHost(device_d_weight);
          } else {
            ExpectEqualBits(device_d_x.Host(), first_d_x, "d_x");
            ExpectEqualBits(ToHost(device_d_weight), first_d_weight,
                            "d_weight");
          }
        }
        ExpectPlain(type, first_d_x, d_x, kRelative, 2e-6, "d_x");
        ExpectPlain(ElementType::kFloat32, first_d_weight, d_weight, kRelative,
                    2e-6, "d_weight");
      }
    }
  }
}

TEST(PlainRmsNormTest, RefusesWhatCannotBeAndDoesNothingForNoTokens) {
  for (const ElementType type : kElementTypes) {
    for (const auto [num_tokens, hidden] : {Size{-1, 8}, Size{4, 0}}) {
      EXPECT_EQ(LaunchPlainRmsNormForward(
                    {.num_tokens = num_tokens, .hidden = hidden}, type, nullptr)
                    .code(),
                absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(LaunchPlainResidualRmsNormForward(
                    {.num_tokens = num_tokens, .hidden = hidden}, type, nullptr)
                    .code(),
                absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(LaunchPlainRmsNormBackward(
                    {.num_tokens = num_tokens, .hidden = hidden}, type, nullptr)
                    .code(),
                absl::StatusCode::kInvalidArgument);
    }
    EXPECT_TRUE(
        LaunchPlainRmsNormForward({.num_tokens = 0, .hidden = 8}, type, nullptr)
            .ok());
    // The gradient of no tokens is zero.
    DeviceBuffer<float> d_weight = PoisonedFloats(5);
    DeviceBuffer<float> workspace =
        PoisonedFloats(PlainRmsNormBackwardWorkspaceBytes(0, 5) / 4);
    const absl::Status status =
        LaunchPlainRmsNormBackward({.d_weight = d_weight.data(),
                                    .workspace = workspace.data(),
                                    .num_tokens = 0,
                                    .hidden = 5},
                                   type, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(ToHost(d_weight), std::vector<float>(5, 0.0f));
  }
}

}  // namespace
}  // namespace millrace
