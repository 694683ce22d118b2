#include "kernels/cuda/sum_shards.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// Goal: sums are those of fp32 additions in the shards' order, rounded once, to
// the bit, for any number of shards and elements at any address, apart or into
// one of the shards; neighbours stay as they are. Method: the same additions on
// the host over normal values; outputs poisoned with NaN.
TEST(SumShardsTest, AddsInOrder) {
  RandomNormals random;
  for (const int num_shards : {1, 2, 3, kMaxSumShards}) {
    for (const int64_t size : {1, 7, 8, 2049, 100003}) {
      for (const int64_t offset : {0, 1, 8}) {
        for (const bool in_place : {false, true}) {
          SCOPED_TRACE(absl::StrCat(num_shards, " shards of ", size, " from ",
                                    offset, in_place ? " in place" : ""));
          const Bf16s bits = random.Bits(num_shards * size + offset);
          const std::vector<float> floats =
              random.Floats(num_shards * size + offset);
          DeviceBuffer<uint16_t> half = ToDevice(bits);
          DeviceBuffer<float> wide = ToDevice(floats);
          DeviceBuffer<uint16_t> half_sum = PoisonedBf16(size + offset);
          DeviceBuffer<float> wide_sum =
              ToDevice(std::vector<float>(size + offset, kNan));
          SumShardsArgs narrow_args = {.num_shards = num_shards,
                                       .num_elements = size,
                                       .type = ElementType::kBfloat16};
          SumShardsArgs wide_args = narrow_args;
          wide_args.type = ElementType::kFloat32;
          Bf16s expected_half(size);
          std::vector<float> expected_wide(size);
          for (int64_t i = 0; i < size; ++i) {
            float sum_half = 0, sum_wide = 0;
            for (int shard = 0; shard < num_shards; ++shard) {
              const int64_t at = offset + shard * size + i;
              sum_half += FromBf16(bits[at]);
              sum_wide += floats[at];
            }
            expected_half[i] = ToBf16(sum_half);
            expected_wide[i] = sum_wide;
          }
          for (int shard = 0; shard < num_shards; ++shard) {
            narrow_args.shards[shard] = half.data() + offset + shard * size;
            wide_args.shards[shard] = wide.data() + offset + shard * size;
          }
          const int64_t last = offset + (num_shards - 1) * size;
          narrow_args.sum =
              in_place ? half.data() + last : half_sum.data() + offset;
          wide_args.sum =
              in_place ? wide.data() + last : wide_sum.data() + offset;
          for (const SumShardsArgs& args : {narrow_args, wide_args}) {
            const absl::Status status = LaunchSumShards(args, nullptr);
            ASSERT_TRUE(status.ok()) << status;
          }
          const Bf16s got_half = ToHost(in_place ? half : half_sum);
          const std::vector<float> got_wide =
              ToHost(in_place ? wide : wide_sum);
          const int64_t first = in_place ? last : offset;
          for (int64_t i = 0; i < size; ++i) {
            ASSERT_EQ(got_half[first + i], expected_half[i]) << i;
            ASSERT_EQ(got_wide[first + i], expected_wide[i]) << i;
          }
          for (int64_t i = 0; i < first; ++i) {
            ASSERT_EQ(got_half[i], in_place ? bits[i] : kNanBf16);
          }
        }
      }
    }
  }
}

// Goal: none of nothing is allowed, wrong shapes are refused.
TEST(SumShardsTest, ChecksShapes) {
  EXPECT_TRUE(
      LaunchSumShards({.num_shards = 2, .num_elements = 0}, nullptr).ok());
  for (const SumShardsArgs& args :
       {SumShardsArgs{.num_shards = 0, .num_elements = 8},
        SumShardsArgs{.num_shards = kMaxSumShards + 1, .num_elements = 8},
        SumShardsArgs{.num_shards = 2, .num_elements = -1}}) {
    EXPECT_EQ(LaunchSumShards(args, nullptr).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace
