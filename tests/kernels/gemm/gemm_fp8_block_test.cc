#include "kernels/gemm/gemm_fp8_block.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/fp8_testing.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

struct BlockCase {
  int64_t m, n, k;
  bool fp32_output = false;
  bool accumulate = false;
  int64_t padding = 0;  // After each row, in elements.
  Fp8ScalesOfB scales_of_b = Fp8ScalesOfB::kSquares;
};

class GemmFp8BlockTest : public testing::TestWithParam<BlockCase> {};

// Standard normal values in e4m3; NaN between rows of `columns`.
Fp8s RandomRows(int64_t rows, int64_t columns, int64_t stride) {
  const std::vector<float> values = RandomNormals().Floats(rows * stride);
  Fp8s bits(rows * stride, kNanFp8);
  for (int64_t i = 0; i < rows * stride; ++i) {
    if (i % stride < columns) bits[i] = ToFp8(values[i]);
  }
  return bits;
}

std::vector<float> Values(const Fp8s& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    values[i] = static_cast<float>(FromFp8(bits[i]));
  }
  return values;
}

// Scales of several magnitudes, none like another.
std::vector<float> RandomScales(int64_t count) {
  std::vector<float> scales = RandomNormals().Floats(count);
  for (float& scale : scales) scale = std::exp2(2 * scale);
  return scales;
}

// Goal: products mean what gemm_fp8_block.h says, at sizes that tiles do not
// divide, in bf16, in fp32 and added to fp32, and nothing between the rows of c
// is written. Method: against the reference; scales differ so much that a wrong
// one shows. Tolerance: a block of 128 products is summed with some 14 bits, so
// each block adds 2e-3 of its size, taken as norms of its rows, and bf16 rounds
// once.
TEST_P(GemmFp8BlockTest, MatchesTheReference) {
  const BlockCase c = GetParam();
  const int64_t stride = c.k + 16 * c.padding;
  const int64_t c_stride = (c.n + 7) / 8 * 8 + 8 * c.padding;
  const int64_t scale_stride = (c.m + 3) / 4 * 4 + 4 * c.padding;
  const int64_t num_blocks = c.k / kFp8Block;
  const int64_t num_groups = (c.n + kFp8Block - 1) / kFp8Block;
  const Fp8s a = RandomRows(c.m, c.k, stride);
  const Fp8s b = RandomRows(c.n, c.k, stride);
  const std::vector<float> a_scale = RandomScales(num_blocks * scale_stride);
  const bool has_rows = c.scales_of_b == Fp8ScalesOfB::kRows;
  const bool is_by_group = c.scales_of_b == Fp8ScalesOfB::kSquares;
  const int64_t b_scale_stride = has_rows ? (c.n + 3) / 4 * 4 + 4 * c.padding
                                 : is_by_group ? num_blocks
                                               : num_groups;
  const std::vector<float> b_scale =
      RandomScales((is_by_group ? num_groups : num_blocks) * b_scale_stride);
  const auto scale_of_b = [&](int64_t row, int64_t block) {
    const int64_t group = has_rows ? row : row / kFp8Block;
    return b_scale[is_by_group ? group * b_scale_stride + block
                               : block * b_scale_stride + group];
  };
  const float before = c.accumulate ? 3.0f : kNan;
  std::vector<float> expected(c.m * c_stride, before);
  const std::vector<float> a_values = Values(a), b_values = Values(b);
  GemmFp8BlockArgs args = {.c = expected.data(),
                           .a = a_values.data(),
                           .b = b_values.data(),
                           .a_scale = a_scale.data(),
                           .b_scale = b_scale.data(),
                           .m = c.m,
                           .n = c.n,
                           .k = c.k,
                           .a_stride = stride,
                           .b_stride = stride,
                           .c_stride = c_stride,
                           .a_scale_stride = scale_stride,
                           .b_scale_stride = b_scale_stride,
                           .fp32_output = c.fp32_output,
                           .accumulate = c.accumulate,
                           .scales_of_b = c.scales_of_b};
  GemmFp8BlockReference(args);

  const DeviceBuffer<uint8_t> device_a = ToDevice(a), device_b = ToDevice(b);
  const DeviceBuffer<float> device_a_scale = ToDevice(a_scale),
                            device_b_scale = ToDevice(b_scale);
  DeviceBuffer<float> wide =
      ToDevice(std::vector<float>(c.m * c_stride, before));
  DeviceBuffer<uint16_t> narrow = PoisonedBf16(c.m * c_stride);
  args.c = c.fp32_output ? static_cast<void*>(wide.data()) : narrow.data();
  args.a = device_a.data();
  args.b = device_b.data();
  args.a_scale = device_a_scale.data();
  args.b_scale = device_b_scale.data();
  const absl::Status status = LaunchGemmFp8BlockSm90(args, 0, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> actual =
      c.fp32_output ? ToHost(wide) : FromBf16(ToHost(narrow));
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c_stride; ++j) {
      const int64_t at = i * c_stride + j;
      if (j >= c.n) {
        ASSERT_TRUE(actual[at] == before ||
                    (std::isnan(actual[at]) && std::isnan(before)))
            << "written beyond row " << i;
        continue;
      }
      double size = 0.0;
      for (int64_t block = 0; block < num_blocks; ++block) {
        size +=
            double{a_scale[block * scale_stride + i]} * scale_of_b(j, block);
      }
      ASSERT_NEAR(actual[at], expected[at],
                  std::fabs(expected[at]) / 256 +
                      2e-3 * std::sqrt(double{kFp8Block}) * 1.5 * size)
          << i << ", " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GemmFp8BlockTest,
    testing::Values(
        BlockCase{1, 8, 128}, BlockCase{128, 192, 128},
        BlockCase{130, 72, 256, true},
        BlockCase{257, 400, 1024, false, false, 1},
        BlockCase{100, 200, 640, true, true, 1}, BlockCase{513, 1000, 384},
        // So many tiles that blocks go from tile to tile.
        BlockCase{2304, 3072, 256, true},
        BlockCase{2304, 3072, 256, true, true},
        BlockCase{257, 400, 1024, false, false, 1,
                  Fp8ScalesOfB::kTurnedSquares},
        BlockCase{2304, 3072, 384, false, false, 0,
                  Fp8ScalesOfB::kTurnedSquares},
        BlockCase{130, 72, 256, true, false, 0, Fp8ScalesOfB::kRows},
        BlockCase{257, 400, 1024, true, true, 1, Fp8ScalesOfB::kRows},
        BlockCase{1, 8, 128, true, false, 0, Fp8ScalesOfB::kRows},
        BlockCase{129, 264, 128, true, true, 0, Fp8ScalesOfB::kRows},
        BlockCase{255, 136, 128}, BlockCase{385, 264, 128, true, true},
        BlockCase{2304, 3072, 384, true, true, 0, Fp8ScalesOfB::kRows}),
    [](const testing::TestParamInfo<BlockCase>& info) {
      return absl::StrCat(
          "M", info.param.m, "N", info.param.n, "K", info.param.k,
          info.param.fp32_output ? "Fp32" : "",
          info.param.accumulate ? "Added" : "",
          info.param.scales_of_b == Fp8ScalesOfB::kRows ? "ScaledRows"
          : info.param.scales_of_b == Fp8ScalesOfB::kTurnedSquares
              ? "TurnedScales"
              : "");
    });

// Goal: what the kernel cannot do is refused by name, before any launch.
TEST(GemmFp8BlockArgsTest, RefusesWhatItCannotDo) {
  const GemmFp8BlockArgs good = {.m = 128,
                                 .n = 128,
                                 .k = 256,
                                 .a_stride = 256,
                                 .b_stride = 256,
                                 .c_stride = 128,
                                 .a_scale_stride = 128,
                                 .b_scale_stride = 2};
  auto refuse = [](const GemmFp8BlockArgs& args, const char* named) {
    const absl::Status status = LaunchGemmFp8BlockSm90(args, 0, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), named)) << status;
  };
  GemmFp8BlockArgs args = good;
  args.k = 200;
  refuse(args, "k a multiple of 128");
  args = good;
  args.a_stride = 128;
  refuse(args, "shorter than its rows");
  args = good;
  args.a_scale_stride = 130;
  refuse(args, "multiples of 16 bytes");
  args = good;
  args.accumulate = true;
  refuse(args, "fp32 alone");
  args = good;
  args.scales_of_b = Fp8ScalesOfB::kRows;
  refuse(args, "shorter than its rows");
  args.b_scale_stride = 128;
  refuse(args, "scales of b's rows");
  args = good;
  args.a = reinterpret_cast<const void*>(uintptr_t{8});
  refuse(args, "one is not");
}

}  // namespace
}  // namespace millrace
