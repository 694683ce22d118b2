#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/optimizer/adamw.h"
#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

using Outputs = std::vector<std::vector<float>>;

struct State {
  std::vector<float> parameters, exp_avg, exp_avg_sq, gradients;

  AdamWArgs Args(int64_t step) {
    return {.parameters = parameters.data(),
            .exp_avg = exp_avg.data(),
            .exp_avg_sq = exp_avg_sq.data(),
            .gradients = gradients.data(),
            .num_elements = static_cast<int64_t>(parameters.size()),
            .learning_rate = 3e-3,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .epsilon = 1e-8,
            .weight_decay = 0.1,
            .step = step,
            .gradient_scale = 0.7};
  }
};

State RandomState(int64_t size, uint32_t seed) {
  RandomFloats random(seed);
  State state = {random(size), random(size, 0.1f), random(size, 0.01f),
                 random(size)};
  for (float& value : state.exp_avg_sq) value = std::fabs(value);
  return state;
}

// Goal: one step from any state means what the reference says, at the first
// step and at a late one. Tolerance: a dozen roundings of parameters below 1.1.
TEST(AdamWTest, MatchesReference) {
  for (int64_t size : {0, 1, 15, 17, 100, 70001}) {
    for (int64_t step : {1, 2, 1000, 1000000}) {
      SCOPED_TRACE(absl::StrCat(size, " elements, step ", step));
      const State before = RandomState(size, 1);
      const auto run = [&](int num_threads) -> Outputs {
        State state = before;
        if (num_threads == 0) {
          AdamWReference(state.Args(step));
        } else {
          EXPECT_TRUE(AdamW(state.Args(step), num_threads).ok());
        }
        return {state.parameters, state.exp_avg, state.exp_avg_sq};
      };
      ExpectKernelMatches(run(0), 1e-6, run);
    }
  }
}

// Goal: a rank that updates only a slice gets the bits of one that updates all.
TEST(AdamWTest, SlicesGiveTheSameBits) {
  const State before = RandomState(1000, 2);
  ForEachCpuLevel([&] {
    State whole = before;
    ASSERT_TRUE(AdamW(whole.Args(3), 1).ok());
    State sliced = before;
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 7}, {7, 333}, {333, 1000}}) {
      AdamWArgs args = sliced.Args(3);
      args.parameters += begin;
      args.exp_avg = sliced.exp_avg.data() + begin;
      args.exp_avg_sq = sliced.exp_avg_sq.data() + begin;
      args.gradients += begin;
      args.num_elements = end - begin;
      ASSERT_TRUE(AdamW(args, 1).ok());
    }
    ExpectSameBits(sliced.parameters, whole.parameters, "parameters");
    ExpectSameBits(sliced.exp_avg_sq, whole.exp_avg_sq, "exp_avg_sq");
  });
}

// Goal: the reference is AdamW: its first step from zero moments moves by the
// learning rate against the gradient's sign, after decay, whatever the
// gradient's size. Tolerance: epsilon beside a gradient of 0.5 and rounding.
TEST(AdamWTest, FirstStepMovesByTheLearningRate) {
  State state = {{1.0f, 1.0f}, {0.0f, 0.0f}, {0.0f, 0.0f}, {0.5f, -20.0f}};
  AdamWReference(state.Args(1));
  const double decayed = 1.0 - 3e-3 * 0.1;
  EXPECT_NEAR(state.parameters[0], decayed - 3e-3, 1e-7);
  EXPECT_NEAR(state.parameters[1], decayed + 3e-3, 1e-7);
}

TEST(AdamWTest, RefusesBadArguments) {
  State state = RandomState(4, 3);
  AdamWArgs args = state.Args(0);
  EXPECT_EQ(AdamW(args, 1).code(), absl::StatusCode::kInvalidArgument);
  args = state.Args(1);
  args.beta2 = 1.0;
  EXPECT_EQ(AdamW(args, 1).code(), absl::StatusCode::kInvalidArgument);
  args = state.Args(1);
  args.num_elements = -1;
  EXPECT_EQ(AdamW(args, 1).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
