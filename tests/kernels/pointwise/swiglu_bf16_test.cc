#include "kernels/pointwise/swiglu_bf16.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/swiglu.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// fp32 inside and one rounding: half a step of bf16, 2^-8 of the value, and a
// little for the exponential.
constexpr double kSwigluRelative = 0x1p-8 * 1.01;
constexpr double kSwigluAbsolute = 1e-6;

struct SwigluShape {
  int64_t num_tokens, ffn_hidden;
  int64_t padding;  // Between rows of the fused projection, in elements.
  int64_t offset;   // Every tensor's, from an aligned address.
};

struct Expected {
  std::vector<float> activation, d_gate_up;
};

Expected Compute(const SwigluShape& shape, const Bf16s& gate_up,
                 const Bf16s& d) {
  Expected expected = {std::vector<float>(d.size()),
                       std::vector<float>(gate_up.size())};
  const std::vector<float> wide = FromBf16(gate_up);
  const std::vector<float> wide_d = FromBf16(d);
  SwigluForwardReference({.activation = expected.activation.data(),
                          .gate_up = wide.data(),
                          .num_tokens = shape.num_tokens,
                          .ffn_hidden = shape.ffn_hidden});
  SwigluBackwardReference({.d_gate_up = expected.d_gate_up.data(),
                           .gate_up = wide.data(),
                           .d_activation = wide_d.data(),
                           .num_tokens = shape.num_tokens,
                           .ffn_hidden = shape.ffn_hidden});
  return expected;
}

// Rows spread out to `stride` from `offset` on, NaN between them; and back,
// where what lies between must still be NaN.
Bf16s Spread(const Bf16s& rows, int64_t num_rows, int64_t columns,
             int64_t stride, int64_t offset) {
  Bf16s out(offset + num_rows * stride, kNanBf16);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[offset + r * stride + c] = rows[r * columns + c];
    }
  }
  return out;
}
std::vector<float> Gather(const Bf16s& spread, int64_t num_rows,
                          int64_t columns, int64_t stride, int64_t offset) {
  std::vector<float> out;
  for (int64_t i = 0; i < offset; ++i) EXPECT_EQ(spread[i], kNanBf16);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t c = 0; c < stride; ++c) {
      const uint16_t bits = spread[offset + r * stride + c];
      if (c < columns) {
        out.push_back(FromBf16(bits));
      } else {
        EXPECT_EQ(bits, kNanBf16) << "written between rows";
      }
    }
  }
  return out;
}

float LargestOf(const std::vector<float>& values) {
  float largest = 0.0f;
  for (const float x : values) largest = std::fmax(largest, std::fabs(x));
  return largest;
}

class SwigluBf16Test : public testing::TestWithParam<SwigluShape> {};

// Goal: forward and backward mean what swiglu.h says on the halves of a fused
// projection, wherever its rows lie, write every element and nothing else, and
// may overwrite their inputs; amax is the largest magnitude of what they wrote.
// Method: odd shapes against the reference on fresh
// normal inputs, outputs and gaps poisoned with NaN.
TEST_P(SwigluBf16Test, MatchesTheReference) {
  const SwigluShape shape = GetParam();
  const int64_t tokens = shape.num_tokens;
  const int64_t ffn = shape.ffn_hidden;
  const int64_t stride = 2 * ffn + shape.padding;
  RandomNormals random;
  const Bf16s gate_up = random.Bits(tokens * 2 * ffn);
  const Bf16s d = random.Bits(tokens * ffn);
  const Expected expected = Compute(shape, gate_up, d);

  DeviceBuffer<uint16_t> device_gate_up =
      ToDevice(Spread(gate_up, tokens, 2 * ffn, stride, shape.offset));
  DeviceBuffer<uint16_t> device_d =
      ToDevice(Spread(d, tokens, ffn, ffn, shape.offset));
  auto half = [&](DeviceBuffer<uint16_t>& fused, int64_t index) {
    return Bf16Rows{fused.data() + shape.offset + index * ffn, stride};
  };
  auto dense = [&](DeviceBuffer<uint16_t>& buffer) {
    return Bf16Rows{buffer.data() + shape.offset, ffn};
  };
  DeviceBuffer<uint16_t> activation = PoisonedBf16(shape.offset + tokens * ffn);
  DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
  absl::Status status =
      LaunchSwigluForwardBf16({.activation = dense(activation),
                               .gate = half(device_gate_up, 0),
                               .up = half(device_gate_up, 1),
                               .num_tokens = tokens,
                               .ffn_hidden = ffn,
                               .amax = amax.data()},
                              nullptr);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> forward =
      Gather(ToHost(activation), tokens, ffn, ffn, shape.offset);
  ExpectNear(forward, expected.activation, kSwigluRelative, kSwigluAbsolute,
             "activation");
  EXPECT_EQ(ToHost(amax)[0], LargestOf(forward));

  // Once with outputs of their own, once over the inputs.
  DeviceBuffer<uint16_t> d_gate_up =
      PoisonedBf16(shape.offset + tokens * stride);
  DeviceBuffer<uint16_t> again = PoisonedBf16(shape.offset + tokens * ffn);
  for (const bool in_place : {false, true}) {
    SCOPED_TRACE(in_place ? "in place" : "apart");
    DeviceBuffer<uint16_t>& out = in_place ? device_gate_up : d_gate_up;
    DeviceBuffer<uint16_t>& out_again = in_place ? device_d : again;
    DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
    status =
        LaunchSwigluBackwardBf16({.d_gate = half(out, 0),
                                  .d_up = half(out, 1),
                                  .activation = dense(out_again),
                                  .gate = half(device_gate_up, 0),
                                  .up = half(device_gate_up, 1),
                                  .d_activation = dense(device_d),
                                  .num_tokens = tokens,
                                  .ffn_hidden = ffn,
                                  .amax = in_place ? amax.data() : nullptr},
                                 nullptr);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<float> gradients =
        Gather(ToHost(out), tokens, 2 * ffn, stride, shape.offset);
    ExpectNear(gradients, expected.d_gate_up, kSwigluRelative, kSwigluAbsolute,
               "d_gate_up");
    EXPECT_EQ(ToHost(amax)[0], in_place ? LargestOf(gradients) : 0.0f);
    EXPECT_EQ(ToHost(out_again), ToHost(activation))
        << "the activation differs from the forward pass's";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SwigluBf16Test,
    testing::Values(SwigluShape{1, 1, 0, 0}, SwigluShape{3, 7, 0, 0},
                    SwigluShape{5, 8, 0, 0}, SwigluShape{33, 24, 8, 0},
                    SwigluShape{17, 20, 8, 0}, SwigluShape{129, 1366, 4, 0},
                    SwigluShape{7, 1000, 0, 3}, SwigluShape{2, 4096, 16, 8},
                    SwigluShape{65, 2056, 1, 0}),
    [](const testing::TestParamInfo<SwigluShape>& info) {
      return absl::StrCat("T", info.param.num_tokens, "F",
                          info.param.ffn_hidden, "P", info.param.padding, "O",
                          info.param.offset);
    });

// Goal: gates far from zero neither overflow nor lose their sign: silu goes to
// the gate itself or to zero.
TEST(SwigluBf16Test, HoldsAtTheEnds) {
  const std::vector<float> gates = {-1e30f, -200.0f, -90.0f, -20.0f,
                                    0.0f,   20.0f,   90.0f,  1e30f};
  DeviceBuffer<uint16_t> gate = ToDevice(ToBf16(gates));
  DeviceBuffer<uint16_t> up = ToDevice(Bf16s(8, ToBf16(1.0f)));
  DeviceBuffer<uint16_t> d_gate = PoisonedBf16(8);
  DeviceBuffer<uint16_t> d_up = PoisonedBf16(8);
  DeviceBuffer<uint16_t> again = PoisonedBf16(8);
  const absl::Status status =
      LaunchSwigluBackwardBf16({.d_gate = {d_gate.data(), 8},
                                .d_up = {d_up.data(), 8},
                                .activation = {again.data(), 8},
                                .gate = {gate.data(), 8},
                                .up = {up.data(), 8},
                                .d_activation = {up.data(), 8},
                                .num_tokens = 1,
                                .ffn_hidden = 8},
                               nullptr);
  ASSERT_TRUE(status.ok()) << status;
  std::vector<float> silu(8), slope(8);
  for (int i = 0; i < 8; ++i) {
    const double x = FromBf16(ToBf16(gates[i]));
    const double sigmoid = 1.0 / (1.0 + std::exp(-x));
    silu[i] = static_cast<float>(x * sigmoid);
    slope[i] = static_cast<float>(sigmoid * (1.0 + x * (1.0 - sigmoid)));
  }
  ExpectNear(FromBf16(ToHost(again)), silu, kSwigluRelative, kSwigluAbsolute,
             "silu");
  ExpectNear(FromBf16(ToHost(d_up)), silu, kSwigluRelative, kSwigluAbsolute,
             "d_up");
  ExpectNear(FromBf16(ToHost(d_gate)), slope, kSwigluRelative, kSwigluAbsolute,
             "d_gate");
}

TEST(SwigluBf16Test, RefusesWhatCannotBe) {
  Bf16Rows rows = {reinterpret_cast<void*>(64), 8};
  auto forward = [&](int64_t tokens, int64_t ffn) {
    return LaunchSwigluForwardBf16({.activation = rows,
                                    .gate = rows,
                                    .up = rows,
                                    .num_tokens = tokens,
                                    .ffn_hidden = ffn},
                                   nullptr);
  };
  EXPECT_EQ(forward(-1, 8).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forward(1, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forward(1, 9).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(forward(0, 8).ok());
}

}  // namespace
}  // namespace millrace
