// Steps of 2 to 40 ms that two H200s took, beside what is predicted for them:
// docs/results/2026-11-22-small-models-h200.md has the steps and
// docs/results/2026-11-23-small-models-h200.md the figures that this holds.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/job/job_file.h"
#include "planner/profile/profile_file.h"
#include "planner/search/search.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

constexpr char kFolder[] = "tests/data/small_models/";
constexpr double kLongStepSeconds = 5e-3;

struct PredictedStep {
  std::string job;
  double measured_s, predicted_s, low_s, high_s;
  bool says_extrapolated;
  double error() const { return predicted_s / measured_s - 1; }
};

CostModel CostOf(const std::string& path) {
  absl::StatusOr<HardwareProfile> profile = LoadProfile(path);
  EXPECT_TRUE(profile.ok()) << profile.status();
  absl::StatusOr<CostModel> cost = CostModel::Create(*std::move(profile));
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *std::move(cost);
}

nlohmann::json MeasuredSteps() {
  std::ifstream file(absl::StrCat(kFolder, "steps.json"));
  EXPECT_TRUE(file.good());
  return nlohmann::json::parse(file);
}

PredictedStep Predict(const nlohmann::json& all, const nlohmann::json& step,
                      const CostModel& cost) {
  const nlohmann::json& model = all["models"][std::string(step["model"])];
  const std::string name = step["job"];
  const absl::StatusOr<JobSpec> job = ParseJob(
      absl::StrCat("name: ", name, "\nmodel: ", std::string(model["model"]),
                   "\ndata: {synthetic: true}\ntraining: {steps: 100, "
                   "global_batch: ",
                   model["batch"].get<int>(),
                   ", precision: bf16, optimizer: {learning_rate: "
                   "3e-4}}\nresources: {backend: cuda, "
                   "devices_per_agent: ",
                   step["devices"].get<int>(),
                   ", transport: ", std::string(step["transport"]),
                   "}\nlayout: ", std::string(step["layout"]), "\n"),
      name);
  EXPECT_TRUE(job.ok()) << job.status();
  const absl::StatusOr<Plan> plan =
      FindPlan({.job = *job, .num_devices = step["devices"].get<int>()}, cost);
  EXPECT_TRUE(plan.ok()) << name << ": " << plan.status();
  const Prediction& said = plan->prediction;
  return {.job = name,
          .measured_s = 1e-9 * step["step_ns"].get<double>(),
          .predicted_s = said.step_time_s,
          .low_s = said.step_time_low_s.value_or(0),
          .high_s = said.step_time_high_s.value_or(0),
          .says_extrapolated =
              std::any_of(plan->warnings.begin(), plan->warnings.end(),
                          [](const std::string& warning) {
                            return absl::StartsWith(warning, "extrapolated: ");
                          })};
}

struct Summary {
  int num_long = 0, num_near = 0, num_inside = 0, num_warned = 0;
  double median = 0, worst = 0;  // Absolute errors of long steps.
};

Summary SummaryOf(const char* title, const std::vector<PredictedStep>& steps) {
  Summary summary;
  std::vector<double> errors;
  for (const PredictedStep& step : steps) {
    const bool inside =
        step.low_s <= step.measured_s && step.measured_s <= step.high_s;
    std::printf("%s %-24s measured %7.3f ms, predicted %7.3f ms, %+5.1f %%%s\n",
                title, step.job.c_str(), 1e3 * step.measured_s,
                1e3 * step.predicted_s, 100 * step.error(),
                step.says_extrapolated ? ", extrapolated" : "");
    summary.num_inside += inside ? 1 : 0;
    summary.num_warned += step.says_extrapolated ? 1 : 0;
    if (step.measured_s < kLongStepSeconds) continue;
    errors.push_back(std::abs(step.error()));
    summary.num_near += errors.back() <= 0.1 ? 1 : 0;
  }
  std::sort(errors.begin(), errors.end());
  summary.num_long = static_cast<int>(errors.size());
  summary.median = errors[errors.size() / 2];
  summary.worst = errors.back();
  std::printf(
      "%s: of %d long steps %d within 10 %%, median %.1f %%, worst "
      "%.1f %%; of %zu %d in the interval, %d extrapolated\n",
      title, summary.num_long, summary.num_near, 100 * summary.median,
      100 * summary.worst, steps.size(), summary.num_inside,
      summary.num_warned);
  return summary;
}

std::vector<PredictedStep> PredictEachStep(const std::string& profile) {
  const nlohmann::json all = MeasuredSteps();
  const CostModel cost = CostOf(profile);
  std::vector<PredictedStep> steps;
  for (const nlohmann::json& step : all["steps"]) {
    steps.push_back(Predict(all, step, cost));
  }
  return steps;
}

// Goal: steps of small models are predicted from the shipped profile as near as
// the record says. Method: all 65 steps of three models that the profile has no
// rows of, by the transport that they ran with; one of the models chose
// waits.between_lanes_s.
TEST(SmallModelsTest, ShippedProfilePredictsThem) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  const Summary summary =
      SummaryOf("shipped", PredictEachStep("configs/hardware/h200-sxm.yaml"));
  EXPECT_EQ(summary.num_long, 59);
  EXPECT_GE(summary.num_near, 56);
  EXPECT_LE(summary.median, 0.035);
  EXPECT_LE(summary.worst, 0.134);
}

// Goal: the same from profiles measured for the jobs. Method: each model's own,
// measured on another machine a day after the steps.
TEST(SmallModelsTest, ProfilesOfTheJobsPredictThem) {
  const nlohmann::json all = MeasuredSteps();
  std::map<std::string, CostModel> costs;
  for (const char* key : {"a", "b", "c"}) {
    costs.emplace(key, CostOf(absl::StrCat(kFolder, "own-", key, ".yaml")));
  }
  std::vector<PredictedStep> steps;
  for (const nlohmann::json& step : all["steps"]) {
    steps.push_back(Predict(all, step, costs.at(std::string(step["model"]))));
  }
  const Summary summary = SummaryOf("own", steps);
  EXPECT_EQ(summary.num_long, 59);
  EXPECT_GE(summary.num_near, 57);
  EXPECT_LE(summary.median, 0.049);
  EXPECT_LE(summary.worst, 0.11);
  EXPECT_GE(summary.num_inside, 63);
}

// Goal: a plan says where rows of other shapes stand in, and its interval holds
// what that costs. Method: the same steps from the rows of large shapes alone,
// which the shipped profile has beside those of small ones; rows of few tokens,
// narrow products and small messages are left out.
TEST(SmallModelsTest, PlansSayWhatIsExtrapolated) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  absl::StatusOr<HardwareProfile> profile =
      LoadProfile("configs/hardware/h200-sxm.yaml");
  ASSERT_TRUE(profile.ok()) << profile.status();
  std::erase_if(profile->gemms, [](const GemmTime& row) {
    return std::min({row.m, row.n, row.k}) < 2048;
  });
  std::erase_if(profile->attention, [](const AttentionTime& row) {
    return row.sequence_length < 4096;
  });
  std::erase_if(profile->communication, [](const CommunicationTime& row) {
    return row.bytes < (64 << 20);
  });
  const absl::StatusOr<CostModel> cost = CostModel::Create(*std::move(profile));
  ASSERT_TRUE(cost.ok()) << cost.status();
  const nlohmann::json all = MeasuredSteps();
  std::vector<PredictedStep> steps;
  for (const nlohmann::json& step : all["steps"]) {
    steps.push_back(Predict(all, step, *cost));
  }
  const Summary summary = SummaryOf("large rows alone", steps);
  EXPECT_EQ(summary.num_warned, 65);
  EXPECT_GE(summary.num_inside, 31);
}

}  // namespace
}  // namespace millrace
