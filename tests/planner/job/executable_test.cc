#include "planner/job/executable.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/job/job_file.h"
#include "planner/job/job_keys.h"
#include "planner/lower/lower.h"
#include "tests/planner/known_models.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Goal: each key that no worker executes is named as the job file calls it,
// with its value. Method: jobs with one such key each, then with all; every
// name that a message gives is a key.
TEST(CheckExecutableTest, NamesEveryKeyThatIsOnlyPlanned) {
  JobSpec job;
  job.model = Llama3_8B();
  EXPECT_TRUE(CheckExecutable(job).ok()) << CheckExecutable(job);
  job.training.precision = "bf16";
  job.layout = {.pipeline = 2, .tensor = 4, .context = 1, .interleave = 1};
  job.layout.schedule = "zero_bubble";
  EXPECT_TRUE(CheckExecutable(job).ok()) << CheckExecutable(job);

  const struct {
    const char* key;
    const char* value;
  } planned[] = {
      {"model.feed_forward", "relu2"},   {"model.moe.num_experts", "16"},
      {"model.mla.kv_rank", "512"},      {"training.precision", "fp4"},
      {"layout.context", "2"},           {"layout.expert", "8"},
      {"layout.expert_tensor", "4"},     {"layout.interleave", "3"},
      {"layout.schedule", "interleaved"}};
  JobSpec all = job;
  for (const auto& [key, value] : planned) {
    SCOPED_TRACE(key);
    JobSpec one = job;
    const JobKey* found = FindJobKey(key);
    ASSERT_NE(found, nullptr);
    ASSERT_TRUE(SetJobValue(*found, value, &one));
    ASSERT_TRUE(SetJobValue(*found, value, &all));
    const absl::Status status = CheckExecutable(one);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        status.message(),
        AllOf(HasSubstr("millrace plan"),
              HasSubstr(absl::StrCat(key, " is ", value, ", workers"))));
    for (const auto& other : planned) {
      if (other.key == key) continue;
      EXPECT_THAT(status.message(),
                  Not(HasSubstr(absl::StrCat(other.key, " is"))));
    }
  }
  for (const auto& [key, value] : planned) {
    EXPECT_THAT(CheckExecutable(all).message(),
                HasSubstr(absl::StrCat(key, " is ", value, ", workers")));
  }
}

// Goal: the job has a key for every size of a layout, schedule and recipe, and
// the documentation says of the right sizes that they are only planned. Method:
// all rows of the tables.
TEST(CheckExecutableTest, TablesAgreeWithKeys) {
  for (const LayoutSize& row : LayoutSizes()) {
    const JobKey* key = FindJobKey(absl::StrCat("layout.", row.name));
    ASSERT_NE(key, nullptr) << row.name;
    JobSpec job;
    EXPECT_EQ(std::get<std::optional<int32_t>*>(key->field(job)),
              &(job.layout.*row.pinned))
        << row.name;
    EXPECT_EQ(absl::StrContains(key->doc, "only planned so far"),
              row.execution == Execution::kNone)
        << row.name;
  }
  for (const ScheduleDescriptor& row : Schedules()) {
    EXPECT_TRUE(IsChoice(*FindJobKey("layout.schedule"), row.name)) << row.name;
    EXPECT_EQ(ScheduleOf(row.name), row.schedule);
  }
  for (const PrecisionRecipe& row : PrecisionRecipes()) {
    EXPECT_TRUE(IsChoice(*FindJobKey("training.precision"), row.name))
        << row.name;
  }
}

// Goal: what the tables say of planner/lower is so. Method: a layout with each
// size above one, and each schedule.
TEST(CheckExecutableTest, TablesSayWhatIsLowered) {
  const ModelSpec model = TestModel();
  const auto lowers = [&](Layout layout) {
    layout.num_microbatches = 4;
    return BuildTrainingPrograms(model, layout).ok();
  };
  for (const LayoutSize& row : LayoutSizes()) {
    Layout layout;
    if (row.size == &Layout::data_groups) layout.data = 4;
    layout.*row.size = 2;
    EXPECT_EQ(lowers(layout), row.execution != Execution::kNone) << row.name;
  }
  for (const ScheduleDescriptor& row : Schedules()) {
    Layout layout{.pipeline = 2};
    if (row.schedule == Schedule::kListScheduled) {
      layout = ListScheduled(layout);
    }
    layout.schedule = row.schedule;
    EXPECT_EQ(lowers(layout), row.is_lowered) << row.name;
  }
}

// Goal: nothing that is only planned is lowered to a Program that computes
// something else. Method: a Llama with the square of ReLU, and a layout with a
// context axis.
TEST(CheckExecutableTest, StandsBeforeLowering) {
  ModelSpec squared = Llama3_8B();
  squared.feed_forward = FeedForward::kSquaredRelu;
  EXPECT_THAT(BuildTrainingProgram(squared, {}, 0).status().message(),
              HasSubstr("model.feed_forward"));
  EXPECT_THAT(
      BuildTrainingProgram(Llama3_8B(), {.context = 2}, 0).status().message(),
      HasSubstr("layout.context"));
}

}  // namespace
}  // namespace millrace
