#include "coordinator/replica_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "planner/job/job.h"
#include "tests/fault/state_fixture.h"

namespace millrace {
namespace {

using testing::HasSubstr;

JobSpec JobOf() {
  JobSpec job;
  job.model = TinyModel();
  return job;
}

Layout LayoutOf(int32_t data, int32_t zero) {
  Layout layout;
  layout.data = data;
  layout.zero = zero;
  return layout;
}

// Goal: copies go to a partner where nobody holds the state anyway, and always
// on GPUs, which take them only if the job asks. Method: plans of the same job
// that differ in one thing.
TEST(ReplicaPlanTest, TakesCopiesWhereTheyAreNeeded) {
  JobSpec job = JobOf();
  const ReplicaFacts facts = {.step_s = 0.5, .hosts = {"a", "a", "b", "b"}};
  const auto live = PlanReplicas(job, LayoutOf(4, 0), facts);
  ASSERT_TRUE(live.ok()) << live.status();
  EXPECT_EQ(live->interval_steps, 1);
  EXPECT_EQ(live->partners[0], std::nullopt);
  EXPECT_EQ(live->host_bytes, 4 * live->part_bytes);
  EXPECT_THAT(live->description, HasSubstr("others hold the same state live"));
  const auto sharded = PlanReplicas(job, LayoutOf(4, 1), facts);
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_EQ(sharded->interval_steps, 1);  // They are sent within the step.
  EXPECT_EQ(sharded->host_bytes, 7 * sharded->part_bytes);
  EXPECT_THAT(sharded->description, HasSubstr("a copy on another host"));
  EXPECT_EQ(sharded->warning, "");
  job.resources.backend = "cuda";
  EXPECT_EQ(PlanReplicas(job, LayoutOf(4, 0), facts)->interval_steps, 0);
  job.fault.replica_interval_steps = 7;
  const auto on_gpus = PlanReplicas(job, LayoutOf(4, 0), facts);
  EXPECT_EQ(on_gpus->partners[0], Rank{2});
  EXPECT_EQ(on_gpus->interval_steps, 7);
  EXPECT_EQ(on_gpus->host_bytes, 5 * on_gpus->part_bytes);
  EXPECT_THAT(on_gpus->description, HasSubstr("0.01 % of the step"));
  ReplicaFacts stalling = facts;
  stalling.stall_s = 0.035;  // A hundredth of seven steps.
  EXPECT_THAT(PlanReplicas(job, LayoutOf(4, 0), stalling)->description,
              HasSubstr("1.01 % of the step"));
  job.fault.replica_interval_steps = 0;
  EXPECT_EQ(PlanReplicas(job, LayoutOf(4, 1), facts)->interval_steps, 0);
}

// Goal: copies for which there is no memory are refused with the cost and the
// remedy where the job asks for them, and else left out with a warning.
TEST(ReplicaPlanTest, RefusesWhatDoesNotFit) {
  JobSpec job = JobOf();
  const ReplicaFacts facts = {
      .step_s = 0.5, .hosts = {"a", "a"}, .memory_bytes = 1000};
  const auto left_out = PlanReplicas(job, LayoutOf(2, 1), facts);
  ASSERT_TRUE(left_out.ok()) << left_out.status();
  EXPECT_EQ(left_out->interval_steps, 0);
  EXPECT_THAT(left_out->warning, HasSubstr("none are kept"));
  // Every second step takes less memory than every step.
  ReplicaFacts tight = facts;
  tight.memory_bytes = 6 * PartBytes(job.model, LayoutOf(2, 1));
  const auto rarer = PlanReplicas(job, LayoutOf(2, 1), tight);
  ASSERT_TRUE(rarer.ok()) << rarer.status();
  EXPECT_EQ(rarer->interval_steps, 2);
  EXPECT_EQ(rarer->host_bytes, 5 * rarer->part_bytes);
  EXPECT_EQ(rarer->warning, "");
  job.fault.replica_interval_steps = 1;
  EXPECT_FALSE(PlanReplicas(job, LayoutOf(2, 1), tight).ok());
  const auto refused = PlanReplicas(job, LayoutOf(2, 1), facts);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("set fault.replica_interval_steps: 0"));
}

// Goal: hosts that cannot pair their ranks one to one are pointed out.
TEST(ReplicaPlanTest, WarnsOfLopsidedHosts) {
  const auto plan = PlanReplicas(
      JobOf(), LayoutOf(4, 1), {.step_s = 0.5, .hosts = {"a", "a", "a", "b"}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->host_bytes, 13 * plan->part_bytes);
  EXPECT_THAT(plan->warning, HasSubstr("more than half of all ranks"));
}

}  // namespace
}  // namespace millrace
