#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/e2e/job_process.h"

namespace millrace {
namespace {

constexpr int kNumKills = 5;
// Learning from the first run might give the second another layout, which
// rounds otherwise.
const TinyJob kJob = {.num_steps = 900,
                      .checkpoint_interval = 50,
                      .extra = "profile_output: none\n"};

int64_t LastStep(const JobFolder& folder) {
  const auto metrics = ReadLines(folder, "metrics.jsonl");
  return metrics.empty() ? 0 : metrics.back().value("step", int64_t{0});
}

std::string UninterruptedHash(const JobFolder& folder, const std::string& job) {
  JobProcess process(folder, MpirunCommand(job, 2));
  EXPECT_EQ(process.Wait(), 0) << process.Output();
  return ReadResult(folder).value("parameter_hash", "");
}

// Waits until `count` generations have come to training.
bool WaitForTraining(const JobProcess& process, const JobFolder& folder,
                     int64_t count) {
  return process.WaitUntil(
      [&] { return CountEvents(folder, "training") >= count; });
}

// Goal: kill -9 of any worker at ten random moments of one run costs nothing
// but time: the final parameters are those of the uninterrupted run, bit for
// bit. Method: kill, wait until training goes on, let it take a random number
// of steps, kill again; the seed is printed.
TEST(RecoveryTest, KilledWorkersCostNothingButTime) {
  const JobFolder folder("kill");
  const std::string job = WriteTinyJob(folder, kJob);
  const std::string expected = UninterruptedHash(folder, job);
  ASSERT_FALSE(expected.empty());
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);

  JobProcess process(folder, MpirunCommand(job, 2));
  std::vector<double> seconds;
  int64_t num_training = 1;
  for (int kill_idx = 0; kill_idx < kNumKills; ++kill_idx) {
    ASSERT_TRUE(WaitForTraining(process, folder, num_training))
        << process.Output();
    const int64_t target = LastStep(folder) + random() % 60;
    ASSERT_TRUE(process.WaitUntil([&] { return LastStep(folder) >= target; }))
        << process.Output();
    const std::vector<pid_t> workers = process.Find("worker");
    ASSERT_EQ(workers.size(), 4u);
    num_training = CountEvents(folder, "training") + 1;
    const double began_s = MonotonicSeconds();
    ASSERT_EQ(kill(workers[random() % workers.size()], SIGKILL), 0);
    ASSERT_TRUE(WaitForTraining(process, folder, num_training))
        << process.Output();
    seconds.push_back(MonotonicSeconds() - began_s);
  }
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_EQ(ReadResult(folder)["parameter_hash"], expected);
  EXPECT_GE(CountEvents(folder, "worker_died"), kNumKills);
  std::sort(seconds.begin(), seconds.end());
  std::cout << "kill to training again: median " << seconds[seconds.size() / 2]
            << " s, longest " << seconds.back() << " s" << std::endl;
  EXPECT_LE(seconds.back(), 5.0);
}

// Processes of workers, without those that wait to replace one.
std::vector<pid_t> TrainingProcesses(const JobProcess& process) {
  std::vector<pid_t> workers = process.Find("worker");
  std::erase_if(workers, [](pid_t pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
    std::string name;
    return !std::getline(file, name) || name != "millrace-worker";
  });
  return workers;
}

int64_t CountInAgentLogs(const JobFolder& folder, const std::string& text) {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           absl::StrCat(folder.path, "/runs"))) {
    if (!entry.path().filename().string().starts_with("agent-")) continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      count += line.find(text) != std::string::npos ? 1 : 0;
    }
  }
  return count;
}

// Goal: a standby process takes the place of a worker that dies, and another
// one waits then; a standby process that dies harms nothing; the result is that
// of the undisturbed run. Method: kill a worker, then all standby processes,
// then a worker again.
TEST(RecoveryTest, StandbyProcessesTakeOver) {
  const JobFolder folder("standby");
  TinyJob tiny = kJob;
  tiny.extra += "fault: {standby_workers: always}\n";
  const std::string job = WriteTinyJob(folder, tiny);
  const std::string expected = UninterruptedHash(folder, job);
  ASSERT_FALSE(expected.empty());
  constexpr char kGave[] = "gave the standby process worker";
  const int64_t num_before = CountInAgentLogs(folder, kGave);
  EXPECT_EQ(num_before, 0);

  JobProcess process(folder, MpirunCommand(job, 2));
  for (int64_t i = 1; i <= 2; ++i) {
    ASSERT_TRUE(WaitForTraining(process, folder, i)) << process.Output();
    ASSERT_TRUE(process.WaitUntil([&] {
      return process.Find("worker").size() == 8 &&
             TrainingProcesses(process).size() == 4;
    })) << process.Output();
    const std::vector<pid_t> workers = TrainingProcesses(process);
    ASSERT_EQ(kill(workers[static_cast<size_t>(i)], SIGKILL), 0);
    ASSERT_TRUE(process.WaitUntil([&] {
      return CountInAgentLogs(folder, kGave) == i;
    })) << process.Output();
  }
  ASSERT_TRUE(WaitForTraining(process, folder, 3)) << process.Output();
  ASSERT_TRUE(process.WaitUntil([&] {
    return process.Find("worker").size() == 8 &&
           TrainingProcesses(process).size() == 4;
  })) << process.Output();
  const std::vector<pid_t> training = TrainingProcesses(process);
  for (const pid_t pid : process.Find("worker")) {
    if (std::find(training.begin(), training.end(), pid) == training.end()) {
      ASSERT_EQ(kill(pid, SIGKILL), 0);
    }
  }
  const int64_t target = LastStep(folder) + 20;
  ASSERT_TRUE(process.WaitUntil([&] { return LastStep(folder) >= target; }))
      << process.Output();
  EXPECT_EQ(CountEvents(folder, "worker_died"), 2);
  ASSERT_EQ(kill(training.front(), SIGKILL), 0);
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_EQ(ReadResult(folder)["parameter_hash"], expected);
  EXPECT_EQ(CountEvents(folder, "worker_died"), 3);
  EXPECT_EQ(CountInAgentLogs(folder, kGave), 2);
}

// Goal: the coordinator can die and come back while the workers keep stepping:
// no generation is lost, no step is repeated or missing, the result is the
// same. Method: kill it three times in the middle of training.
TEST(RecoveryTest, KilledCoordinatorDoesNotStopTheTraining) {
  const JobFolder folder("coordinator");
  const std::string job = WriteTinyJob(folder, kJob);
  const std::string expected = UninterruptedHash(folder, job);
  JobProcess process(folder, MpirunCommand(job, 2));
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(WaitForTraining(process, folder, i)) << process.Output();
    const int64_t target = LastStep(folder) + 50;
    ASSERT_TRUE(process.WaitUntil([&] { return LastStep(folder) >= target; }))
        << process.Output();
    const std::vector<pid_t> coordinators = process.Find("coordinator");
    ASSERT_EQ(coordinators.size(), 1u);
    ASSERT_EQ(kill(coordinators.front(), SIGKILL), 0);
  }
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_EQ(ReadResult(folder)["parameter_hash"], expected);
  EXPECT_EQ(CountEvents(folder, "started"), 4);
  EXPECT_EQ(CountEvents(folder, "generation_started"), 1);
  const auto metrics = ReadLines(folder, "metrics.jsonl");
  ASSERT_EQ(static_cast<int64_t>(metrics.size()), kJob.num_steps);
  for (size_t i = 0; i < metrics.size(); ++i) {
    EXPECT_EQ(metrics[i]["step"], i + 1);
  }
}

// Goal: a coordinator that dies again and again without a step in between is
// given up: the job ends by itself, with exit code 1, and says where to look.
// Method: kill every coordinator as soon as it shows.
TEST(RecoveryTest, CoordinatorThatKeepsDyingIsGivenUp) {
  const JobFolder folder("hopeless");
  const std::string job = WriteTinyJob(folder, kJob);
  JobProcess process(folder, RunCommand(job));
  std::set<pid_t> killed;
  while (process.WaitUntil([&] {
    const std::vector<pid_t> found = process.Find("coordinator");
    return !found.empty() && !killed.contains(found.front());
  })) {
    const pid_t coordinator = process.Find("coordinator").front();
    ASSERT_EQ(kill(coordinator, SIGKILL), 0);
    killed.insert(coordinator);
  }
  EXPECT_EQ(process.Wait(absl::Seconds(20)), 1) << process.Output();
  EXPECT_EQ(killed.size(), 6u);
  EXPECT_NE(process.Output().find("logs/coordinator.log"), std::string::npos)
      << process.Output();
}

// Writes a job of two ranks, with `extra` added to its YAML, that is long
// enough to be disturbed.
std::string WriteLongJob(const JobFolder& folder, const std::string& extra) {
  TinyJob tiny = kJob;
  tiny.num_steps = 400;
  tiny.extra += extra;
  return WriteTinyJob(folder, tiny);
}

// The workers of a job of two ranks, once they train.
std::vector<pid_t> TrainingWorkers(const JobProcess& process,
                                   const JobFolder& folder) {
  EXPECT_TRUE(WaitForTraining(process, folder, 1)) << process.Output();
  const std::vector<pid_t> workers = process.Find("worker");
  EXPECT_EQ(workers.size(), 2u);
  return workers;
}

// Goal: a worker that lives but says nothing (a stopped process) is replaced.
// Method: SIGSTOP one; only its silence tells.
TEST(RecoveryTest, SilentWorkerIsReplaced) {
  const JobFolder folder("silent");
  const std::string job =
      WriteLongJob(folder, "fault: {heartbeat_timeout_ms: 1000}\n");
  JobProcess process(folder, RunCommand(job));
  const std::vector<pid_t> workers = TrainingWorkers(process, folder);
  ASSERT_EQ(workers.size(), 2u);
  ASSERT_EQ(kill(workers.front(), SIGSTOP), 0);
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_EQ(ReadResult(folder)["status"], "finished");
  EXPECT_EQ(CountEvents(folder, "worker_killed"), 1);
}

// Goal: a worker whose main thread hangs when it should end a generation, while
// another of its threads sends heartbeats, is killed and replaced, with an
// event that names it. Method: hold one's main thread as a debugger does, which
// is where Abort() would hang, and kill the other. The first one's end is
// reported to who holds it before it is to its agent.
TEST(RecoveryTest, WorkerThatHangsInAbortIsReplaced) {
  const JobFolder folder("hangs");
  const std::string job =
      WriteLongJob(folder, "fault: {clear_timeout_ms: 2000}\n");
  JobProcess process(folder, RunCommand(job));
  const std::vector<pid_t> workers = TrainingWorkers(process, folder);
  ASSERT_EQ(workers.size(), 2u);
  if (ptrace(PTRACE_SEIZE, workers[0], nullptr, nullptr) != 0) {
    GTEST_SKIP() << "this system lets no process hold another's threads: "
                 << strerror(errno);
  }
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, workers[0], nullptr, nullptr), 0);
  int status = 0;
  ASSERT_EQ(waitpid(workers[0], &status, __WALL), workers[0]);
  ASSERT_TRUE(WIFSTOPPED(status));
  const double began_s = MonotonicSeconds();
  ASSERT_EQ(kill(workers[1], SIGKILL), 0);
  ASSERT_TRUE(process.WaitUntil(
      [&] { return waitpid(workers[0], &status, __WALL | WNOHANG) != 0; },
      absl::Seconds(30)))
      << process.Output();
  const double killed_s = MonotonicSeconds() - began_s;
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  // Well before its silence could have been noticed, had it been silent.
  EXPECT_GE(killed_s, 2.0);
  EXPECT_LE(killed_s, 8.0);
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_EQ(ReadResult(folder)["status"], "finished");
  std::vector<int64_t> trained;  // Generations.
  std::vector<std::string> reasons;
  for (const nlohmann::json& event : ReadLines(folder, "events.jsonl")) {
    if (event["event"] == "training") trained.push_back(event["generation"]);
    if (event["event"] == "worker_killed") reasons.push_back(event["detail"]);
  }
  ASSERT_EQ(trained.size(), 2u);
  EXPECT_EQ(reasons, std::vector<std::string>{
                         absl::StrCat("hangs in ending generation ", trained[0],
                                      ", which it was told to 2s ago")});
}

// Goal: with checkpoint.policy auto a job chooses how often it saves, by a
// guess and then by what a checkpoint has cost; it says so, all ranks save the
// same steps, and the numbers are those of the job that saves at its end alone.
// Method: devices that are said to fail every few seconds, so that it saves
// often; the same job without checkpoints in between.
TEST(RecoveryTest, ChoosesHowOftenItSaves) {
  const JobFolder folder("policy");
  TinyJob tiny = {.num_steps = 2000,
                  .checkpoint_interval = 0,
                  .extra = "profile_output: none\n"};
  const std::string path = WriteTinyJob(folder, tiny);
  JobProcess plain(folder, RunCommand(path));
  ASSERT_EQ(plain.Wait(), 0) << plain.Output();
  const std::string expected = ReadResult(folder)["parameter_hash"];
  EXPECT_EQ(CountEvents(folder, "checkpoint_interval"), 0);

  tiny.extra +=
      "goodput: {mean_time_between_failures_hours: 2e-3, repair_share: 0, "
      "checkpoint_seconds: 1e-2}\n";
  WriteTinyJob(folder, tiny);
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  in.close();
  const std::string fixed = "  interval_steps: 0\n";
  const size_t at = text.find(fixed);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, fixed.size(), "  policy: auto\n  keep: 3\n");
  std::ofstream(path) << text;
  JobProcess process(folder, RunCommand(path));
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_EQ(ReadResult(folder)["parameter_hash"], expected);
  EXPECT_NE(process.Output().find("checkpoints: every "), std::string::npos)
      << process.Output();
  std::vector<std::string> chosen;
  int64_t num_commits = 0;
  for (const nlohmann::json& event : ReadLines(folder, "events.jsonl")) {
    if (event["event"] == "checkpoint_interval") {
      chosen.push_back(event["detail"]);
    }
    num_commits += event["event"] == "checkpoint_committed";
  }
  ASSERT_GE(chosen.size(), 1u);
  EXPECT_NE(chosen[0].find("(guessed until one is written)"),
            std::string::npos);
  for (size_t i = 1; i < chosen.size(); ++i) {
    EXPECT_NE(chosen[i].find("(measured)"), std::string::npos) << chosen[i];
  }
  EXPECT_GE(num_commits, 3);
  EXPECT_EQ(CountEvents(folder, "generation_started"), 1);
}

}  // namespace
}  // namespace millrace
