#include "kernels/cuda/radix_sort.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// Goal: pairs come out in the order of a stable sort. Method: sizes around the
// edges of tiles and limits around those of digits, against the standard
// library, with a workspace full of garbage.
TEST(RadixSortTest, SortsStably) {
  std::mt19937 generator(std::random_device{}());
  for (const int64_t limit :
       {int64_t{1}, int64_t{2}, int64_t{512}, int64_t{513}, int64_t{128257},
        int64_t{1} << 18, (int64_t{1} << 18) + 1, int64_t{1} << 31}) {
    for (const int64_t size : {0, 1, 31, 2047, 2048, 2049, 50000}) {
      SCOPED_TRACE(absl::StrCat(size, " below ", limit));
      std::uniform_int_distribution<int64_t> uniform(0, limit - 1);
      std::vector<int32_t> keys(size);
      for (int32_t& key : keys) {
        key = static_cast<int32_t>(uniform(generator));
      }
      std::vector<int32_t> order(size);
      std::iota(order.begin(), order.end(), 0);
      DeviceBuffer<int32_t> device_keys = ToDevice(keys);
      DeviceBuffer<int32_t> device_values = ToDevice(order);
      DeviceBuffer<uint8_t> workspace =
          ToDevice(std::vector<uint8_t>(RadixSortWorkspaceBytes(size), 0xFF));
      const absl::Status status =
          LaunchRadixSort({.keys = device_keys.data(),
                           .values = device_values.data(),
                           .num_pairs = size,
                           .key_limit = limit,
                           .workspace = workspace.data()},
                          nullptr);
      ASSERT_TRUE(status.ok()) << status;
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return keys[a] < keys[b]; });
      std::sort(keys.begin(), keys.end());
      EXPECT_EQ(ToHost(device_keys), keys);
      EXPECT_EQ(ToHost(device_values), order);
    }
  }
}

TEST(RadixSortTest, RefusesWhatCannotBe) {
  EXPECT_EQ(LaunchRadixSort({.num_pairs = -1, .key_limit = 1}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchRadixSort({.num_pairs = 1, .key_limit = 0}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
