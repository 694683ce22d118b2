#include "coordinator/periodic_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/model_files.h"
#include "fault/checkpoint_files.h"
#include "fault/faulty_file_system.h"
#include "fault/weight_export.h"
#include "fault/weight_folder.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/job_file.h"
#include "tests/fault/state_fixture.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kCheckpoints[] = "checkpoints";
constexpr char kExports[] = "exports";

JobSpec TinyJobSpec() {
  return {.name = "tiny",
          .model = TinyModel(),
          .data = {.synthetic = true},
          .training = {.num_steps = 100,
                       .global_batch = 4,
                       .optimizer = {.learning_rate = 1e-3}}};
}

// A checkpoint of a step, whose weights follow from the step.
std::string SaveStep(FileSystem& files, int64_t step) {
  const Layout layout = {.pipeline = 2, .tensor = 2, .micro_batch = 4};
  std::vector<RankState> state = MakeState(TinyModel(), layout);
  FillState(state, step);
  CheckpointInfo info = InfoOf(layout, step);
  info.job_yaml = JobToYaml(TinyJobSpec());
  EXPECT_TRUE(Save(files, kCheckpoints, info, state, 100).ok());
  return ListCheckpoints(files, kCheckpoints)->front().path;
}

// Collects outcomes, which come on another thread.
class Outcomes {
 public:
  void Add(const ExportOutcome& outcome) {
    const std::lock_guard<std::mutex> lock(mutex_);
    outcomes_.push_back(outcome);
    changed_.notify_all();
  }
  std::vector<ExportOutcome> WaitFor(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return outcomes_.size() >= count; });
    return outcomes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ExportOutcome> outcomes_;
};

PeriodicExportOptions OptionsOf(Outcomes& outcomes, int32_t keep = 0) {
  return {.directory = kExports,
          .keep = keep,
          .on_end = [&outcomes](const ExportOutcome& outcome) {
            outcomes.Add(outcome);
          }};
}

// Goal: what is exported during training is what an export of the checkpoint
// gives afterwards, byte for byte. Method: both, of one checkpoint.
TEST(PeriodicExportTest, EqualsTheExportOfTheCheckpoint) {
  FaultyFileSystem files;
  const std::string checkpoint = SaveStep(files, 7);
  Outcomes outcomes;
  PeriodicExport exporter(files, OptionsOf(outcomes));
  exporter.Add(7, checkpoint);
  const std::vector<ExportOutcome> ended = outcomes.WaitFor(1);
  ASSERT_TRUE(ended[0].status.ok()) << ended[0].status;
  EXPECT_EQ(ended[0].step, 7);
  EXPECT_EQ(ended[0].folder, "exports/step-00000007");
  EXPECT_FALSE(exporter.oldest_step().has_value());

  WeightExport what = {.checkpoint = checkpoint};
  what.other_files = *FilesBesideWeights(files, checkpoint, what.type);
  ASSERT_TRUE(ExportWeightFolder(files, what, "by_hand").ok());
  const auto names = files.List("by_hand");
  ASSERT_TRUE(names.ok());
  EXPECT_THAT(*names, ElementsAre("config.json", kWeightFile));
  EXPECT_EQ(*files.List(ended[0].folder), *names);
  for (const std::string& name : *names) {
    EXPECT_EQ(*files.Content(JoinPath(ended[0].folder, name)),
              *files.Content(JoinPath("by_hand", name)))
        << name;
  }
}

// Goal: the newest exports stay, other folders are not touched, and remains of
// an interrupted export do not stop the next. Method: four exports, two kept,
// beside a folder of the user's and one of a later step.
TEST(PeriodicExportTest, KeepsTheNewest) {
  FaultyFileSystem files;
  for (const char* other : {"exports/mine", "exports/step-1",
                            "exports/step-00000099", "exports/step-00000001"}) {
    ASSERT_TRUE(files.MakeDirectories(other).ok());
  }
  ASSERT_TRUE(files.MakeDirectories("exports/step-00000030.partial").ok());
  Outcomes outcomes;
  PeriodicExport exporter(files, OptionsOf(outcomes, 2));
  for (const int64_t step : {10, 20, 30, 40}) {
    exporter.Add(step, SaveStep(files, step));
    const auto ended = outcomes.WaitFor(static_cast<size_t>(step / 10));
    EXPECT_TRUE(ended.back().status.ok()) << ended.back().status;
    EXPECT_TRUE(ended.back().removal.ok()) << ended.back().removal;
  }
  EXPECT_THAT(*files.List(kExports),
              ElementsAre("mine", "step-00000001", "step-00000030",
                          "step-00000040", "step-00000099", "step-1"));
}

// Goal: a full disk, or a checkpoint that is gone, is an outcome and leaves no
// folder; the next export succeeds. Method: both, then room.
TEST(PeriodicExportTest, FailuresAreOutcomes) {
  FaultyFileSystem files;
  const std::string first = SaveStep(files, 1);
  const std::string second = SaveStep(files, 2);
  Outcomes outcomes;
  PeriodicExport exporter(files, OptionsOf(outcomes));
  files.SetCapacity(files.used_bytes() + 500);
  exporter.Add(1, first);
  EXPECT_EQ(outcomes.WaitFor(1)[0].status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(files.List(kExports)->empty());
  files.SetCapacity(-1);
  ASSERT_TRUE(files.Remove(first).ok());
  exporter.Add(1, first);
  EXPECT_FALSE(outcomes.WaitFor(2)[1].status.ok());
  exporter.Add(2, second);
  EXPECT_TRUE(outcomes.WaitFor(3)[2].status.ok());
  // An existing export stays: a run that went back may be at the step again.
  exporter.Add(2, second);
  EXPECT_THAT(std::string(outcomes.WaitFor(4)[3].status.message()),
              HasSubstr("is there already"));
  EXPECT_THAT(*files.List(kExports), ElementsAre("step-00000002"));
}

// Goal: exports slower than the steps between them give up those in the middle,
// never the newest. Method: many at once.
TEST(PeriodicExportTest, NewestWaits) {
  FaultyFileSystem files;
  std::vector<std::string> checkpoints;
  for (int64_t step = 1; step <= 20; ++step) {
    checkpoints.push_back(SaveStep(files, step));
  }
  Outcomes outcomes;
  PeriodicExport exporter(files, OptionsOf(outcomes));
  for (int64_t step = 1; step <= 20; ++step) {
    exporter.Add(step, checkpoints[step - 1]);
  }
  std::map<int64_t, absl::Status> by_step;
  for (const ExportOutcome& outcome : outcomes.WaitFor(20)) {
    by_step[outcome.step] = outcome.status;
  }
  EXPECT_EQ(by_step.size(), 20u);
  EXPECT_TRUE(by_step[20].ok()) << by_step[20];
  for (const auto& [step, status] : by_step) {
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
  }
}

// Goal: which steps are exported. Method: every third of ten, and none.
TEST(PeriodicExportTest, ExportsEachSoManyStepsAndTheLast) {
  JobSpec job = TinyJobSpec();
  job.training.num_steps = 10;
  EXPECT_FALSE(IsExported(job, 10));
  job.exports.every = 3;
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= 10; ++step) {
    if (IsExported(job, step)) steps.push_back(step);
  }
  EXPECT_THAT(steps, ElementsAre(3, 6, 9, 10));
}

}  // namespace
}  // namespace millrace
