#include "planner/fleet/uneven.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cost/op_cost.h"
#include "planner/cost/stage_time.h"
#include "planner/explain/explain.h"
#include "planner/explain/explain_json.h"
#include "planner/fleet/device_pools.h"
#include "tests/planner/planning_fixture.h"
#include "tests/planner/shipped.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr double kForever = std::numeric_limits<double>::infinity();

std::vector<DevicePool> FastAndSlow(int32_t fast_nodes, int32_t slow_nodes) {
  return {{.profile = Shipped("h100-sxm"),
           .nodes = {{.nodes = fast_nodes, .devices = 8}}},
          {.profile = Shipped("a100-80gb"),
           .nodes = {{.nodes = slow_nodes, .devices = 8}}}};
}

int64_t LayersOf(const UnevenPlan& plan) {
  int64_t sum = 0;
  for (const UnevenPart& part : plan.parts) {
    sum = std::accumulate(part.layers_by_stage.begin(),
                          part.layers_by_stage.end(), sum);
  }
  return sum;
}

int64_t MicrobatchesOf(const UnevenPlan& plan) {
  int64_t sum = 0;
  for (const UnevenPart& part : plan.parts) {
    sum += int64_t{part.num_replicas} * part.num_microbatches -
           part.num_replicas_with_one_less;
  }
  return sum;
}

// Goal: layers go to stages by the speed of their devices, and all that is
// planned is within the memory of each type. Method: one node of each type, one
// replica of two stages.
TEST(UnevenTest, SplitsLayersBySpeed) {
  const std::vector<DevicePool> pools = FastAndSlow(1, 1);
  JobSpec job = Llama8B(32);
  job.layout.data = 1;
  job.layout.tensor = 8;
  const auto found =
      FindUnevenStages({.job = job, .pools = pools, .slowest_s = kForever});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(found->plan.has_value());
  const UnevenPlan& plan = *found->plan;
  EXPECT_EQ(LayersOf(plan), 32);
  EXPECT_EQ(plan.layout.pipeline, 2);
  ASSERT_EQ(plan.parts.size(), 2u);
  for (const UnevenPart& part : plan.parts) {
    const bool is_fast = part.devices == pools[0].profile.name;
    EXPECT_LE(part.memory_bytes,
              pools[is_fast ? 0 : 1].profile.device_memory_bytes);
    // An H100 does twice to three times as much as an A100.
    EXPECT_GE(part.layers_by_stage[0], is_fast ? 20 : 8);
    EXPECT_LE(part.layers_by_stage[0], is_fast ? 24 : 12);
    EXPECT_EQ(part.num_devices, 8);
  }
  EXPECT_GT(plan.step_time_s, 0);
  // Passes and the closed form are built from the same parts.
  const double closed_form_s = plan.closed_form.time.step_time_s();
  EXPECT_NEAR(plan.step_time_s / closed_form_s, 1, 0.05);
  EXPECT_EQ(plan.timeline.classes.size(), 2u);
  // The floor leaves out little but the bubble and whole layers.
  const auto floor_s =
      UnevenFloor({.job = job, .pools = pools, .slowest_s = kForever});
  ASSERT_TRUE(floor_s.ok()) << floor_s.status();
  EXPECT_LT(*floor_s, closed_form_s);
  EXPECT_GT(*floor_s, 0.8 * closed_form_s);
}

// Goal: of all stages, types, orders and layers there are, the quickest is
// found. Method: a model of four layers on two and three devices, every
// combination priced by hand from the figures of its stages; sharding, replicas
// and ZeRO are pinned.
TEST(UnevenTest, FindsTheQuickestOfAllStages) {
  JobSpec job = Llama8B(16);
  job.model.num_layers = 5;
  job.model.hidden = 1024;
  job.model.num_heads = job.model.num_kv_heads = 8;
  job.model.ffn_hidden = 4096;
  job.layout = {.data = 1, .tensor = 1, .micro_batch = 1, .zero = 0};
  job.layout.context = 1;
  job.layout.recompute = "none";
  std::vector<DevicePool> pools = FastAndSlow(1, 1);
  pools[0].nodes = {{.nodes = 1, .devices = 2}};
  pools[1].nodes = {{.nodes = 1, .devices = 3}};
  const auto found =
      FindUnevenStages({.job = job, .pools = pools, .slowest_s = kForever});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(found->plan.has_value());

  std::vector<StepModel> models;
  for (const DevicePool& pool : pools) {
    models.push_back(*StepModel::Create(job.model, pool.profile,
                                        {.pipeline_outermost = true}));
  }
  double least = kForever;
  // By stage: which type.
  const auto price = [&](const std::vector<int>& types,
                         const std::vector<int64_t>& layers) {
    const auto p = static_cast<int32_t>(types.size());
    Layout layout{.pipeline = p,
                  .num_microbatches = 16,
                  .precision = Precision::kBfloat16};
    double sum = 0, slowest = 0, hop = 0, data = 0, optimizer = 0;
    for (int32_t s = 0; s < p; ++s) {
      const auto figures =
          models[types[s]].PredictStage(layout, {.num_dense = layers[s],
                                                 .has_embedding = s == 0,
                                                 .has_head = s + 1 == p,
                                                 .first = s});
      const double pass_s = figures.pass.forward_s +
                            figures.pass.input_gradient_s +
                            figures.pass.weight_gradient_s;
      sum += pass_s;
      slowest = std::max(slowest, pass_s);
      hop = std::max(hop, figures.transfer_s);
      data = std::max(data, figures.data_s);
      optimizer = std::max(optimizer, figures.ends.optimizer_s);
    }
    least = std::min(least,
                     sum + 15 * slowest + 2 * (p - 1) * hop + data + optimizer);
  };
  for (const bool fast_first : {true, false}) {
    for (int fast = 1; fast <= 2; ++fast) {
      for (int slow = 1; slow <= 3; ++slow) {
        std::vector<int> types(fast_first ? fast : slow, fast_first ? 0 : 1);
        types.resize(fast + slow, fast_first ? 1 : 0);
        std::vector<int64_t> layers(types.size());
        const std::function<void(size_t, int64_t)> go = [&](size_t i,
                                                            int64_t left) {
          if (i == types.size()) {
            if (left == 0) price(types, layers);
            return;
          }
          for (layers[i] = 1; layers[i] <= left; ++layers[i]) {
            go(i + 1, left - layers[i]);
          }
        };
        go(0, 5);
      }
    }
  }
  // What the optimizer of more layers adds is not what layers are shared by.
  EXPECT_NEAR(found->plan->closed_form.time.step_time_s() / least, 1, 0.002);
  EXPECT_GE(found->plan->closed_form.time.step_time_s(), least * (1 - 1e-9));
}

// Goal: replicas get micro-batches by the speed of their devices, all of the
// batch and no more, within memory, and none sits on devices that only wait.
TEST(UnevenTest, SplitsMicrobatchesBySpeed) {
  const std::vector<DevicePool> pools = FastAndSlow(4, 4);
  for (const int64_t batch : {128, 250, 1000}) {
    JobSpec job = Llama8B(batch);
    job.layout.micro_batch = 1;
    const auto found =
        FindUnevenReplicas({.job = job, .pools = pools, .slowest_s = kForever});
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(found->plan.has_value());
    const UnevenPlan& plan = *found->plan;
    EXPECT_EQ(MicrobatchesOf(plan), batch);
    const auto floor_s =
        UnevenFloor({.job = job, .pools = pools, .slowest_s = kForever});
    ASSERT_TRUE(floor_s.ok()) << floor_s.status();
    EXPECT_LT(*floor_s, plan.closed_form.time.step_time_s());
    ASSERT_EQ(plan.parts.size(), 2u);
    for (const UnevenPart& part : plan.parts) {
      EXPECT_GT(part.num_replicas, 0);
      EXPECT_LT(part.num_replicas_with_one_less, part.num_replicas);
      EXPECT_LE(part.memory_bytes, int64_t{80} << 30);
    }
    const double ratio = static_cast<double>(plan.parts[0].num_microbatches) /
                         plan.parts[1].num_microbatches;
    EXPECT_GE(ratio, 1.5);
    EXPECT_LE(ratio, 4);
    EXPECT_NEAR(plan.parts[0].busy_s / plan.parts[1].busy_s, 1, 0.5);
  }
}

// Goal: unequal shares are chosen where they are faster than equal ones, and
// said; equal inputs give equal plans. Method: as many slow nodes as fast ones;
// then a share of work too small to be worth waiting for.
TEST(UnevenTest, IsChosenWhereItIsFaster) {
  const std::vector<DevicePool> pools = FastAndSlow(4, 4);
  const SearchInput input{.job = Llama8B(512)};
  const auto plan = FindPlanForPools(input, pools);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_NE(plan->uneven, nullptr);
  EXPECT_TRUE(plan->plan_only);
  const auto alone = FindPlanForPools(input, std::span(pools).first(1));
  ASSERT_TRUE(alone.ok());
  // 32 of each do at most half as much again as 32 fast ones, and more than a
  // quarter.
  const double gain =
      alone->prediction.step_time_s / plan->prediction.step_time_s;
  EXPECT_GT(gain, 1.25);
  EXPECT_LT(gain, 1.5);
  EXPECT_THAT(plan->warnings.front(), HasSubstr("by speed"));
  EXPECT_NEAR(plan->prediction.tokens_per_s,
              512.0 * 8192 / plan->prediction.step_time_s, 1e-3);
  const double share = plan->prediction.mfu_causal;
  EXPECT_GT(share, 0.3);
  EXPECT_LT(share, 0.7);
  // Bounded, if not proven the best.
  ASSERT_TRUE(plan->optimality_gap.has_value());
  EXPECT_GT(*plan->optimality_gap, 0);
  EXPECT_LT(*plan->optimality_gap, 0.2);
  const auto again = FindPlanForPools(input, pools);
  EXPECT_EQ(again->layout, plan->layout);
  EXPECT_EQ(again->prediction.step_time_s, plan->prediction.step_time_s);

  const std::string text = ExplainPlan(input.job, pools[0].profile, *plan, {});
  EXPECT_THAT(text, HasSubstr("  shares       "));
  EXPECT_THAT(text, HasSubstr("a100-80gb: "));
  const std::string json = PlanToJson(*plan, {});
  EXPECT_THAT(json, HasSubstr("\"uneven\""));
  EXPECT_THAT(json, HasSubstr("\"split\""));
}

// Goal: what each stage computes again, if the job says so, has no unequal
// shares and is no mistake. Method: two stages.
TEST(UnevenTest, LeavesPinnedStagesAlone) {
  const std::vector<DevicePool> pools = FastAndSlow(1, 1);
  JobSpec job = Llama8B(32);
  job.layout.recompute = "full, none";
  const UnevenSearch search{.job = job, .pools = pools, .slowest_s = kForever};
  for (const auto find : {FindUnevenStages, FindUnevenReplicas}) {
    const auto found = find(search);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_FALSE(found->plan.has_value());
  }
  EXPECT_EQ(UnevenFloor(search).value(), kForever);
}

// Goal: constraints of the job hold for unequal shares too.
TEST(UnevenTest, KeepsConstraints) {
  const std::vector<DevicePool> pools = FastAndSlow(2, 2);
  JobSpec job = Llama8B(128);
  job.layout.tensor = 4;
  job.layout.pipeline = 2;
  job.layout.zero = 1;
  job.layout.recompute = "full";
  for (const auto find : {FindUnevenStages, FindUnevenReplicas}) {
    const auto found =
        find({.job = job, .pools = pools, .slowest_s = kForever});
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(found->plan.has_value());
    EXPECT_EQ(found->plan->layout.tensor, 4);
    EXPECT_EQ(found->plan->layout.pipeline, 2);
    EXPECT_EQ(found->plan->layout.zero, 1);
    EXPECT_EQ(found->plan->layout.recompute, Recompute::kFull);
  }
  // Nothing slower than asked for.
  EXPECT_FALSE(FindUnevenStages({.job = job, .pools = pools, .slowest_s = 1e-3})
                   ->plan.has_value());
  // Nothing that does not fit.
  job.resources.memory_per_device_bytes = int64_t{4} << 30;
  EXPECT_FALSE(
      FindUnevenReplicas({.job = job, .pools = pools, .slowest_s = kForever})
          ->plan.has_value());
}

}  // namespace
}  // namespace millrace
