#include "coordinator/replica_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "planner/job/job.h"
#include "tests/fault/state_fixture.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  EXPECT_THAT(live->partners[0], IsEmpty());
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
  EXPECT_THAT(on_gpus->partners[0], ElementsAre(Rank{2}));
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

// Goal: an interval shorter than the time of a copy is warned of, and the one
// that the warning names is not. Method: steps of a tenth of a millisecond.
TEST(ReplicaPlanTest, WarnsOfCopiesThatTrainingWaitsFor) {
  JobSpec job = JobOf();
  job.resources.backend = "cuda";
  job.fault.replica_interval_steps = 1;
  const ReplicaFacts facts = {.step_s = 1e-4, .hosts = {"a", "b"}};
  const auto hurried = PlanReplicas(job, LayoutOf(2, 1), facts);
  ASSERT_TRUE(hurried.ok()) << hurried.status();
  EXPECT_THAT(hurried->warning, HasSubstr("training waits for each: set"));
  const std::string key = "fault.replica_interval_steps: ";
  const size_t at = hurried->warning.find(key);
  ASSERT_NE(at, std::string::npos);
  job.fault.replica_interval_steps =
      std::stoi(hurried->warning.substr(at + key.size()));
  EXPECT_GT(*job.fault.replica_interval_steps, 1);
  EXPECT_EQ(PlanReplicas(job, LayoutOf(2, 1), facts)->warning, "");
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

// Goal: two partners take twice the copies' memory and sending. Where memory is
// short the job is refused, also without an interval of its own, and told what
// one partner would take. Method: four ranks on four hosts.
TEST(ReplicaPlanTest, CountsTwoPartners) {
  JobSpec job = JobOf();
  job.fault.replica_partners = 2;
  const Layout layout = LayoutOf(4, 1);
  ReplicaFacts facts = {.step_s = 0.5, .hosts = {"a", "b", "c", "d"}};
  const auto plan = PlanReplicas(job, layout, facts);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->partners[3], ElementsAre(Rank{0}, Rank{1}));
  EXPECT_EQ(plan->host_bytes, 10 * plan->part_bytes);
  EXPECT_THAT(plan->description, HasSubstr("copies on two other hosts"));
  EXPECT_EQ(plan->warning, "");
  // Nothing is sent where the state is live on three hosts, and only there.
  EXPECT_THAT(PlanReplicas(job, LayoutOf(4, 0), facts)->partners[0], IsEmpty());
  facts.hosts = {"a", "a", "b", "b"};
  EXPECT_EQ(PlanReplicas(job, LayoutOf(4, 0), facts)->partners[0].size(), 0u);
  facts.hosts = {"a", "b", "c", "d"};
  Layout groups = LayoutOf(4, 1);
  groups.data_groups = 2;
  EXPECT_EQ(PlanReplicas(job, groups, facts)->partners[0].size(), 2u);
  job.fault.replica_interval_steps = 4;
  EXPECT_EQ(PlanReplicas(job, layout, facts)->host_bytes, 7 * plan->part_bytes);
  // Five parts are what one partner takes.
  facts.memory_bytes = 6 * plan->part_bytes;
  const auto refused = PlanReplicas(job, layout, facts);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("and fit: set fault.replica_partners: 1; or set"));
  facts.memory_bytes = 4 * plan->part_bytes;
  EXPECT_THAT(PlanReplicas(job, layout, facts).status().message(),
              HasSubstr("do not fit either; set fault.replica_partners: 1 and "
                        "fault.replica_interval_steps: 0"));
  job.fault.replica_interval_steps.reset();
  EXPECT_EQ(PlanReplicas(job, layout, facts).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// Goal: what two partners do not survive is said before the job begins.
TEST(ReplicaPlanTest, WarnsOfTooFewHostsForTwoPartners) {
  JobSpec job = JobOf();
  job.fault.replica_partners = 2;
  const auto warning = [&](const std::vector<std::string>& hosts,
                           bool are_agents = false) {
    const auto plan =
        PlanReplicas(job, LayoutOf(static_cast<int32_t>(hosts.size()), 1),
                     {.step_s = 0.5, .hosts = hosts, .are_agents = are_agents});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? plan->warning : "";
  };
  EXPECT_EQ(warning({"a", "b", "c"}), "");
  EXPECT_THAT(warning({"a", "a", "b", "b"}),
              HasSubstr("two hosts: losing both"));
  EXPECT_THAT(warning({"a", "a", "a"}), HasSubstr("one host: losing it"));
  EXPECT_THAT(warning({"0", "1", "2"}, true), HasSubstr("one host: losing it"));
  EXPECT_THAT(warning({"a", "a", "b", "c"}),
              HasSubstr("more than a third of all ranks"));
  job.resources.backend = "cuda";
  EXPECT_THAT(warning({"a", "b", "c"}),
              HasSubstr("no copies are taken: set fault.replica_interval"));
  job.fault.replica_partners = 1;
  EXPECT_EQ(warning({"a", "a"}), "");
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
