#include "kernels/gemm/gemm_grouped_bf16.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

struct Case {
  std::vector<int32_t> offsets;
  int64_t num_rows, n, k;
};

// Goal: every row is multiplied by its own group's b, whatever the sizes of the
// groups, and rows of no group are left alone; equal bits again. Method: groups
// that are empty, tiny, off every tile and long, in both layouts of b, against
// fp64; rounding to bf16 costs up to 2^-8 of a value.
TEST(GroupedGemmBf16Test, MatchesFp64) {
  RandomNormals normals;
  for (const Case& shape :
       {Case{{0, 3, 3, 260, 517}, 520, 264, 64}, Case{{0, 0, 1}, 1, 8, 192},
        Case{{0, 700}, 700, 520, 128},
        Case{{5, 100, 400, 400}, 413, 776, 320}}) {
    const int64_t num_groups = static_cast<int64_t>(shape.offsets.size()) - 1;
    for (const bool trans_b : {true, false}) {
      const Bf16s a = normals.Bits(shape.num_rows * shape.k);
      const Bf16s b = normals.Bits(num_groups * shape.n * shape.k);
      const float scale = 1 / std::sqrt(static_cast<float>(shape.k));
      const auto device_a = ToDevice(a);
      const auto device_b = ToDevice(b);
      const auto offsets = ToDevice(shape.offsets);
      auto run = [&] {
        auto c = PoisonedBf16(shape.num_rows * shape.n);
        const absl::Status status =
            LaunchGroupedGemmBf16({.c = c.data(),
                                   .a = device_a.data(),
                                   .b = device_b.data(),
                                   .group_offsets = offsets.data(),
                                   .scale = scale,
                                   .shape = {.num_rows = shape.num_rows,
                                             .n = shape.n,
                                             .k = shape.k,
                                             .num_groups = num_groups,
                                             .trans_b = trans_b}},
                                  nullptr);
        EXPECT_TRUE(status.ok()) << status;
        return ToHost(c);
      };
      const Bf16s c = run();
      EXPECT_EQ(run(), c) << "the second run differs";
      int64_t group = -1;
      for (int64_t i = 0; i < shape.num_rows; ++i) {
        while (group + 1 <= num_groups && i >= shape.offsets[group + 1]) {
          if (++group == num_groups) break;
        }
        const bool belongs = group >= 0 && group < num_groups;
        for (int64_t j = 0; j < shape.n; ++j) {
          const uint16_t actual = c[i * shape.n + j];
          if (!belongs) {
            ASSERT_EQ(actual, kNanBf16) << "row " << i;
            continue;
          }
          double sum = 0;
          const int64_t b_begin = group * shape.n * shape.k;
          for (int64_t k = 0; k < shape.k; ++k) {
            sum +=
                double{FromBf16(a[i * shape.k + k])} *
                FromBf16(
                    b[b_begin + (trans_b ? j * shape.k + k : k * shape.n + j)]);
          }
          sum *= scale;
          ASSERT_NEAR(FromBf16(actual), sum, std::fabs(sum) / 256 + 1e-5)
              << "row " << i << " of group " << group << ", column " << j;
        }
      }
    }
  }
}

// Goal: what cannot be is refused by name, and no rows are no work.
TEST(GroupedGemmBf16Test, RefusesWhatItCannotDo) {
  auto launch = [](const GroupedGemmBf16Shape& shape) {
    return LaunchGroupedGemmBf16({.shape = shape}, nullptr);
  };
  auto refuse = [&](const GroupedGemmBf16Shape& shape, const char* named) {
    const absl::Status status = launch(shape);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), named)) << status;
  };
  refuse({.num_rows = 8, .n = 8, .k = 8, .num_groups = 0}, "0 groups");
  refuse({.num_rows = 8, .n = 12, .k = 8, .num_groups = 1}, "multiples of 8");
  refuse({.num_rows = 8, .n = 8, .k = 72, .num_groups = 1},
         "k is a multiple of 64");
  EXPECT_TRUE(launch({.num_rows = 0, .n = 8, .k = 64, .num_groups = 1}).ok());
}

}  // namespace
}  // namespace millrace
