#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
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

// A real S3-compatible server (tests/tools/object_server.py) in a process of
// its own, which ends once its standard input does.
class ObjectServer {
 public:
  explicit ObjectServer(std::string folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    std::array<int, 2> input{}, output{};
    // Processes of the job must not hold the pipes open.
    EXPECT_EQ(pipe2(input.data(), O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(output.data(), O_CLOEXEC), 0);
    const std::string errors = folder_ + "/errors.txt";
    pid_ = fork();
    if (pid_ == 0) {
      dup2(input[0], STDIN_FILENO);
      dup2(output[1], STDOUT_FILENO);
      const int fd = open(errors.c_str(), O_WRONLY | O_CREAT, 0666);
      dup2(fd, STDERR_FILENO);
      execl("/usr/bin/python3", "python3", MILLRACE_OBJECT_SERVER,
            folder_.c_str(), nullptr);
      _exit(127);
    }
    close(input[0]);
    close(output[1]);
    input_ = input[1];
    char next = 0;
    while (read(output[0], &next, 1) == 1 && next != '\n') line_ += next;
    close(output[0]);
  }
  ~ObjectServer() {
    close(input_);
    waitpid(pid_, nullptr, 0);
  }
  ObjectServer(const ObjectServer&) = delete;

  // "ready ADDRESS ADDRESS", or why there is no server.
  const std::string& line() const { return line_; }
  std::string address() const {
    const size_t begin = line_.find(' ') + 1;
    return line_.substr(begin, line_.find(' ', begin) - begin);
  }
  // Whether an object holds the text.
  bool Holds(const std::string& text) const {
    std::error_code gone;  // Objects come and go meanwhile.
    for (std::filesystem::recursive_directory_iterator file(folder_, gone), end;
         !gone && file != end; file.increment(gone)) {
      if (file->path().extension() != ".data") continue;
      std::ifstream in(file->path());
      const std::string content((std::istreambuf_iterator<char>(in)), {});
      if (content.find(text) != std::string::npos) return true;
    }
    return false;
  }

 private:
  const std::string folder_;
  pid_t pid_ = -1;
  int input_ = -1;
  std::string line_;
};

// Goal: after a Ctrl-C under mpirun, which kills the agents a second later, the
// prefix of a bucket is given back, so that the next start of the job does not
// wait for a lease to run out. Method: a real server. A worker that is stopped
// (SIGSTOP) keeps the second job from ending before its agents are killed.
TEST(SignalTest, InterruptOfMpirunGivesTheBucketBack) {
  const JobFolder folder("mpirun-lease");
  const ObjectServer server(folder.path + "/objects");
  if (!server.line().starts_with("ready ")) {
    ASSERT_TRUE(server.line().starts_with("skipped")) << server.line();
    GTEST_SKIP() << server.line();
  }
  const std::vector<std::pair<const char*, std::string>> variables = {
      {"AWS_ACCESS_KEY_ID", "test:tester"},
      {"AWS_SECRET_ACCESS_KEY", "secret-of-the-test"},
      {"AWS_ENDPOINT_URL", server.address()}};
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  const std::string job = WriteTinyJob(
      folder, {.num_steps = kEndless,
               .checkpoint_interval = 0,
               .checkpoint_directory = "s3://millrace-test/interrupted"});
  // mpirun sends SIGKILL a second after SIGTERM unless it is told otherwise.
  std::vector<std::string> command = MpirunCommand(job, 2);
  const auto option = std::ranges::find(command, "odls_base_sigkill_timeout");
  ASSERT_LT(option + 1, command.end());
  *(option + 1) = "1";
  for (const bool is_stuck : {false, true}) {
    JobProcess process(folder, command);
    ASSERT_TRUE(WaitForSteps(process, folder, 20)) << process.Output();
    EXPECT_TRUE(server.Holds("the job of "));
    if (is_stuck) {
      const std::vector<pid_t> workers = process.Find("worker");
      ASSERT_FALSE(workers.empty());
      ASSERT_EQ(kill(workers.front(), SIGSTOP), 0);
    }
    process.Signal(SIGINT);
    EXPECT_NE(process.Wait(), -1) << process.Output();
    const absl::Time ended = MonotonicNow();
    while (server.Holds("the job of ") &&
           MonotonicNow() - ended < absl::Seconds(20)) {
      absl::SleepFor(absl::Milliseconds(50));
    }
    EXPECT_FALSE(server.Holds("the job of ")) << process.Output();
    std::cout << "given back " << MonotonicNow() - ended
              << " after the end of mpirun\n";
  }
  for (const auto& [name, value] : variables) unsetenv(name);
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
