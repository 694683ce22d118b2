// The two grains of simulation agree: what passes say of a step of Programs is
// what its instructions say.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "planner/lower/lower.h"
#include "planner/search/program_prediction.h"
#include "planner/simulate/simulate_passes.h"
#include "tests/planner/known_models.h"
#include "tests/planner/shipped.h"

namespace millrace {
namespace {

// Draws from lists, alike on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  template <typename Value>
  Value From(std::initializer_list<Value> values) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return values.begin()[(state_ >> 33) % values.size()];
  }

 private:
  uint64_t state_;
};

struct Step {
  ModelSpec model;
  Layout layout;
};

Step DrawStep(Draws& draws) {
  Step step{.model = draws.From({0, 1}) == 1 ? Llama3_8B() : Llama3_70B()};
  step.model.num_layers = draws.From({8, 12, 16});
  step.model.sequence_length = draws.From({2048, 4096, 8192});
  Layout& layout = step.layout;
  layout.precision = Precision::kBfloat16;
  layout.pipeline = draws.From({1, 2, 2, 4, 4});
  layout.tensor = draws.From({1, 2, 4});
  layout.data = draws.From({1, 2, 4});
  layout.micro_batch = draws.From({1, 2});
  layout.num_microbatches = layout.pipeline * draws.From({1, 2, 4});
  if (layout.data > 1) layout.zero = draws.From({0, 1, 1, 2, 3});
  if (layout.pipeline > 1 && draws.From({0, 1}) == 1) {
    layout.schedule = Schedule::kZeroBubble;
  }
  SetRecompute(draws.From({"full", "none", "norm+activation"}), &layout);
  return step;
}

// The part of `off` that is at most `bar`.
double ShareWithin(const std::vector<double>& off, double bar) {
  return static_cast<double>(std::count_if(
             off.begin(), off.end(), [&](double o) { return o <= bar; })) /
         static_cast<double>(off.size());
}

// Goal: the two grains say the same of a step. Method: 50 drawn layouts on the
// measured H200. The aim is 1 % for all of them. The bars are what is reached:
// 37 of the 50 are within 1 %. Passes leave out
//   - that kernels are longer while their stage waits for a neighbour: up to
//     3 % where kernels are short and micro-batches many;
//   - that the compute lane waits for reductions under ZeRO 2, and that traffic
//     slows the parts of a pass unevenly where tensor > 1.
TEST(GrainsTest, Agree) {
  const HardwareProfile profile = Shipped("h200-sxm");
  const CostModel cost = CostOf(profile);
  Draws draws(15);
  // By how much passes are off, where gradients are whole and where sharded.
  std::vector<double> whole, sharded;
  while (whole.size() + sharded.size() < 50) {
    const Step step = DrawStep(draws);
    const Layout& layout = step.layout;
    if (!ValidateLayout(step.model, layout, layout.global_batch()).ok()) {
      continue;
    }
    SCOPED_TRACE(LayoutToString(layout));
    const auto programs = BuildTrainingPrograms(step.model, layout);
    ASSERT_TRUE(programs.ok()) << programs.status();
    const auto instructions = SimulatePrograms(*programs, cost);
    ASSERT_TRUE(instructions.ok()) << instructions.status();
    const auto passes = PassesOfPrograms(*programs, cost);
    ASSERT_TRUE(passes.ok()) << passes.status();
    const auto simulated = SimulateCluster(
        *passes, {.overlap = profile.overlap, .keeps_timeline = false});
    ASSERT_TRUE(simulated.ok()) << simulated.status();
    const double off =
        std::abs(simulated->step_time_s / instructions->step_time_s - 1);
    EXPECT_LE(off, layout.shards_gradients() ? 0.06 : 0.035);
    (layout.shards_gradients() ? sharded : whole).push_back(off);
  }
  EXPECT_GE(ShareWithin(whole, 0.005), 0.5);
  EXPECT_GE(ShareWithin(whole, 0.01), 0.75);
  EXPECT_GE(ShareWithin(sharded, 0.01), 0.5);
}

}  // namespace
}  // namespace millrace
