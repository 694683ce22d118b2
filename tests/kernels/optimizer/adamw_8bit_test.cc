#include "kernels/optimizer/adamw_8bit.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/optimizer/adamw.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

constexpr double kRate8bit = 1e-2;

bool SameBlocks(const std::vector<MomentBlock>& a,
                const std::vector<MomentBlock>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(MomentBlock)) == 0;
}

// The operands of an update, on both sides.
struct Blocks8 {
  explicit Blocks8(int64_t num_blocks)
      : size(num_blocks * kMomentBlockSize),
        parameters(RandomNormals().Floats(size)),
        m(static_cast<size_t>(num_blocks)),
        v(static_cast<size_t>(num_blocks)),
        master(ToDevice(parameters)),
        weights(PoisonedBf16(size)),
        exp_avg(ToDevice(m)),
        exp_avg_sq(ToDevice(v)),
        skip(ToDevice(std::vector<int32_t>{0})),
        clip_factor(ToDevice(std::vector<float>{0.75f})) {}

  AdamW8bitArgs GpuArgs(const DeviceBuffer<float>& gradients,
                        const DeviceBuffer<AdamWStep>& step) {
    return {.master = master.data(),
            .weights = weights.data(),
            .exp_avg = exp_avg.data(),
            .exp_avg_sq = exp_avg_sq.data(),
            .gradients = gradients.data(),
            .num_elements = size,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .epsilon = 1e-8,
            .weight_decay = 0.1,
            .device_step = step.data(),
            .clip_factor = clip_factor.data(),
            .skip = skip.data()};
  }
  AdamWArgs CpuArgs(const std::vector<float>& gradients, int64_t step) {
    return {.parameters = parameters.data(),
            .exp_avg = m.data(),
            .exp_avg_sq = v.data(),
            .gradients = gradients.data(),
            .num_elements = size,
            .learning_rate = kRate8bit,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .epsilon = 1e-8,
            .weight_decay = 0.1,
            .step = step,
            .gradient_scale = 0.75,
            .moments = MomentStorage::kBlocks8};
  }

  int64_t size;
  std::vector<float> parameters;
  std::vector<MomentBlock> m, v;
  DeviceBuffer<float> master;
  DeviceBuffer<uint16_t> weights;
  DeviceBuffer<MomentBlock> exp_avg, exp_avg_sq;
  DeviceBuffer<int32_t> skip;
  DeviceBuffer<float> clip_factor;
};

// Gradients of very different sizes, so that every decade of the codes occurs;
// some are zero.
std::vector<float> UnevenGradients(RandomNormals& random, int64_t size) {
  std::vector<float> gradients = random.Floats(size);
  float scale = 1.0f;
  for (size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] *= scale;
    scale = scale < 1e-6f ? 1.0f : scale * 0.7f;
    if (i % 97 == 0) gradients[i] = 0.0f;
  }
  return gradients;
}

// Goal: moments have the CPU's bits and parameters its values, over steps.
// Method: odd numbers of blocks. Both sides round moments alike; parameters
// differ by square root and division, good to 2^-22 each. Weights in bf16 are
// the master rounded to nearest.
TEST(AdamW8bitTest, HasTheCpusBits) {
  for (const int64_t num_blocks : {1, 7, 8, 9, 1001}) {
    SCOPED_TRACE(absl::StrCat(num_blocks, " blocks"));
    Blocks8 state(num_blocks);
    RandomNormals random;
    for (int64_t step = 1; step <= 6; ++step) {
      const std::vector<float> g = UnevenGradients(random, state.size);
      DeviceBuffer<float> gradients = ToDevice(g);
      DeviceBuffer<AdamWStep> device_step =
          ToDevice(std::vector<AdamWStep>{{kRate8bit, step}});
      const absl::Status status =
          LaunchAdamW8bit(state.GpuArgs(gradients, device_step), nullptr);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(AdamW(state.CpuArgs(g, step), 1).ok());
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_TRUE(SameBlocks(ToHost(state.exp_avg), state.m)) << step;
      EXPECT_TRUE(SameBlocks(ToHost(state.exp_avg_sq), state.v)) << step;
    }
    const std::vector<float> actual = ToHost(state.master);
    ExpectNear(actual, state.parameters, 2e-6, 1e-6, "parameters");
    EXPECT_EQ(ToHost(state.weights), ToBf16(actual));
  }
}

// Goal: a step that is skipped changes no bit, and one without a copy of the
// weights or a clip factor works.
TEST(AdamW8bitTest, SkipsWhenTold) {
  Blocks8 state(3);
  RandomNormals random;
  DeviceBuffer<float> gradients = ToDevice(random.Floats(state.size));
  DeviceBuffer<AdamWStep> step =
      ToDevice(std::vector<AdamWStep>{{kRate8bit, 1}});
  AdamW8bitArgs args = state.GpuArgs(gradients, step);
  args.weights = nullptr;
  args.clip_factor = nullptr;
  const int32_t told = 1;
  ASSERT_EQ(cudaMemcpy(state.skip.data(), &told, sizeof(told),
                       cudaMemcpyHostToDevice),
            cudaSuccess);
  ASSERT_TRUE(LaunchAdamW8bit(args, nullptr).ok());
  EXPECT_EQ(ToHost(state.master), state.parameters);
  EXPECT_TRUE(SameBlocks(ToHost(state.exp_avg), state.m));
  ASSERT_EQ(cudaMemset(state.skip.data(), 0, sizeof(int32_t)), cudaSuccess);
  ASSERT_TRUE(LaunchAdamW8bit(args, nullptr).ok());
  EXPECT_NE(ToHost(state.master), state.parameters);
  EXPECT_FALSE(SameBlocks(ToHost(state.exp_avg), state.m));
}

// Goal: what cannot be is refused by name before any launch.
TEST(AdamW8bitTest, RefusesWhatCannotBe) {
  Blocks8 state(2);
  DeviceBuffer<float> gradients = PoisonedFloats(state.size);
  DeviceBuffer<AdamWStep> step =
      ToDevice(std::vector<AdamWStep>{{kRate8bit, 1}});
  const auto refuse = [](const AdamW8bitArgs& args, const char* named) {
    const absl::Status status = LaunchAdamW8bit(args, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(named), absl::string_view::npos) << status;
  };
  AdamW8bitArgs args = state.GpuArgs(gradients, step);
  args.num_elements = 257;
  refuse(args, "257 elements");
  args = state.GpuArgs(gradients, step);
  args.beta1 = 1.0;
  refuse(args, "beta1 1");
  args = state.GpuArgs(gradients, step);
  args.exp_avg = nullptr;
  refuse(args, "null");
  args = state.GpuArgs(gradients, step);
  args.gradients += 1;
  refuse(args, "16 bytes");
  args = state.GpuArgs(gradients, step);
  args.num_elements = 0;
  EXPECT_TRUE(LaunchAdamW8bit(args, nullptr).ok());
}

}  // namespace
}  // namespace millrace
