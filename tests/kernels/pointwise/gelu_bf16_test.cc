#include "kernels/pointwise/gelu_bf16.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/gelu.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// One rounding to bf16, 2^-8 of the value, and a little for exponential and
// erf.
constexpr double kRelative = 0x1p-8 * 1.01;
constexpr double kAbsolute = 1e-6;

// Goal: both forms mean what gelu.h says, forward and backward, for any number
// of elements at any address, apart or over their inputs. Method: against the
// fp64 reference on inputs from -12 to 12 and fresh normal gradients, outputs
// poisoned with NaN.
TEST(GeluBf16Test, MatchesTheReference) {
  RandomNormals random;
  for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
    for (const int64_t size : {1, 7, 8, 4099, 100000}) {
      for (const int64_t offset : {0, 1, 8}) {
        SCOPED_TRACE(absl::StrCat(size, " from ", offset, " form ",
                                  static_cast<int>(form)));
        std::vector<float> x = random.Floats(size);
        for (float& value : x) value *= 3.0f;
        const Bf16s x_bits = ToBf16(x);
        x = FromBf16(x_bits);
        const Bf16s d_bits = random.Bits(size);
        const std::vector<float> d = FromBf16(d_bits);
        std::vector<float> y(size), d_x(size);
        GeluForwardReference({y.data(), x.data(), size, form});
        GeluBackwardReference({d_x.data(), x.data(), d.data(), size, form});

        auto shifted = [&](const Bf16s& bits) {
          Bf16s out(offset, kNanBf16);
          out.insert(out.end(), bits.begin(), bits.end());
          return ToDevice(out);
        };
        auto host = [&](const DeviceBuffer<uint16_t>& buffer) {
          const Bf16s all = ToHost(buffer);
          for (int64_t i = 0; i < offset; ++i) EXPECT_EQ(all[i], kNanBf16);
          return FromBf16(Bf16s(all.begin() + offset, all.end()));
        };
        DeviceBuffer<uint16_t> device_x = shifted(x_bits);
        DeviceBuffer<uint16_t> device_d = shifted(d_bits);
        DeviceBuffer<uint16_t> device_y = PoisonedBf16(offset + size);
        DeviceBuffer<uint16_t> device_d_x = PoisonedBf16(offset + size);
        absl::Status status = LaunchGeluForwardBf16(
            {device_y.data() + offset, device_x.data() + offset, size, form},
            nullptr);
        ASSERT_TRUE(status.ok()) << status;
        ExpectNear(host(device_y), y, kRelative, kAbsolute, "y");
        status = LaunchGeluBackwardBf16(
            {device_d_x.data() + offset, nullptr, device_x.data() + offset,
             device_d.data() + offset, size, form},
            nullptr);
        ASSERT_TRUE(status.ok()) << status;
        ExpectNear(host(device_d_x), d_x, kRelative, kAbsolute, "d_x");
        status = LaunchGeluBackwardBf16(
            {device_d.data() + offset, device_x.data() + offset,
             device_x.data() + offset, device_d.data() + offset, size, form},
            nullptr);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(host(device_d), host(device_d_x)) << "in place";
        EXPECT_EQ(host(device_x), host(device_y)) << "y again";
      }
    }
  }
}

TEST(GeluBf16Test, RefusesWhatCannotBe) {
  EXPECT_EQ(LaunchGeluForwardBf16({.num_elements = -1}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchGeluBackwardBf16({.num_elements = -1}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(LaunchGeluForwardBf16({.num_elements = 0}, nullptr).ok());
}

}  // namespace
}  // namespace millrace
