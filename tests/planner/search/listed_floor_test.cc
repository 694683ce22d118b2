#include "planner/search/listed_floor.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/cost/framework_behaviour.h"
#include "planner/pipeline/greedy_order.h"
#include "planner/pipeline/list_schedule.h"
#include "planner/pipeline/pass_order.h"
#include "planner/profile/shipped_profiles.h"
#include "planner/search/all_axes_space.h"
#include "planner/search/listed_order.h"
#include "tests/planner/pipeline/order_testing.h"
#include "tests/planner/planning_fixture.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

// Goal: whatever a step has beside its passes, its simulation is not below the
// floor. Method: thousands of random steps, of random gathers, reductions,
// buckets and overlap, in greedy, listed and known orders.
TEST(LeastStepSecondsTest, NoSimulationIsBelow) {
  double closest = 0;
  for (uint32_t seed = 0; seed < 3000; seed += SweepStep(23)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto pick = [&](uint32_t n) {
      return static_cast<int32_t>(random() % n);
    };
    ClusterStep step{.costs = RandomPipeline(random, 1 + pick(3), 5, 8),
                     .order = {},
                     .ends = {},
                     .num_buckets = 1 + pick(5),
                     .data_hidden_share = pick(5) / 4.0,
                     .overlaps_transfers = pick(2) == 0,
                     .num_replicas = 1 + pick(3)};
    const int32_t num_ends = pick(2) == 0 ? 1 : step.costs.num_stages;
    for (int32_t i = 0; i < num_ends; ++i) {
      step.ends.push_back({.gradient_reduction_s = 0.3 * pick(4),
                           .parameter_gather_s = 0.3 * pick(4),
                           .optimizer_s = 0.1 * pick(4)});
    }
    std::vector<int64_t> bytes;
    const int32_t slack = pick(4) * 100;
    for (int32_t s = 0; s < step.costs.num_stages; ++s) {
      bytes.push_back(LeastBytes(step.costs, s) + slack);
    }
    const ClusterOptions options = {
        .overlap = {.compute = 1 + pick(3) / 10.0,
                    .communication = 1 + pick(3) / 10.0},
        .keeps_timeline = false};
    // A step whose transfers take its stages' time may have an order that they
    // block.
    ListPolicy policy{.most_ahead = std::vector<int32_t>(bytes.size(), 20),
                      .most_put_off = std::vector<int32_t>(bytes.size(), 20)};
    policy.preference = static_cast<Preference>(pick(3));
    step.order = GreedyOrder(step.costs, bytes, 0, policy);
    if (seed % 20 == 0) {
      ASSERT_TRUE(ListPasses(bytes, &step).ok());
    }
    const absl::StatusOr<ClusterSimulation> listed =
        SimulateCluster(step, options);
    if (listed.ok()) {
      const double floor_s = LeastStepSeconds(step, bytes, options.overlap);
      EXPECT_LE(floor_s, listed->step_time_s * (1 + 1e-9));
      closest = std::max(closest, floor_s / listed->step_time_s);
    } else {
      EXPECT_FALSE(step.overlaps_transfers) << listed.status();
    }
    for (const Schedule schedule :
         {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble,
          Schedule::kInterleaved}) {
      const auto known = OrderOf(schedule, step.costs);
      if (!known.ok()) continue;
      step.order = *known;
      const auto simulated = SimulateCluster(step, options);
      if (!simulated.ok()) continue;
      EXPECT_LE(LeastStepSeconds(step, {}, options.overlap),
                simulated->step_time_s * (1 + 1e-9));
    }
  }
  EXPECT_GT(closest, kSanitized ? 0.99 : 0.999);
}

// Goal: what the search for floors says of an order and a ZeRO stage is below
// every listed plan of it, whatever is computed again and held, and its own
// floors are below what it says. Method: every layout of few chunks of a small
// space, in much and in little memory.
TEST(ListFloorEvaluatorTest, NoListedPlanIsBelow) {
  const HardwareProfile profile = *LoadNamedProfile("h100-sxm");
  const Implementation implementation;
  JobSpec job = Llama8B(8);
  job.layout.schedule = "list";
  job.layout.tensor = 2;
  job.layout.context = 1;
  job.layout.micro_batch = 1;
  const PlannedSpace space(LayoutSpaceOf(job, 16));
  StepModel model = *StepModel::Create(job.model, profile, implementation);
  int num_listed = 0, num_tight = 0;
  for (const int64_t limit : {int64_t{40} << 30, int64_t{80} << 30}) {
    ListFloorEvaluator evaluator(
        space, model, limit, 0.5,
        {.compute_slowdown = profile.overlap.compute,
         .communication_slowdown = profile.overlap.communication});
    for (Layout layout : Sampled(EnumeratePlannedLayouts(space), 7)) {
      if (layout.interleave > 3 || layout.pipeline > 4) continue;
      SCOPED_TRACE(LayoutToString(layout));
      const StepPrediction floor = evaluator.Predict(layout);
      Layout first = layout;
      first.recompute = Recompute::kNone;
      EXPECT_LE(evaluator.VariantFloor(first),
                floor.time.step_time_s() * (1 + 1e-9));
      Layout order = layout;
      order.zero = 0;
      order.recompute = Recompute::kNone;
      EXPECT_LE(evaluator.OrderFloor(order),
                floor.time.step_time_s() * (1 + 1e-9));
      EXPECT_LE(evaluator.OrderMemoryFloor(order), floor.memory.total());
      ClusterStep step = *ClusterStepOf(layout, implementation, profile, model);
      step.data_hidden_share = 0.5;
      const auto listed = FindListedOrder(
          layout, step, {.overlap = profile.overlap, .keeps_timeline = false},
          limit, 1e9, model);
      ASSERT_TRUE(listed.ok()) << listed.status();
      if (!listed->has_value()) continue;
      ++num_listed;
      EXPECT_LE(floor.memory.total(), limit);
      const double seconds = (*listed)->simulation.step_time_s;
      EXPECT_LE(floor.time.step_time_s(), seconds * (1 + 1e-9));
      if (floor.time.step_time_s() > 0.95 * seconds) ++num_tight;
    }
  }
  EXPECT_GT(num_listed, kSanitized ? 2 : 20);
  EXPECT_GT(num_tight, num_listed / 4);
}

}  // namespace
}  // namespace millrace
