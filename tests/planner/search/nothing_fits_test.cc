#include "planner/search/nothing_fits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/job/job_file.h"
#include "planner/search/search.h"
#include "tests/planner/planning_fixture.h"
#include "tests/planner/shipped.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Goal: a batch of millions is refused before anything is lowered, with the
// key, the limit and the reason, and the batch that the message names is no
// larger than what its bounds allow. Method: jobs that are shipped, with such
// batches.
TEST(NothingFitsTest, RefusesBatchesOfMillions) {
  const CostModel cost = CostOf(Shipped("h200-sxm"));
  const std::vector<std::pair<const char*, int64_t>> cases = {
      {"configs/llama3-1b.yaml", 100'000'000},
      {"configs/llama3-8b.yaml", 1'048'576},
      {"configs/llama3-8b.yaml", 100'000'000},
      {"configs/llama3-70b-10-layers.yaml", 100'000'000}};
  for (const auto& [job_file, batch] : cases) {
    SCOPED_TRACE(absl::StrCat(job_file, " ", batch));
    absl::StatusOr<JobSpec> job = LoadJob(job_file);
    ASSERT_TRUE(job.ok()) << job.status();
    job->training.global_batch = batch;
    const absl::Status status =
        FindPlan({.job = *job, .num_devices = 4}, cost).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr(absl::StrCat("training.global_batch is ", batch)),
              HasSubstr("2000000 instructions"),
              HasSubstr("set training.global_batch to ")));
  }
}

// Goal: a batch below the limit is planned with few enough micro-batches.
// Method: one of thousands of sequences, which a device cannot hold at once.
TEST(NothingFitsTest, PlansLargeBatches) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  absl::StatusOr<JobSpec> job = LoadJob("configs/llama3-1b.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  job->training.global_batch = 8192;
  const absl::StatusOr<Plan> plan =
      FindPlan({.job = *job, .num_devices = 4}, CostOf(Shipped("h200-sxm")));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->program_hashes.empty());
}

}  // namespace
}  // namespace millrace
