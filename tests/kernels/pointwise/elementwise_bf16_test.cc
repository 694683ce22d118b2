#include "kernels/pointwise/elementwise_bf16.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// Goal: the sum of each pair, rounded once, for any number of elements at any
// address, apart or in place, and nothing around it. Method: exact comparison
// with the fp32 sum rounded on the host, outputs poisoned with NaN.
TEST(ElementwiseBf16Test, AddsPairs) {
  RandomNormals random;
  for (const int64_t size : {1, 7, 8, 2048, 4099, 100000}) {
    for (const int64_t offset : {0, 1, 8}) {
      SCOPED_TRACE(absl::StrCat(size, " from ", offset));
      const Bf16s a = random.Bits(offset + size);
      const Bf16s b = random.Bits(offset + size);
      Bf16s expected(offset, kNanBf16), in_place(a.begin(), a.begin() + offset);
      for (int64_t i = offset; i < offset + size; ++i) {
        expected.push_back(ToBf16(FromBf16(a[i]) + FromBf16(b[i])));
        in_place.push_back(expected.back());
      }
      DeviceBuffer<uint16_t> device_a = ToDevice(a);
      DeviceBuffer<uint16_t> device_b = ToDevice(b);
      DeviceBuffer<uint16_t> out = PoisonedBf16(offset + size);
      for (uint16_t* to : {out.data(), device_a.data()}) {
        const absl::Status status =
            LaunchAddBf16({.out = to + offset,
                           .a = device_a.data() + offset,
                           .b = device_b.data() + offset,
                           .num_elements = size},
                          nullptr);
        ASSERT_TRUE(status.ok()) << status;
      }
      EXPECT_EQ(ToHost(out), expected);
      EXPECT_EQ(ToHost(device_a), in_place);
    }
  }
}

TEST(ElementwiseBf16Test, RefusesWhatCannotBe) {
  EXPECT_EQ(LaunchAddBf16({.num_elements = -1}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(LaunchAddBf16({.num_elements = 0}, nullptr).ok());
}

}  // namespace
}  // namespace millrace
