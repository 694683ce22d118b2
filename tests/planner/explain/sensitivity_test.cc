#include "planner/explain/sensitivity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "planner/cost/op_cost.h"
#include "planner/explain/explain_compare.h"
#include "planner/explain/explain_neighbours.h"
#include "tests/planner/planning_fixture.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

PlanningCase SensitivityCase() { return SmallCase(4); }

absl::StatusOr<Plan> FindPlanFor(const PlanningCase& planned) {
  const absl::StatusOr<CostModel> cost = CostModel::Create(planned.profile);
  if (!cost.ok()) return cost.status();
  return FindPlan({.job = planned.job, .num_devices = planned.num_devices},
                  *cost);
}

// Goal: a link counts once the devices reach beyond the level below. Method: 1,
// 8 and 16 devices of domains of eight; a profile without levels.
TEST(SensitivityTest, NamesTheHardwareInUse) {
  PlanningCase planned = SensitivityCase();
  EXPECT_THAT(HardwareKeys(planned),
              ElementsAre("device.flops", "device.memory_bandwidth",
                          "device.memory", "link.all"));
  planned.profile.network = {
      {.name = "nvlink", .devices = 8, .bytes_per_s = 4e11},
      {.name = "fabric", .devices = 0, .bytes_per_s = 5e10}};
  planned.num_devices = 8;
  EXPECT_THAT(HardwareKeys(planned),
              ElementsAre("device.flops", "device.memory_bandwidth",
                          "device.memory", "link.nvlink"));
  planned.num_devices = 16;
  EXPECT_THAT(HardwareKeys(planned),
              ElementsAre("device.flops", "device.memory_bandwidth",
                          "device.memory", "link.nvlink", "link.fabric"));
  planned.num_devices = 1;
  EXPECT_THAT(
      HardwareKeys(planned),
      ElementsAre("device.flops", "device.memory_bandwidth", "device.memory"));
}

// Goal: better hardware never costs time, more of it buys no less, and a search
// finds nothing slower than the layout at hand. Method: the made-up machine,
// whose planner is the real one.
TEST(SensitivityTest, BetterHardwareNeverCosts) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  const PlanningCase planned = SensitivityCase();
  const auto plan = FindPlanFor(planned);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto rows = FindSensitivity(planned, *plan, FindPlanFor);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 8u);
  const double now = plan->prediction.step_time_s;
  for (size_t i = 0; i < rows->size(); ++i) {
    const SensitivityRow& row = (*rows)[i];
    EXPECT_LE(row.kept_step_time_s, now * (1 + 1e-9)) << row.key;
    EXPECT_LE(row.best_step_time_s, row.kept_step_time_s) << row.key;
    EXPECT_EQ(row.best_changes, row.best != plan->layout);
    if (i % 2 == 1) {
      EXPECT_EQ(row.key, (*rows)[i - 1].key);
      EXPECT_LE(row.kept_step_time_s, (*rows)[i - 1].kept_step_time_s);
    }
    if (row.key == "device.memory") {
      EXPECT_DOUBLE_EQ(row.kept_step_time_s, now);
    }
  }
  // Computing is most of this step.
  EXPECT_LT((*rows)[0].kept_step_time_s, 0.95 * now);
  const std::string table = SensitivityTable(*plan, *rows);
  EXPECT_THAT(table, HasSubstr("device.flops=1.25x"));
  EXPECT_THAT(table, HasSubstr("link.all=2x"));
}

// Goal: the one line names what saves most first, leaves out what saves
// nothing, and tells of layouts that only memory forbids. Method: rows and a
// plan made by hand.
TEST(SensitivityTest, SaysTheNextStepInALine) {
  Plan plan;
  plan.prediction.model = PriceModel::kPasses;
  plan.prediction.step_time_s = 1;
  plan.prediction.closed_form = {.time = {.compute_s = 0.96}};
  const std::vector<SensitivityRow> rows = {
      {.key = "link.fabric", .factor = 1.25, .kept_step_time_s = 0.98},
      {.key = "device.memory_bandwidth", .factor = 1.25, .kept_step_time_s = 1},
      {.key = "device.flops", .factor = 1.25, .kept_step_time_s = 0.85}};
  EXPECT_EQ(NextStepText(plan, rows),
            "device.flops +25 % saves 15.0 %, link.fabric 2.0 %");
  plan.alternatives = {
      {.layout = {.tensor = 2},
       .fits = true,
       .prediction = {.model = PriceModel::kPasses, .step_time_s = 0.5}},
      {.layout = {.tensor = 4},
       .fits = false,
       .prediction = {.step_time_s = 0.9}}};
  EXPECT_THAT(NextStepText(plan, rows), HasSubstr("memory for tp4 mb1"));
  // The share is of the choice's time by the closed form, not of its simulated
  // step.
  EXPECT_THAT(NextStepText(plan, rows),
              HasSubstr("saves 6.2 % by the closed form"));
}

// Goal: the summary's line names what saves most, and as much more as it has
// room for. Method: rows made by hand, with room for all, one and none.
TEST(SensitivityTest, SaysTheLeverInBrief) {
  Plan plan;
  plan.prediction.model = PriceModel::kPasses;
  plan.prediction.step_time_s = 1;
  plan.prediction.closed_form = {.time = {.compute_s = 0.96}};
  const std::vector<SensitivityRow> rows = {
      {.key = "link.fabric", .factor = 1.25, .kept_step_time_s = 0.98},
      {.key = "device.flops", .factor = 1.25, .kept_step_time_s = 0.85}};
  const std::string first = "device.flops +25 % saves 15.0 % of the step";
  EXPECT_EQ(BriefLeverText(plan, rows, 110),
            first + ", link.fabric +25 % saves 2.0 %");
  EXPECT_EQ(BriefLeverText(plan, rows, 60), first);
  EXPECT_EQ(BriefLeverText(plan, {}, 60),
            "no part of the hardware alone saves time");
}

// Goal: a job's own memory limit is what grows, since it decides. Method: a
// limit under which only layouts with recompute fit.
TEST(SensitivityTest, GrowsTheLimitOfTheJob) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  PlanningCase planned = SensitivityCase();
  const auto free_plan = FindPlanFor(planned);
  ASSERT_TRUE(free_plan.ok()) << free_plan.status();
  planned.job.resources.memory_per_device_bytes =
      free_plan->prediction.memory_bytes() - 1;
  const auto tight_plan = FindPlanFor(planned);
  ASSERT_TRUE(tight_plan.ok()) << tight_plan.status();
  const auto rows = FindSensitivity(planned, *tight_plan, FindPlanFor);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (const SensitivityRow& row : *rows) {
    if (row.key != "device.memory") continue;
    EXPECT_DOUBLE_EQ(row.best_step_time_s, free_plan->prediction.step_time_s);
    EXPECT_TRUE(row.best_changes);
  }
}

// Goal: a layout asked for stands beside the chosen one part by part, and what
// it loses by is what its parts say. Method: tensor 4 on the made-up machine.
TEST(CompareTest, ShowsWhereTheTimeGoes) {
  const PlanningCase planned = SensitivityCase();
  const auto plan = FindPlanFor(planned);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto parts = PartsOf(*plan);
  ASSERT_TRUE(parts.ok()) << parts.status();
  double sum = 0;
  for (const Part<double>& part : parts->time) sum += part.value;
  EXPECT_NEAR(sum, plan->prediction.step_time_s, 1e-9);
  int64_t bytes = 0;
  for (const Part<int64_t>& part : parts->memory) bytes += part.value;
  EXPECT_EQ(bytes, plan->prediction.memory_bytes());

  const auto comparison =
      CompareLayout("tp=4,mb=1", planned, *plan, *parts, FindPlanFor);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  ASSERT_TRUE(comparison->plan.has_value());
  EXPECT_EQ(comparison->plan->layout.tensor, 4);
  EXPECT_EQ(comparison->plan->layout.micro_batch, 1);
  EXPECT_TRUE(comparison->fits);
  EXPECT_THAT(comparison->verdict, HasSubstr("slower: "));
  const std::string table = ComparisonsTable(*plan, *parts, {*comparison});
  EXPECT_THAT(table, HasSubstr("exposed tensor communication"));
  EXPECT_THAT(table, HasSubstr("tp=4,mb=1"));
  EXPECT_THAT(table, HasSubstr("gradients"));
  EXPECT_THAT(table, Not(HasSubstr("exposed context")));
}

// Goal: what the job pins gives way where it contradicts what is asked. Method:
// a job of four data replicas, asked about two stages.
TEST(CompareTest, FreesTheAxesOfTheJob) {
  PlanningCase planned = SensitivityCase();
  planned.job.layout.data = 4;
  const auto plan = FindPlanFor(planned);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto parts = PartsOf(*plan);
  ASSERT_TRUE(parts.ok()) << parts.status();
  const auto comparison =
      CompareLayout("pp=2", planned, *plan, *parts, FindPlanFor);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  ASSERT_TRUE(comparison->plan.has_value());
  EXPECT_EQ(comparison->plan->layout.pipeline, 2);
  EXPECT_TRUE(comparison->fits);
  EXPECT_THAT(comparison->verdict, HasSubstr("; without the job's data 4"));
  const auto other = CompareLayout("dp=2", planned, *plan, *parts, FindPlanFor);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(other->verdict, HasSubstr("; without the job's data 4"));
  const auto same = CompareLayout("mb=1", planned, *plan, *parts, FindPlanFor);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_THAT(same->verdict, Not(HasSubstr("without the job's")));
}

// Goal: why a layout cannot be: no such mesh, or no memory, and then what it
// would cost. Method: five shards on four devices; a limit below its need.
TEST(CompareTest, SaysWhyNot) {
  PlanningCase planned = SensitivityCase();
  const auto plan = FindPlanFor(planned);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto parts = PartsOf(*plan);
  ASSERT_TRUE(parts.ok()) << parts.status();
  const auto impossible =
      CompareLayout("tp=5", planned, *plan, *parts, FindPlanFor);
  ASSERT_TRUE(impossible.ok()) << impossible.status();
  EXPECT_FALSE(impossible->plan.has_value());
  EXPECT_THAT(impossible->verdict, HasSubstr("cannot be: no layout"));

  const auto full = CompareLayout("tp=1,pp=1,zero=0,recompute=none", planned,
                                  *plan, *parts, FindPlanFor);
  ASSERT_TRUE(full.ok()) << full.status();
  ASSERT_TRUE(full->plan.has_value());
  planned.job.resources.memory_per_device_bytes =
      full->plan->prediction.memory_bytes() / 3;
  const auto too_large = CompareLayout("tp=1,pp=1,zero=0,recompute=none,mb=2",
                                       planned, *plan, *parts, FindPlanFor);
  ASSERT_TRUE(too_large.ok()) << too_large.status();
  EXPECT_FALSE(too_large->fits);
  ASSERT_TRUE(too_large->plan.has_value());
  EXPECT_THAT(too_large->verdict, HasSubstr("fits into"));
  EXPECT_THAT(too_large->verdict, HasSubstr("with memory for it"));
}

// Goal: a mistyped comparison says what is known. Method: one of each mistake.
TEST(CompareTest, RefusesWhatItDoesNotKnow) {
  const PlanningCase planned = SensitivityCase();
  for (const auto& [asked, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"tensr=4", "did you mean tensor?"},
           {"shards=4", "known: pipeline"},
           {"tp=four", "expected auto or an integer"},
           {"recompute=some", "none, selective or full"},
           {"tp", "expected auto or an integer"},
           {"tp=4,tensor=2", "tensor is given twice"},
           {"", "unknown name ''"}}) {
    const auto comparison = CompareLayout(asked, planned, {}, {}, FindPlanFor);
    EXPECT_TRUE(absl::IsInvalidArgument(comparison.status())) << asked;
    EXPECT_THAT(std::string(comparison.status().message()), HasSubstr(message));
  }
}

// Goal: alternatives show what each choice of the layout would cost, each
// layout once and best first. Method: a choice without alternatives, whose
// neighbours the real planner finds.
TEST(NeighboursTest, ShowsWhatEachChoiceCosts) {
  PlanningCase planned = SensitivityCase();
  planned.job.layout.micro_batch = 1;
  const auto found = FindPlanFor(planned);
  ASSERT_TRUE(found.ok()) << found.status();
  Plan plan = *found;
  plan.alternatives.clear();
  ASSERT_TRUE(AddNeighbours(planned, FindPlanFor, &plan).ok());
  ASSERT_GE(plan.alternatives.size(), 4u);
  bool has_recompute = false, has_zero = false;
  for (size_t i = 0; i < plan.alternatives.size(); ++i) {
    const Alternative& alternative = plan.alternatives[i];
    EXPECT_EQ(alternative.layout.micro_batch, 1);  // As the job pins.
    EXPECT_FALSE(DifferInChunksOnly(alternative.layout, plan.layout));
    EXPECT_FALSE(alternative.reason.empty());
    EXPECT_EQ(alternative.prediction.model, plan.prediction.model);
    has_recompute |= alternative.layout.recompute != plan.layout.recompute;
    has_zero |= alternative.layout.zero != plan.layout.zero;
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(
          DifferInChunksOnly(alternative.layout, plan.alternatives[j].layout));
    }
    if (i > 0) {
      EXPECT_LE(plan.alternatives[i - 1].prediction.step_time_s,
                alternative.prediction.step_time_s);
    }
  }
  EXPECT_TRUE(has_recompute);
  EXPECT_TRUE(has_zero);
}

}  // namespace
}  // namespace millrace
