// Steps of 0.5 to 2.5 s that one to four H200s took, beside what is predicted
// for them, and whether the planner would have chosen well among them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/job/job_file.h"
#include "planner/profile/host_size.h"
#include "planner/search/search.h"
#include "tests/planner/shipped.h"

namespace millrace {
namespace {

struct MeasuredStep {
  std::string layout;
  double measured_s, predicted_s;
  double error() const { return predicted_s / measured_s - 1; }
};

struct Group {
  std::string name;
  std::vector<MeasuredStep> steps;
};

// With the times of the backward attention that older steps ran.
HardwareProfile ProfileOfOlderSteps(const nlohmann::json& all) {
  HardwareProfile profile = Shipped("h200-sxm");
  std::erase_if(profile.attention,
                [](const AttentionTime& time) { return time.backward; });
  for (const nlohmann::json& row : all["attention_backward"]) {
    profile.attention.push_back({.backward = true,
                                 .num_sequences = row[0],
                                 .sequence_length = row[1],
                                 .num_heads = row[2],
                                 .num_kv_heads = row[3],
                                 .head_dim = row[4],
                                 .seconds = row[5]});
  }
  return profile;
}

double PredictedSeconds(const nlohmann::json& group, const std::string& layout,
                        const CostModel& cost) {
  const std::string name = group["name"];
  const int devices = group["devices"].get<int>();
  const absl::StatusOr<JobSpec> job = ParseJob(
      absl::StrCat("name: h200\nmodel: ", std::string(group["model"]),
                   "\ndata: {synthetic: true}\ntraining: {steps: 100, "
                   "global_batch: ",
                   group["batch"].get<int>(),
                   ", precision: ", group.value("precision", "bf16"),
                   ", optimizer: {learning_rate: 3e-4}}\nresources: {backend: "
                   "cuda, devices_per_agent: ",
                   devices, ", memory_per_device: 132 GiB, transport: ",
                   std::string(group["transport"]), "}\nlayout: ", layout,
                   "\n"),
      name);
  EXPECT_TRUE(job.ok()) << name << ": " << job.status();
  const absl::StatusOr<Plan> plan =
      FindPlan({.job = *job, .num_devices = devices}, cost);
  EXPECT_TRUE(plan.ok()) << name << " " << layout << ": " << plan.status();
  return plan.ok() ? plan->prediction.step_time_s : 0;
}

// Returns the profile as if only two of its four GPUs had been measured.
HardwareProfile OfTwo(HardwareProfile profile) {
  const auto has_more = [](const auto& time) { return time.group_size > 2; };
  std::erase_if(profile.communication, has_more);
  std::erase_if(profile.copy_engines, has_more);
  profile.provenance.num_ranks = 2;
  profile.ranks_per_host = 2;
  profile.compute_contention.resize(2);
  profile.network.front().devices = 2;
  return profile;
}

nlohmann::json MeasuredSteps() {
  std::ifstream file("tests/data/h200_steps/steps.json");
  EXPECT_TRUE(file.good());
  return nlohmann::json::parse(file);
}

// For jobs of at least so many devices.
std::vector<Group> PredictAll(const nlohmann::json& groups_of_steps,
                              const CostModel& cost, int least_devices = 1) {
  std::vector<Group> groups;
  for (const nlohmann::json& group : groups_of_steps) {
    if (group["devices"].get<int>() < least_devices) continue;
    groups.push_back({.name = group["name"], .steps = {}});
    for (const nlohmann::json& row : group["rows"]) {
      const std::string layout = row["layout"];
      const MeasuredStep step = {
          .layout = layout,
          .measured_s = row["seconds"].get<double>(),
          .predicted_s = PredictedSeconds(group, layout, cost)};
      std::printf("%s, %s: measured %.4f s, predicted %.4f s, %+.1f %%\n",
                  groups.back().name.c_str(), layout.c_str(), step.measured_s,
                  step.predicted_s, 100 * step.error());
      groups.back().steps.push_back(step);
    }
  }
  return groups;
}

std::vector<double> SortedErrors(const std::vector<Group>& groups) {
  std::vector<double> errors;
  for (const Group& group : groups) {
    for (const MeasuredStep& step : group.steps) {
      errors.push_back(std::abs(step.error()));
    }
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

struct Bounds {
  int num_near;  // At least so many within 5 %.
  double median, worst;
};

void ExpectErrorsWithin(const std::vector<double>& errors,
                        const Bounds& bounds) {
  const auto num_near =
      std::upper_bound(errors.begin(), errors.end(), 0.05) - errors.begin();
  const double median = errors[errors.size() / 2];
  std::printf("%td of %zu within 5 %%, median %.1f %%, worst %.1f %%\n",
              num_near, errors.size(), 100 * median, 100 * errors.back());
  EXPECT_GE(num_near, bounds.num_near);
  EXPECT_LE(median, bounds.median);
  EXPECT_LE(errors.back(), bounds.worst);
}

// Goal: jobs as they are shipped are predicted within 5 %. Two of 14 rows are
// not: 1B on four GPUs, which older kernels ran, and a pipeline whose stages
// the planner now cuts otherwise than the worker that ran it.
TEST(H200StepsTest, ShippedProfilePredictsJobs) {
  const nlohmann::json all = MeasuredSteps();
  const CostModel cost = CostOf(ProfileOfOlderSteps(all));
  ExpectErrorsWithin(SortedErrors(PredictAll(all["jobs"], cost)),
                     {.num_near = 12, .median = 0.040, .worst = 0.125});
}

// Goal: steps in 8 bits that the profile did not learn from are predicted
// within 5 %. Method: one to four GPUs, data and tensor parallel.
TEST(H200StepsTest, ShippedProfilePredictsJobsIn8Bits) {
  const nlohmann::json all = MeasuredSteps();
  const CostModel cost = CostOf(ProfileOfOlderSteps(all));
  ExpectErrorsWithin(SortedErrors(PredictAll(all["jobs_in_8_bits"], cost)),
                     {.num_near = 10, .median = 0.03, .worst = 0.05});
}

// Goal: steps that ran with today's kernels are predicted within 5 %. One of
// three is not: products of 8B over two GPUs run at the power limit, which a
// price does not know.
TEST(H200StepsTest, ShippedProfilePredictsJobsSince) {
  const CostModel cost = CostOf(Shipped("h200-sxm"));
  ExpectErrorsWithin(
      SortedErrors(PredictAll(MeasuredSteps()["jobs_since"], cost)),
      {.num_near = 2, .median = 0.035, .worst = 0.065});
}

// Goal: a profile of two GPUs of a host predicts steps on four about as well as
// one of all four, which has 24 of 26 within 5 %. Method: the profile without
// its rows of four ranks, made one of hosts of four.
TEST(H200StepsTest, AProfileOfTwoPredictsStepsOnFour) {
  const nlohmann::json all = MeasuredSteps();
  const CostModel cost =
      CostOf(WithHostsOf(4, OfTwo(ProfileOfOlderSteps(all))));
  const std::vector<double> errors =
      SortedErrors(PredictAll(all["sweeps"], cost, 4));
  ASSERT_EQ(errors.size(), 26);
  ExpectErrorsWithin(errors, {.num_near = 23, .median = 0.024, .worst = 0.1});
}

// Goal: the layout with the least predicted time is within 1 % of the fastest
// one that a person would find by trying. Method: four committed sweeps.
TEST(H200StepsTest, ThePlannersChoiceIsNearTheBestOfASweep) {
  const nlohmann::json all = MeasuredSteps();
  const std::vector<Group> sweeps =
      PredictAll(all["sweeps"], CostOf(ProfileOfOlderSteps(all)));
  ASSERT_EQ(sweeps.size(), 4);
  ExpectErrorsWithin(SortedErrors(sweeps),
                     {.num_near = 48, .median = 0.026, .worst = 0.069});
  for (const Group& sweep : sweeps) {
    const auto chosen =
        std::min_element(sweep.steps.begin(), sweep.steps.end(),
                         [](const MeasuredStep& a, const MeasuredStep& b) {
                           return a.predicted_s < b.predicted_s;
                         });
    const auto best =
        std::min_element(sweep.steps.begin(), sweep.steps.end(),
                         [](const MeasuredStep& a, const MeasuredStep& b) {
                           return a.measured_s < b.measured_s;
                         });
    const double regret = chosen->measured_s / best->measured_s - 1;
    std::printf("%s: chosen %s, regret %.1f %%\n", sweep.name.c_str(),
                chosen->layout.c_str(), 100 * regret);
    EXPECT_LE(regret, 0.0105);
  }
}

}  // namespace
}  // namespace millrace
