#include "kernels/gemm/gemm_fp8.h"

#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_buffer.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// Random fp8 values, and what they mean.
struct Fp8Matrix {
  Fp8Matrix(int64_t count, bool is_e5m2) {
    static std::mt19937 generator(std::random_device{}());
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(generator);
      if (is_e5m2) {
        const __nv_fp8_e5m2 fp8(value);
        bits.push_back(fp8.__x);
        values.push_back(static_cast<float>(fp8));
      } else {
        const __nv_fp8_e4m3 fp8(value);
        bits.push_back(fp8.__x);
        values.push_back(static_cast<float>(fp8));
      }
    }
  }
  std::vector<uint8_t> bits;
  std::vector<float> values;
};

class GemmFp8Test : public testing::TestWithParam<GemmFp8Shape> {};

// Goal: fp8 products with their scales, in both formats, to bf16 and added to
// fp32. Method: against fp64 of the exact fp8 values. Hopper's tensor cores sum
// fp8 products with some 14 bits, promoted now and then: 2e-3 of the largest
// term a row could have, sqrt(k) here, allows for that and for rounding to
// bf16.
TEST_P(GemmFp8Test, MatchesFp64) {
  const GemmFp8Shape shape = GetParam();
  const int64_t a_stride = shape.a_stride == 0 ? shape.k : shape.a_stride;
  const int64_t c_stride = shape.c_stride == 0 ? shape.n : shape.c_stride;
  const Fp8Matrix a(shape.m * a_stride, shape.a_is_e5m2);
  const Fp8Matrix b(shape.n * shape.k, shape.b_is_e5m2);
  const float a_scale = 0.5f;
  const float b_scale = 3.0f;
  DeviceBuffer<uint8_t> device_a = ToDevice(a.bits);
  DeviceBuffer<uint8_t> device_b = ToDevice(b.bits);
  DeviceBuffer<float> device_a_scale = ToDevice(std::vector<float>{a_scale});
  DeviceBuffer<float> device_b_scale = ToDevice(std::vector<float>{b_scale});
  const Bf16s bias = RandomNormals().Bits(shape.n);
  DeviceBuffer<uint16_t> device_bias = ToDevice(bias);
  const float before = shape.accumulate ? 7.0f : std::nanf("");
  const int64_t count = shape.m * c_stride;
  DeviceBuffer<float> fp32 = ToDevice(std::vector<float>(count, before));
  DeviceBuffer<uint16_t> bf16 = PoisonedBf16(count);

  const auto plan = GemmFp8Plan::Create(shape, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  auto workspace = DeviceBuffer<uint8_t>::Allocate(plan->workspace_bytes() + 1);
  ASSERT_TRUE(workspace.ok());
  const absl::Status status = plan->Run(
      {.c = shape.fp32_output ? static_cast<void*>(fp32.data()) : bf16.data(),
       .a = device_a.data(),
       .b = device_b.data(),
       .a_scale = device_a_scale.data(),
       .b_scale = device_b_scale.data(),
       .bias = shape.bias ? device_bias.data() : nullptr,
       .workspace = workspace->data()},
      nullptr);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<float> wide = ToHost(fp32);
  const std::vector<uint16_t> narrow = ToHost(bf16);
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      double expected = 0;
      for (int64_t k = 0; k < shape.k; ++k) {
        expected +=
            double{a.values[i * a_stride + k]} * b.values[j * shape.k + k];
      }
      expected *= a_scale * b_scale;
      if (shape.accumulate) expected += before;
      if (shape.bias) expected += FromBf16(bias[j]);
      const int64_t at = i * c_stride + j;
      const double actual = shape.fp32_output ? wide[at] : FromBf16(narrow[at]);
      ASSERT_NEAR(actual, expected,
                  std::fabs(expected) / 256 + 2e-3 * std::sqrt(shape.k) * 1.5)
          << i << ", " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GemmFp8Test,
    testing::Values(
        GemmFp8Shape{.m = 128, .n = 256, .k = 128},
        GemmFp8Shape{.m = 200, .n = 264, .k = 176, .fast_accumulation = true},
        GemmFp8Shape{.m = 72, .n = 128, .k = 64, .a_is_e5m2 = true},
        GemmFp8Shape{.m = 136, .n = 192, .k = 96, .bias = true},
        GemmFp8Shape{.m = 96, .n = 48, .k = 2048, .b_is_e5m2 = true},
        GemmFp8Shape{.m = 80,
                     .n = 96,
                     .k = 160,
                     .fp32_output = true,
                     .accumulate = true,
                     .a_stride = 192,
                     .c_stride = 104}),
    [](const testing::TestParamInfo<GemmFp8Shape>& info) {
      return absl::StrCat("M", info.param.m, "N", info.param.n, "K",
                          info.param.k);
    });

// Goal: what fp8 on these chips cannot do is refused by name.
TEST(GemmFp8PlanTest, RefusesWhatItCannotDo) {
  auto refuse = [](const GemmFp8Shape& shape, const char* named) {
    const absl::Status status = GemmFp8Plan::Create(shape, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), named)) << status;
  };
  refuse({.m = 0, .n = 16, .k = 16}, "m0n16k16");
  refuse({.m = 16, .n = 16, .k = 24}, "multiples of 16");
  refuse({.m = 16, .n = 16, .k = 32, .b_stride = 16}, "strides 32, 16 and 16");
  refuse({.m = 16, .n = 16, .k = 16, .a_is_e5m2 = true, .b_is_e5m2 = true},
         "at least one operand is e4m3");
  refuse({.m = 16, .n = 16, .k = 16, .fp32_output = true, .bias = true},
         "a bias needs an output in bf16");
}

}  // namespace
}  // namespace millrace
