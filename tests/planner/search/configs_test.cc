// The job files that we hand out.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/cost/op_cost.h"
#include "planner/job/executable.h"
#include "planner/job/job_file.h"
#include "planner/job/layout_space.h"
#include "planner/profile/host_size.h"
#include "planner/profile/profile_file.h"
#include "planner/search/search.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// Hosts of those that need several.
int32_t NumHosts(const std::string& name) {
  if (name == "llama3-405b" || name == "deepseek-v3") return 256;
  if (name == "qwen3-235b-a22b") return 32;
  return name == "llama3-70b" ? 8 : 1;
}

// Whether there is a plan on paper for H100s.
absl::Status PlanOnPaper(const JobSpec& job, int32_t num_devices) {
  ASSIGN_OR_RETURN(const HardwareProfile profile,
                   LoadProfile("configs/hardware/h100-sxm.yaml"));
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(profile));
  return FindPlan(
             {.job = job, .num_devices = num_devices, .allows_plan_only = true},
             cost)
      .status();
}

// Goal: every job under configs/ is read, is named like its file, and has a
// layout on the devices it asks for. Method: all of them; those that are only
// planned on H100s.
TEST(ConfigsTest, AreJobsWithALayout) {
  int num_jobs = 0;
  for (const char* folder : {"configs", "configs/bench"}) {
    ASSERT_TRUE(fs::exists(folder)) << "run from the repository's root";
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".yaml") continue;
      SCOPED_TRACE(entry.path().string());
      if (num_jobs++ % SweepStep(5) != 0) continue;
      const absl::StatusOr<JobSpec> job = LoadJob(entry.path().string());
      ASSERT_TRUE(job.ok()) << job.status();
      EXPECT_EQ(job->name, entry.path().stem().string());
      ASSERT_TRUE(job->resources.devices_per_agent.has_value());
      const int32_t num_devices =
          *job->resources.devices_per_agent * NumHosts(job->name);
      const absl::Status status = CheckExecutable(*job).ok()
                                      ? CheckLayouts(*job, num_devices)
                                      : PlanOnPaper(*job, num_devices);
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  EXPECT_GE(num_jobs, 15);
}

// Goal: jobs of other families have the sizes that their makers publish, and
// workers train them. Method: parameters to the last one.
TEST(ConfigsTest, FamiliesHaveTheirPublishedParameters) {
  const struct {
    const char* name;
    int64_t num_parameters;
  } families[] = {{"llama3.2-1b", 1235814400},
                  {"mistral-7b", 7241732096},
                  {"qwen2.5-1.5b", 1543714304},
                  {"qwen3-8b", 8190735360},
                  {"phi-4", 14659507200},
                  // With 47 rows more than words, which GPUs divide.
                  {"gpt2-125m", 124439808 + 47 * 768}};
  for (const auto& [name, num_parameters] : families) {
    const absl::StatusOr<JobSpec> job =
        LoadJob(absl::StrCat("configs/", name, ".yaml"));
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(CountParameters(job->model).total, num_parameters) << name;
    EXPECT_TRUE(CheckExecutable(*job).ok()) << CheckExecutable(*job);
  }
}

// Goal: the profile that we hand out is read and prices every benchmark, also
// those of hosts with more GPUs than were measured, and the plan fits on each.
// Method: plan them all.
TEST(ConfigsTest, BenchmarksArePlannedFromTheMeasuredProfile) {
  const absl::StatusOr<HardwareProfile> profile =
      LoadProfile("configs/hardware/h200-sxm.yaml");
  ASSERT_TRUE(profile.ok()) << profile.status();
  int num_plans = 0;
  for (const auto& entry : fs::directory_iterator("configs/bench")) {
    SCOPED_TRACE(entry.path().string());
    const JobSpec job = *LoadJob(entry.path().string());
    const int32_t num_devices = *job.resources.devices_per_agent;
    ++num_plans;
    const absl::StatusOr<CostModel> cost =
        CostModel::Create(WithHostsOf(num_devices, *profile));
    ASSERT_TRUE(cost.ok()) << cost.status();
    const absl::StatusOr<Plan> plan =
        FindPlan({.job = job, .num_devices = num_devices}, *cost);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LT(plan->prediction.memory_bytes(), profile->device_memory_bytes);
  }
  EXPECT_GE(num_plans, 9);
}

}  // namespace
}  // namespace millrace
