#include "planner/fleet/plan_templates.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/search/search.h"
#include "tests/planner/planning_fixture.h"
#include "tests/planner/shipped.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Goal: templates are what a search would say, and end where nothing fits.
// Method: against fresh searches without so many nodes.
TEST(PlanTemplatesTest, AreWhatASearchSays) {
  const CostModel cost = CostOf(Shipped("h100-sxm"));
  const SearchInput input{
      .job = Llama8B(128), .num_devices = 32, .allows_plan_only = true};
  const auto whole = FindPlan(input, cost);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto templates = PlanTemplates::Create(input, *whole, cost, 8, 5);
  ASSERT_TRUE(templates.ok()) << templates.status();
  ASSERT_NE(templates->Find(0), nullptr);
  EXPECT_EQ(templates->Find(0)->layout, whole->layout);
  EXPECT_EQ(templates->Find(-1), nullptr);
  EXPECT_EQ(templates->Find(4), nullptr);
  EXPECT_THAT(std::string(templates->end().message()),
              HasSubstr("no device is left without 4 nodes of 8"));
  for (int32_t lost = 1; lost <= 3; ++lost) {
    const PlanTemplate* found = templates->Find(lost);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->num_devices, 32 - 8 * lost);
    const auto plan = Replan(input, 8 * lost, cost);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(found->layout, plan->layout);
    EXPECT_FALSE(found->keeps_layout);
    EXPECT_GE(found->num_idle_devices(), 0);
  }
  const std::vector<double> shares = templates->ThroughputByNodesLost();
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_LT(shares[0], 1);
  EXPECT_GT(shares[0], shares[1]);
  EXPECT_GT(shares[1], shares[2]);
  EXPECT_EQ(PlanTemplates::Create(input, *whole, cost, 0, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Where not even one node may be lost, there is just no template.
  SearchInput all = input;
  all.job.layout.devices = 32;
  const auto none =
      PlanTemplates::Create(all, FindPlan(all, cost).value(), cost, 8, 5);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->Find(1), nullptr);
  EXPECT_THAT(std::string(none->end().message()), HasSubstr("layout.devices"));
}

// Goal: what a plan leaves idle makes up for lost nodes before anything is
// planned anew. Method: a job that uses two of four nodes.
TEST(PlanTemplatesTest, IdleDevicesTakeOver) {
  const CostModel cost = CostOf(Shipped("h100-sxm"));
  SearchInput input{
      .job = Llama8B(128), .num_devices = 32, .allows_plan_only = true};
  input.job.layout.devices = 16;
  const auto whole = FindPlan(input, cost);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(whole->layout.num_ranks(), 16);
  const auto templates = PlanTemplates::Create(input, *whole, cost, 8, 3);
  ASSERT_TRUE(templates.ok()) << templates.status();
  for (int32_t lost = 0; lost <= 2; ++lost) {
    const PlanTemplate* found = templates->Find(lost);
    ASSERT_NE(found, nullptr);
    EXPECT_TRUE(found->keeps_layout);
    EXPECT_EQ(found->layout, whole->layout);
    EXPECT_EQ(found->num_idle_devices(), 16 - 8 * lost);
    EXPECT_EQ(found->tokens_per_s, whole->prediction.tokens_per_s);
  }
  EXPECT_EQ(templates->Find(3), nullptr);
}

// Goal: executable layouts too are found for what is left, where not all of it
// can be used. Method: three of four devices with a batch of eight.
TEST(PlanTemplatesTest, LeavesOutWhatWorkersCannotUse) {
  const CostModel cost = CostOf(MakeProfile({}));
  JobSpec job = SmallJob();
  job.model.num_layers = 2;
  job.layout.zero = 2;  // Replicas share the batch evenly.
  const auto plan = Replan({.job = job, .num_devices = 4}, 1, cost);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.num_ranks(), 2);
  EXPECT_EQ(plan->num_idle_devices, 1);
}

// Goal: what is left shares the batch unevenly where that is faster than even
// shares of fewer devices, and only there. Method: three of four devices with
// batches of 16, of which the longest share is 6 instead of 8, and of 4, of
// which it is 2 either way.
TEST(PlanTemplatesTest, SharesUnevenlyWhereThatIsFaster) {
  const CostModel cost = CostOf(MakeProfile({}));
  JobSpec job = SmallJob();
  job.layout = {.pipeline = 1, .tensor = 1, .micro_batch = 1};
  job.training.global_batch = 16;
  const auto uneven = Replan({.job = job, .num_devices = 4}, 1, cost);
  ASSERT_TRUE(uneven.ok()) << uneven.status();
  EXPECT_EQ(uneven->layout.data, 3);
  EXPECT_EQ(uneven->layout.most_microbatches(), 6);
  EXPECT_EQ(uneven->num_idle_devices, 0);
  job.layout.data = 2;
  const auto even = Replan({.job = job, .num_devices = 4}, 1, cost);
  ASSERT_TRUE(even.ok()) << even.status();
  EXPECT_LT(uneven->prediction.step_time_s, even->prediction.step_time_s);
  job.layout.data.reset();
  job.training.global_batch = 4;
  const auto small = Replan({.job = job, .num_devices = 4}, 1, cost);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->layout.data, 2);
  EXPECT_EQ(small->num_idle_devices, 1);
}

// Goal: where few layouts use all that is left, one that uses less is taken if
// it is faster, but no more than an eighth stays idle without need. Method: 15
// of 16 devices, which only pipelines of 5 and 15 stages use; plans of each
// number of devices.
TEST(PlanTemplatesTest, LeavesAnEighthIdleWhereThatIsFaster) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  const CostModel cost = CostOf(MakeProfile({.num_ranks = 16}));
  JobSpec job = SmallJob();
  job.model.num_layers = 15;
  job.training.global_batch = 14;
  const auto plan = Replan({.job = job, .num_devices = 16}, 1, cost);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_idle_devices, 15 - plan->layout.num_ranks());
  EXPECT_LE(plan->num_idle_devices, 1);
  for (const int32_t num_devices : {14, 15}) {
    const auto all_used =
        FindPlan({.job = job, .num_devices = num_devices}, cost);
    ASSERT_TRUE(all_used.ok()) << all_used.status();
    EXPECT_LE(plan->prediction.step_time_s,
              1.02 * all_used->prediction.step_time_s)
        << num_devices;
  }
}

}  // namespace
}  // namespace millrace
