#include "planner/lower/program_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "planner/lower/lower.h"
#include "planner/search/search.h"
#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Goal: a step of more micro-batches than Programs can be made of is refused at
// once, with a number that works, however it is reached. Method: millions of
// micro-batches, pinned and not; the batch that the message names is lowered.
TEST(ProgramSizeTest, RefusesEndlessSteps) {
  const JobSpec job = SmallJob();
  Layout layout{.data = 2, .micro_batch = 2, .num_microbatches = 3'000'000};
  const absl::Status status = CheckProgramSize(job.model, layout);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(status.message());
  EXPECT_THAT(message, AllOf(HasSubstr("3000000 micro-batches"),
                             HasSubstr("set training.global_batch to "),
                             HasSubstr("layout.micro_batch")));
  EXPECT_EQ(BuildTrainingProgram(job.model, layout, 0).status(), status);
  EXPECT_EQ(BuildTrainingPrograms(job.model, layout).status(), status);
  const std::string key = "set training.global_batch to ";
  const int64_t batch =
      std::stoll(message.substr(message.find(key) + key.size()));
  ASSERT_EQ(batch % 4, 0);
  layout.num_microbatches = static_cast<int32_t>(batch / 4);
  EXPECT_TRUE(CheckProgramSize(job.model, layout).ok());
  ++layout.num_microbatches;
  EXPECT_FALSE(CheckProgramSize(job.model, layout).ok());
}

// Goal: what is counted without making it is what is made. Method: the most
// micro-batches that pass have Programs of no more instructions than the bound,
// by at most one micro-batch's.
TEST(ProgramSizeTest, CountsWhatIsMade) {
  const JobSpec job = SmallJob();
  for (Layout layout :
       {Layout{.pipeline = 1}, Layout{.pipeline = 2},
        Layout{.data = 2, .zero = 2}, Layout{.pipeline = 4, .tensor = 2}}) {
    int32_t most = 1, too_many = 1'000'000;
    while (too_many - most > 1) {
      layout.num_microbatches = most + (too_many - most) / 2;
      (CheckProgramSize(job.model, layout).ok() ? most : too_many) =
          layout.num_microbatches;
    }
    const auto count = [&](int32_t num_microbatches) {
      layout.num_microbatches = num_microbatches;
      int64_t instructions = 0;
      const auto programs = BuildTrainingPrograms(job.model, layout);
      EXPECT_TRUE(programs.ok()) << programs.status();
      for (const Program& program : *programs) {
        instructions += static_cast<int64_t>(program.instructions.size());
      }
      return instructions;
    };
    // Small ones tell what a micro-batch adds, as at any number.
    const int64_t of_20 = count(20);
    const int64_t each = (count(60) - of_20) / 40;
    const int64_t base = of_20 - 20 * each;
    EXPECT_LE(base + each * most, kMostInstructions);
    EXPECT_GT(base + each * too_many, kMostInstructions);
  }
}

// Goal: a workers' plan of a batch of millions ends and says what to do.
// Method: plan one on the made-up machine, whose memory holds no micro-batch
// large enough. Every layout is refused, and refusing one takes making some
// Programs of it, so there are few: two devices, two layers and no
// recomputation.
TEST(ProgramSizeTest, PlansOfEndlessStepsAreRefused) {
  JobSpec job = SmallJob();
  job.model.num_layers = 2;
  job.layout.recompute = "none";
  job.training.global_batch = 10'000'000;
  job.resources.memory_per_device_bytes = int64_t{64} << 20;
  const auto cost = CostModel::Create(MakeProfile({}));
  ASSERT_TRUE(cost.ok());
  const auto plan = FindPlan({.job = job, .num_devices = 2}, *cost);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("set training.global_batch to "));
}

}  // namespace
}  // namespace millrace
