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

struct InstructionCount {
  int64_t base;
  int64_t each;
  int64_t of(int64_t num_microbatches) const {
    return base + each * num_microbatches;
  }
};

// Small numbers of micro-batches tell what each adds, as at any number.
InstructionCount CountInstructions(const ModelSpec& model, Layout layout) {
  const auto count = [&](int32_t num_microbatches) {
    layout.num_microbatches = num_microbatches;
    int64_t instructions = 0;
    const auto programs = BuildTrainingPrograms(model, layout);
    EXPECT_TRUE(programs.ok()) << programs.status();
    for (const Program& program : *programs) {
      instructions += static_cast<int64_t>(program.instructions.size());
    }
    return instructions;
  };
  const int64_t of_20 = count(20);
  const int64_t each = (count(60) - of_20) / 40;
  return {.base = of_20 - 20 * each, .each = each};
}

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
    const InstructionCount count = CountInstructions(job.model, layout);
    EXPECT_LE(count.of(most), kMostInstructions);
    EXPECT_GT(count.of(too_many), kMostInstructions);
  }
}

// Goal: the bounds that need no counting hold. Method: what so many
// micro-batches have, of what two small numbers of them have.
TEST(ProgramSizeTest, BoundsHoldWithoutCounting) {
  const JobSpec job = SmallJob();
  for (Layout layout :
       {Layout{.pipeline = 1}, Layout{.pipeline = 2},
        Layout{.data = 2, .zero = 2},
        Layout{.pipeline = 2, .schedule = Schedule::kZeroBubble},
        Layout{.recompute = Recompute::kFull},
        Layout{.pipeline = 4, .tensor = 2}}) {
    const InstructionCount count = CountInstructions(job.model, layout);
    const MicrobatchBounds bounds = MicrobatchBoundsOf(job.model, layout);
    EXPECT_LT(bounds.always_few_enough, bounds.too_many);
    EXPECT_LE(count.of(bounds.always_few_enough), kMostInstructions);
    EXPECT_GT(count.of(bounds.too_many + 1), kMostInstructions);
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
