// Jobs whose saved state was damaged on disk.

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/e2e/job_process.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::string StepPath(const std::string& checkpoints, int64_t step) {
  return absl::StrFormat("%s/step-%08d", checkpoints, step);
}

// Changes the last byte of every rank's file.
void Damage(const std::string& checkpoint) {
  int num_damaged = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char last = static_cast<char>(file.get());
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
    num_damaged += file.good();
  }
  ASSERT_GT(num_damaged, 0) << checkpoint;
}

// A tiny job with a checkpoint folder that outlives its runs.
std::string WriteSavingJob(const JobFolder& folder, TinyJob job) {
  job.extra =
      absl::StrCat(job.extra, "checkpoint: {directory: ", folder.path,
                   "/saved, interval_steps: ", job.checkpoint_interval, "}\n");
  const std::string path = WriteTinyJob(folder, job);
  // One checkpoint section: ours replaces the tiny job's own.
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  in.close();
  const std::string own = absl::StrCat(
      "checkpoint:\n  interval_steps: ", job.checkpoint_interval, "\n");
  const size_t at = text.find(own);
  EXPECT_NE(at, std::string::npos);
  text.erase(at, own.size());
  std::ofstream(path) << text;
  return path;
}

// Goal: a job goes on from the newest whole checkpoint and says what it passed
// over; with none whole it refuses to begin again from the first step. Method:
// train, damage the newest, train on; damage both, try once more.
TEST(DamagedCheckpointRunTest, IsPassedOverAloudAndNeverForASilentFreshStart) {
  const JobFolder folder("damaged");
  const std::string saved = folder.path + "/saved";
  TinyJob job = {.num_steps = 20, .checkpoint_interval = 10};
  JobProcess first(folder, RunCommand(WriteSavingJob(folder, job)));
  ASSERT_EQ(first.Wait(), 0) << first.Output();
  Damage(StepPath(saved, 20));

  job.num_steps = 30;
  JobProcess second(folder, RunCommand(WriteSavingJob(folder, job)));
  ASSERT_EQ(second.Wait(), 0) << second.Output();
  EXPECT_EQ(CountEvents(folder, "checkpoint_skipped"), 1);
  EXPECT_NE(second.Output().find("passed over"), std::string::npos);
  const auto metrics = ReadLines(folder, "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 20u);
  EXPECT_EQ(metrics.front()["step"], 11);

  for (const auto& entry : fs::directory_iterator(saved)) {
    if (!entry.is_directory()) continue;
    Damage(entry.path().string());
  }
  JobProcess third(folder, RunCommand(WriteSavingJob(folder, job)));
  EXPECT_EQ(third.Wait(), 2) << third.Output();
  EXPECT_NE(third.Output().find("checkpoint.resume: none"), std::string::npos)
      << third.Output();
  EXPECT_EQ(ReadLines(folder, "metrics.jsonl").size(), 0u);
}

// Stops the job's workers in the middle of training, at least `commits`
// checkpoints being written and the next one far, and calls `damage`; then
// kills one worker and lets the others go on.
void DamageAndKill(JobProcess& process, const JobFolder& folder,
                   int64_t commits, const std::function<void()>& damage) {
  ASSERT_TRUE(process.WaitUntil([&] {
    return CountEvents(folder, "checkpoint_committed") >= commits;
  })) << process.Output();
  const std::vector<pid_t> workers = process.Find("worker");
  ASSERT_EQ(workers.size(), 2u);
  for (pid_t worker : workers) ASSERT_EQ(kill(worker, SIGSTOP), 0);
  damage();
  ASSERT_EQ(kill(workers[0], SIGKILL), 0);
  ASSERT_EQ(kill(workers[1], SIGCONT), 0);
}

// Goal: when the checkpoint to recover from is damaged, the job takes the one
// before it, trains the steps in between again and ends with the very same
// parameters. Method: damage the second of its checkpoints while it runs, kill
// a worker, compare with the undisturbed run. Copies in memory, which would
// make checkpoints needless, are off here and below.
TEST(DamagedCheckpointRunTest, RecoveryTakesTheOneBefore) {
  const JobFolder folder("damaged-recovery");
  const std::string job =
      WriteTinyJob(folder, {.num_steps = 1200,
                            .checkpoint_interval = 500,
                            .extra = "profile_output: none\n"
                                     "fault: {replica_interval_steps: 0}\n"});
  JobProcess undisturbed(folder, RunCommand(job));
  ASSERT_EQ(undisturbed.Wait(), 0) << undisturbed.Output();
  const std::string expected = ReadResult(folder)["parameter_hash"];

  JobProcess process(folder, RunCommand(job));
  DamageAndKill(process, folder, 2, [&] {
    Damage(StepPath(folder.path + "/runs/tiny-latest/checkpoints", 1000));
  });
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_EQ(ReadResult(folder)["parameter_hash"], expected);
  EXPECT_GE(CountEvents(folder, "checkpoint_skipped"), 1);
  EXPECT_NE(process.Output().find("step-00000500 instead"), std::string::npos)
      << process.Output();
}

// Goal: with no whole checkpoint left after some were committed, the job ends
// with the reason. Method: damage the only one.
TEST(DamagedCheckpointRunTest, RecoveryWithoutAnyEndsTheJob) {
  const JobFolder folder("damaged-all");
  const std::string job =
      WriteTinyJob(folder, {.num_steps = 1000000,
                            .checkpoint_interval = 1000,
                            .extra = "fault: {replica_interval_steps: 0}\n"});
  JobProcess process(folder, RunCommand(job));
  DamageAndKill(process, folder, 1, [&] {
    Damage(StepPath(folder.path + "/runs/tiny-latest/checkpoints", 1000));
  });
  ASSERT_EQ(process.Wait(absl::Seconds(60)), 1) << process.Output();
  EXPECT_EQ(ReadResult(folder)["status"], "failed");
  EXPECT_NE(process.Output().find("no other can take its place"),
            std::string::npos)
      << process.Output();
}

}  // namespace
}  // namespace millrace
