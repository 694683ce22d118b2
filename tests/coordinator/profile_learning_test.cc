#include "coordinator/profile_learning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "coordinator/write_ahead_log.h"
#include "planner/job/job_file.h"
#include "planner/learn/profile_request.h"
#include "planner/profile/profile_file.h"
#include "tests/planner/planning_fixture.h"
#include "tests/planner/played_step.h"

namespace millrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

DeviceFacts Here() {
  return {.num_devices = 4,
          .threads_per_device = 1,
          .ranks_per_host = 4,
          .machine = "made-up",
          .machines = {"made-up"}};
}

Layout FourRanks() {
  return {.data = 2,
          .tensor = 2,
          .micro_batch = 1,
          .num_microbatches = 4,
          .zero = 1};
}

// Run directories of the small job on a machine where everything takes 1.3
// times as long as its profile says.
class ProfileLearningTest : public ::testing::Test {
 protected:
  ProfileLearningTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                absl::StrCat("profile_learning_test.", getpid())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
    job_ = SmallJob();
    job_.data.synthetic = true;
    job_.training.optimizer.learning_rate = 1e-3;
  }
  ~ProfileLearningTest() override { std::filesystem::remove_all(folder_); }

  std::string CachedPath() const {
    return *DefaultProfilePath(
        {.machine = "made-up",
         .shape = ProfileShapeKey(job_.model, job_.training),
         .num_ranks = 4,
         .threads_per_device = 1});
  }

  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
  }

  struct RunOptions {
    bool fails = false;
    // During so many of the last steps others have half of the processors, and
    // all takes three times as long.
    int num_busy_steps = 0;
  };
  // Ten steps of one generation, or two of five with a failure between them.
  std::string MakeRun(const std::string& name) { return MakeRun(name, {}); }
  std::string MakeRun(const std::string& name, const RunOptions& options) {
    const std::string run = folder_ / "runs" / name;
    std::filesystem::create_directories(run + "/timelines");
    const HardwareProfile profile = MakeProfile({});
    Write(run + "/job.yaml", JobToYaml(job_));
    Write(run + "/profile.yaml", ProfileToYaml(profile));
    Write(run + "/result.json", "{}");
    const auto log = *WriteAheadLog::Open(run + "/state.log");
    EXPECT_TRUE(log->Started(1).ok());
    EXPECT_TRUE(log->PlanChosen(PlanRecordToJson({.layout = FourRanks(),
                                                  .program_hashes = {},
                                                  .resume_path = ""}))
                    .ok());
    const std::vector<Program> programs =
        *BuildTrainingPrograms(job_.model, FourRanks());
    const std::vector<double> seconds =
        CostModel::Create(profile)->ProgramSeconds(programs[0]);
    StepObserver observer(run, job_, FourRanks(), Here());
    std::string metrics;
    for (int i = 1; i <= 10; ++i) {
      const int generation = options.fails && i > 5 ? 2 : 1;
      const bool is_busy = i > 10 - options.num_busy_steps;
      // Warming up takes five times as long.
      const bool warms_up = i % 5 == 1 && (options.fails || i == 1);
      const double factor = warms_up ? 6.5 : is_busy ? 3.9 : 1.3;
      const Timeline timeline =
          PlayStep(programs, [&](size_t, InstructionId id) {
            return factor * seconds[static_cast<size_t>(id)];
          });
      observer.Observe(generation, i, timeline, is_busy ? 0.5 : 0.01);
      EXPECT_TRUE(observer.Finish().ok()) << observer.Finish();
      absl::StrAppend(&metrics, "{\"generation\": ", generation,
                      ", \"step\": ", i,
                      ", \"step_time_s\": ", timeline.step_time_s, "}\n");
    }
    Write(run + "/metrics.jsonl", metrics);
    return run;
  }

  const std::filesystem::path folder_;
  JobSpec job_;
};

// Goal: this machine's cached profile learns, once from each run, and says so.
// Method: two runs, one of them twice, one with a failure in its middle whose
// slow first steps must not show.
TEST_F(ProfileLearningTest, LearnsIntoTheCachedProfile) {
  const std::string run = MakeRun("one");
  const auto taught = LearnProfile(run, {});
  ASSERT_TRUE(taught.ok()) << taught.status();
  EXPECT_EQ(taught->path, std::filesystem::weakly_canonical(CachedPath()));
  EXPECT_FALSE(taught->is_copy);
  EXPECT_EQ(taught->result.run.num_steps, 8);
  const LearntRun& learnt = taught->result.run;
  EXPECT_NEAR(learnt.measured_s / learnt.predicted_s, 1.3, 0.01);
  EXPECT_NEAR(learnt.measured_s / learnt.predicted_after_s, 1, 0.04);
  EXPECT_THAT(DescribeLearnt(*taught),
              Contains(HasSubstr(absl::StrCat(taught->path, " learnt"))));
  EXPECT_TRUE(absl::IsAlreadyExists(LearnProfile(run, {}).status()));
  const auto second = LearnProfile(MakeRun("two", {.fails = true}), {});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->result.run.num_steps, 5);
  const HardwareProfile profile = *LoadProfile(CachedPath());
  ASSERT_EQ(profile.learnt_runs.size(), 2u);
  EXPECT_EQ(profile.learnt_runs[1].run, "two.000");
  EXPECT_NEAR(learnt.measured_s / profile.learnt_runs[1].predicted_after_s, 1,
              0.02);
}

// Goal: the job, or who asks, says which profile learns; what comes with
// Millrace or cannot be written never changes. Method: each way to name one.
TEST_F(ProfileLearningTest, WritesWhereItMay) {
  const std::string mine = folder_ / "mine.yaml";
  job_.profile_output = mine;
  EXPECT_EQ(LearnProfile(MakeRun("path"), {})->path,
            std::filesystem::weakly_canonical(mine));
  EXPECT_TRUE(FileExists(mine));
  EXPECT_FALSE(FileExists(CachedPath()));

  job_.profile_output = "none";
  const std::string silent = MakeRun("none");
  EXPECT_TRUE(absl::IsFailedPrecondition(LearnProfile(silent, {}).status()));
  EXPECT_TRUE(LearnProfile(silent, {.output = mine}).ok());
  EXPECT_EQ(LoadProfile(mine)->learnt_runs.size(), 2u);

  // As if it had come with Millrace.
  const std::string shipped = folder_ / "configs/hardware/made-up.yaml";
  ASSERT_TRUE(SaveProfile(MakeProfile({}), shipped).ok());
  const std::string text = *ReadFile(shipped);
  job_.profile_output = "auto";
  job_.profile = shipped;
  const std::string run = MakeRun("shipped");
  const auto copy = LearnProfile(run, {});
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_TRUE(copy->is_copy);
  EXPECT_EQ(copy->path, run + "/learnt_profile.yaml");
  EXPECT_EQ(*ReadFile(shipped), text);
  EXPECT_THAT(DescribeLearnt(*copy), Contains(HasSubstr("this is a copy")));
  const auto refused = LearnProfile(run, {.output = shipped});
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_EQ(*ReadFile(shipped), text);

  // A link leads to what is taught.
  const std::string linked = folder_ / "link.yaml";
  std::filesystem::create_symlink(mine, linked);
  job_.profile = linked;
  EXPECT_TRUE(LearnProfile(MakeRun("linked"), {}).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(linked));
  EXPECT_EQ(LoadProfile(mine)->learnt_runs.size(), 3u);
}

// Goal: steps of a machine that others keep busy teach nothing by themselves,
// but may when asked. Method: a run with some of them, and one with no others,
// which take three times as long.
TEST_F(ProfileLearningTest, LeavesOutBusySteps) {
  const auto mixed = LearnProfile(MakeRun("mixed", {.num_busy_steps = 5}), {});
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_EQ(mixed->num_busy_steps, 5);
  EXPECT_EQ(mixed->result.run.num_steps, 3);
  EXPECT_NEAR(mixed->result.run.measured_s / mixed->result.run.predicted_s, 1.3,
              0.01);
  EXPECT_THAT(DescribeLearnt(*mixed),
              Contains(HasSubstr("5 more measured steps left out")));
  const std::string text = *ReadFile(CachedPath());
  const std::string busy = MakeRun("busy", {.num_busy_steps = 10});
  const auto refused = LearnProfile(busy, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_THAT(refused.status().message(), HasSubstr("50 % of the processors"));
  EXPECT_THAT(refused.status().message(), HasSubstr("--from-run"));
  EXPECT_EQ(*ReadFile(CachedPath()), text);
  const auto believed = LearnProfile(
      busy, {.output = folder_ / "busy.yaml", .believes_busy_steps = true});
  ASSERT_TRUE(believed.ok()) << believed.status();
  EXPECT_EQ(believed->num_busy_steps, 0);
  EXPECT_GT(believed->result.run.predicted_after_s,
            2 * mixed->result.run.predicted_after_s);
}

// Goal: runs that end together all count, and leave a whole profile. Method:
// six at one time.
TEST_F(ProfileLearningTest, ManyAtOnce) {
  std::vector<std::string> runs;
  for (int i = 0; i < 6; ++i) runs.push_back(MakeRun(absl::StrCat("run", i)));
  std::vector<std::thread> threads;
  for (const std::string& run : runs) {
    threads.emplace_back([&run] {
      const auto taught = LearnProfile(run, {});
      EXPECT_TRUE(taught.ok()) << taught.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto profile = LoadProfile(CachedPath());
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->learnt_runs.size(), 6u);
}

// Goal: each way in which a run tells nothing is said, with what to do. Method:
// damage what it holds.
TEST_F(ProfileLearningTest, SaysWhyNothingIsLearnt) {
  const auto error_of = [](const std::string& run) {
    return std::string(LearnProfile(run, {}).status().message());
  };
  EXPECT_THAT(error_of(folder_), HasSubstr("is not a run directory"));
  const std::string run = MakeRun("damaged");
  const std::string observed = run + "/timelines/observed.jsonl";
  const std::string whole = *ReadFile(observed);
  const std::string torn = whole.substr(0, whole.size() - 20);

  Write(observed, whole.substr(0, 30));
  EXPECT_THAT(error_of(run), HasSubstr("observed.jsonl:1: not an observed"));
  Write(observed, whole.substr(0, 100) + "\n" + whole);
  EXPECT_THAT(error_of(run), HasSubstr("observed.jsonl:1: not an observed"));
  std::string older = whole;
  older.replace(older.find("\"version\":1"), 11, "\"version\":0");
  Write(observed, older);
  EXPECT_THAT(error_of(run), HasSubstr("version 0"));
  Write(observed, "");
  EXPECT_THAT(error_of(run), HasSubstr("is empty"));
  std::filesystem::remove(observed);
  EXPECT_THAT(error_of(run), HasSubstr("an older Millrace"));

  // A last line that was being written.
  Write(observed, torn);
  std::filesystem::remove(run + "/result.json");
  EXPECT_THAT(error_of(run), HasSubstr("has not ended"));
  Write(run + "/result.json", "{}");
  EXPECT_FALSE(FileExists(CachedPath()));
  const auto taught = LearnProfile(run, {});
  ASSERT_TRUE(taught.ok()) << taught.status();
  EXPECT_EQ(taught->result.run.num_steps, 7);

  // A coordinator that comes back goes on behind the last whole line.
  const std::vector<Program> programs =
      *BuildTrainingPrograms(job_.model, FourRanks());
  StepObserver again(run, job_, FourRanks(), Here());
  again.Observe(1, 10,
                PlayStep(programs, [](size_t, InstructionId) { return 1e-5; }),
                /*others_share=*/0);
  EXPECT_TRUE(again.Finish().ok()) << again.Finish();
  EXPECT_EQ(ReadEndedRun(run, false)->measured.steps.size(), 8u);
}

// Goal: steps of another machine than the profile's are not even observed.
// Method: another name and another number of threads.
TEST_F(ProfileLearningTest, ObservesItsOwnMachineAlone) {
  const std::string run = MakeRun("here");
  DeviceFacts elsewhere = Here();
  elsewhere.machine = "another";
  DeviceFacts wider = Here();
  wider.threads_per_device = 2;
  for (const DeviceFacts& devices : {elsewhere, wider}) {
    StepObserver observer(run, job_, FourRanks(), devices);
    observer.Observe(1, 11, {}, -1);
    EXPECT_TRUE(absl::IsFailedPrecondition(observer.Finish()));
    EXPECT_THAT(observer.Finish().message(), HasSubstr("made-up"));
  }
}

}  // namespace
}  // namespace millrace
