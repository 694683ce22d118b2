#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "base/clock.h"
#include "tests/e2e/job_process.h"

namespace millrace {
namespace {

constexpr int64_t kEndless = 1000000;

bool WaitForSteps(const JobProcess& process, const JobFolder& folder,
                  size_t count) {
  return process.WaitUntil(
      [&] { return ReadLines(folder, "metrics.jsonl").size() >= count; });
}

void ExpectGracefulStop(const JobFolder& folder, JobProcess& process) {
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  const nlohmann::json result = ReadResult(folder);
  EXPECT_EQ(result["status"], "stopped");
  const auto metrics = ReadLines(folder, "metrics.jsonl");
  EXPECT_EQ(result["steps"], metrics.back()["step"]);
  EXPECT_EQ(CountEvents(folder, "checkpoint_committed"), 1);
}

// Goal: Ctrl-C finishes the step, writes a checkpoint and exits with 0. Method:
// an endless job without periodic checkpoints, so that the one found is the
// stop's.
TEST(SignalTest, InterruptEndsWithACheckpoint) {
  const JobFolder folder("interrupt");
  const std::string job =
      WriteTinyJob(folder, {.num_steps = kEndless, .checkpoint_interval = 0});
  JobProcess process(folder, RunCommand(job));
  ASSERT_TRUE(WaitForSteps(process, folder, 20)) << process.Output();
  process.Signal(SIGINT);
  ExpectGracefulStop(folder, process);
}

// Goal: the same under mpirun, which passes its Ctrl-C on as SIGTERM and kills
// some seconds later. Method: SIGINT to mpirun. Its own exit code is not ours
// to choose.
TEST(SignalTest, InterruptOfMpirunEndsWithACheckpoint) {
  const JobFolder folder("mpirun-interrupt");
  const std::string job =
      WriteTinyJob(folder, {.num_steps = kEndless, .checkpoint_interval = 0});
  JobProcess process(folder, MpirunCommand(job, 2));
  ASSERT_TRUE(WaitForSteps(process, folder, 20)) << process.Output();
  process.Signal(SIGINT);
  EXPECT_NE(process.Wait(), -1) << process.Output();
  EXPECT_EQ(ReadResult(folder)["status"], "stopped") << process.Output();
  EXPECT_EQ(CountEvents(folder, "checkpoint_committed"), 1);
}

// Goal: under scripts/train, which tells the agents itself, Ctrl-C does not
// wait for mpirun: the job ends well and with exit code 0. Method: SIGINT to
// the script; the second one of a job whose step cannot end stops it at once.
TEST(SignalTest, InterruptOfTheTrainScript) {
  const JobFolder folder("script-interrupt");
  const std::string job =
      WriteTinyJob(folder, {.num_steps = kEndless, .checkpoint_interval = 0});
  const std::vector<std::string> command = {MILLRACE_TRAIN_SCRIPT, job,
                                            "--binary", MILLRACE_BINARY};
  JobProcess process(folder, command);
  ASSERT_TRUE(WaitForSteps(process, folder, 20)) << process.Output();
  const absl::Time began = MonotonicNow();
  process.Signal(SIGINT);
  ExpectGracefulStop(folder, process);
  // None of mpirun's own four seconds are left.
  EXPECT_LE(MonotonicNow() - began, absl::Seconds(3)) << process.Output();

  JobProcess stuck(folder, command);
  ASSERT_TRUE(WaitForSteps(stuck, folder, 20)) << stuck.Output();
  const std::vector<pid_t> workers = stuck.Find("worker");
  ASSERT_EQ(workers.size(), 4u);
  ASSERT_EQ(kill(workers.front(), SIGSTOP), 0);
  stuck.Signal(SIGINT);
  ASSERT_TRUE(stuck.WaitUntil(
      [&] { return CountEvents(folder, "stop_requested") == 1; }));
  stuck.Signal(SIGINT);
  EXPECT_EQ(stuck.Wait(absl::Seconds(20)), 1) << stuck.Output();
  EXPECT_EQ(CountEvents(folder, "checkpoint_committed"), 0);
}

// Goal: SIGUSR1 ends the job after its step, with a checkpoint and the exit
// code that asks for another start, which goes on with the very next step. A
// SIGTERM behind it, as at the end of a time limit, changes nothing. Method:
// each of two starts is stopped so, alone and under mpirun.
TEST(SignalTest, Usr1AsksForAnotherStart) {
  const JobFolder folder("usr1");
  const TinyJob tiny = {.num_steps = kEndless,
                        .checkpoint_interval = 0,
                        .checkpoint_directory = folder.path + "/checkpoints"};
  const std::string job = WriteTinyJob(folder, tiny);
  for (const auto& command : {RunCommand(job), MpirunCommand(job, 2)}) {
    std::filesystem::remove_all(tiny.checkpoint_directory);
    JobProcess process(folder, command);
    ASSERT_TRUE(WaitForSteps(process, folder, 20)) << process.Output();
    process.Signal(SIGUSR1);
    ASSERT_TRUE(process.WaitUntil(
        [&] { return CountEvents(folder, "stop_requested") == 1; }));
    if (command[0] != "mpirun") process.Signal(SIGTERM);
    ASSERT_EQ(process.Wait(), 75) << process.Output();
    const int64_t last_step = ReadLines(folder, "metrics.jsonl").back()["step"];
    EXPECT_EQ(ReadResult(folder)["status"], "stopped");
    EXPECT_EQ(ReadResult(folder)["steps"], last_step);

    JobProcess again(folder, command);
    ASSERT_TRUE(WaitForSteps(again, folder, 1)) << again.Output();
    EXPECT_EQ(ReadLines(folder, "metrics.jsonl").front()["step"],
              last_step + 1);
    again.Signal(SIGUSR1);
    EXPECT_EQ(again.Wait(), 75) << again.Output();
  }
}

// Goal: a coordinator that dies after a signal does not make the job forget it:
// the job stops, and its exit code is that of SIGUSR1. Method: a worker that is
// stopped (SIGSTOP) holds the step until the coordinator is another one.
TEST(SignalTest, Usr1OutlivesTheCoordinator) {
  const JobFolder folder("usr1-coordinator");
  const std::string job = WriteTinyJob(
      folder, {.num_steps = kEndless,
               .checkpoint_interval = 0,
               .checkpoint_directory = folder.path + "/checkpoints"});
  JobProcess process(folder, RunCommand(job));
  ASSERT_TRUE(WaitForSteps(process, folder, 20)) << process.Output();
  const std::vector<pid_t> workers = process.Find("worker");
  const std::vector<pid_t> coordinators = process.Find("coordinator");
  ASSERT_EQ(workers.size(), 2u);
  ASSERT_EQ(coordinators.size(), 1u);
  ASSERT_EQ(kill(workers.front(), SIGSTOP), 0);
  process.Signal(SIGUSR1);
  ASSERT_TRUE(process.WaitUntil(
      [&] { return CountEvents(folder, "stop_requested") == 1; }));
  ASSERT_EQ(kill(coordinators.front(), SIGKILL), 0);
  ASSERT_TRUE(process.WaitUntil([&] {
    return CountEvents(folder, "stop_requested") == 2;
  })) << process.Output();
  ASSERT_EQ(kill(workers.front(), SIGCONT), 0);
  EXPECT_EQ(process.Wait(), 75) << process.Output();
  EXPECT_EQ(ReadResult(folder)["status"], "stopped");
}

// Goal: a job that would begin again at its first step asks for no other start:
// it would do so for ever. Method: checkpoints in the run directory, where the
// next start does not look.
TEST(SignalTest, Usr1FailsWithoutAPlaceForCheckpoints) {
  const JobFolder folder("usr1-nowhere");
  const std::string job =
      WriteTinyJob(folder, {.num_steps = kEndless, .checkpoint_interval = 0});
  JobProcess process(folder, RunCommand(job));
  ASSERT_TRUE(WaitForSteps(process, folder, 5)) << process.Output();
  process.Signal(SIGUSR1);
  EXPECT_EQ(process.Wait(), 1) << process.Output();
  EXPECT_NE(process.Output().find("checkpoint.directory is not set"),
            std::string::npos)
      << process.Output();
  EXPECT_EQ(CountEvents(folder, "checkpoint_committed"), 1);
}

// Goal: a job whose mpirun was killed ends by itself, with a checkpoint, rather
// than train on where nobody can reach it. Method: SIGKILL to mpirun.
TEST(SignalTest, EndsWhenMpirunIsKilled) {
  const JobFolder folder("orphans");
  const std::string job =
      WriteTinyJob(folder, {.num_steps = kEndless, .checkpoint_interval = 0});
  JobProcess process(folder, MpirunCommand(job, 2));
  ASSERT_TRUE(WaitForSteps(process, folder, 20)) << process.Output();
  process.Signal(SIGKILL);
  EXPECT_EQ(process.Wait(), 128 + SIGKILL);
  for (int i = 0; i < 200 && CountEvents(folder, "finished") == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_EQ(CountEvents(folder, "finished"), 1);
  EXPECT_EQ(CountEvents(folder, "checkpoint_committed"), 1);
}

// Goal: a second Ctrl-C stops at once, without a checkpoint, and the exit code
// says that not all is well. Method: a worker that is stopped (SIGSTOP) can
// finish no step, so only the second signal ends the job.
TEST(SignalTest, SecondInterruptStopsAtOnce) {
  const JobFolder folder("twice");
  const std::string job =
      WriteTinyJob(folder, {.num_steps = kEndless, .checkpoint_interval = 0});
  JobProcess process(folder, RunCommand(job));
  ASSERT_TRUE(WaitForSteps(process, folder, 20)) << process.Output();
  const std::vector<pid_t> workers = process.Find("worker");
  ASSERT_EQ(workers.size(), 2u);
  ASSERT_EQ(kill(workers.front(), SIGSTOP), 0);
  process.Signal(SIGINT);
  ASSERT_TRUE(process.WaitUntil(
      [&] { return CountEvents(folder, "stop_requested") == 1; }));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(absl::Seconds(20)), 1) << process.Output();
  EXPECT_EQ(ReadResult(folder)["status"], "stopped");
  EXPECT_EQ(CountEvents(folder, "checkpoint_committed"), 0);
}

}  // namespace
}  // namespace millrace
