#include "tests/e2e/job_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr useconds_t kPollMicroseconds = 5000;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& task :
       fs::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    std::istringstream ids(ReadAll(task.path().string() + "/children"));
    for (pid_t child; ids >> child;) children.push_back(child);
  }
  return children;
}

std::string RunsLatest(const JobFolder& folder) {
  return folder.path + "/runs/tiny-latest";
}

}  // namespace

JobFolder::JobFolder(const std::string& name) {
  std::string pattern =
      (fs::temp_directory_path() / absl::StrCat("millrace-", name, "-XXXXXX"))
          .string();
  CHECK(mkdtemp(pattern.data()) != nullptr);
  path = pattern;
}

JobFolder::~JobFolder() {
  std::error_code error;
  if (!testing::Test::HasFailure()) fs::remove_all(path, error);
}

std::string WriteTinyJob(const JobFolder& folder, const TinyJob& job) {
  const std::string path = folder.path + "/job.yaml";
  std::ofstream(path) << "name: tiny\n"
                         "model:\n"
                         "  family: llama\n"
                         "  vocab_size: 288\n"
                         "  hidden: 32\n"
                         "  layers: 2\n"
                         "  heads: 4\n"
                         "  kv_heads: 2\n"
                         "  ffn_hidden: 64\n"
                         "  sequence_length: 32\n"
                         "data:\n"
                         "  text: [tests/data/text/*.txt]\n"
                      << "  cache_directory: " << folder.path << "/cache\n"
                      << "training:\n"
                      << "  steps: " << job.num_steps << "\n"
                      << "  global_batch: 8\n"
                         "  seed: 3\n"
                         "  optimizer: {learning_rate: 3e-3, warmup_steps: 5}\n"
                         "resources:\n"
                      << "  devices_per_agent: " << job.devices_per_agent
                      << "\n  threads_per_device: 1\n"
                      << "layout: " << job.layout << "\n"
                      << "checkpoint:\n"
                      << "  interval_steps: " << job.checkpoint_interval
                      << (job.checkpoint_directory.empty() ? ""
                                                           : "\n  directory: ")
                      << job.checkpoint_directory
                      << "\noutput: {directory: " << folder.path << "/runs}\n"
                      << job.extra;
  return path;
}

JobProcess::JobProcess(const JobFolder& folder,
                       const std::vector<std::string>& command)
    : output_path_(folder.path + "/output.txt") {
  const std::string cache = folder.path + "/xdg";
  // Everything read from now on is this run's, not an earlier one's.
  std::error_code error;
  fs::remove(RunsLatest(folder), error);
  pid_ = fork();
  CHECK(pid_ >= 0);
  if (pid_ > 0) return;
  const int fd = open(output_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  setpgid(0, 0);
  setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  setenv("MILLRACE_PROGRESS", "0", 1);
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

JobProcess::~JobProcess() {
  if (ended_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void JobProcess::Signal(int number) const { kill(pid_, number); }

std::vector<pid_t> JobProcess::Find(const std::string& word) const {
  std::vector<pid_t> found;
  std::vector<pid_t> open = ChildrenOf(pid_);
  while (!open.empty()) {
    const pid_t pid = open.back();
    open.pop_back();
    const std::string line = ReadAll(absl::StrCat("/proc/", pid, "/cmdline"));
    const size_t first_end = line.find('\0');
    if (first_end != std::string::npos &&
        line.compare(first_end + 1, word.size() + 1,
                     std::string(word.c_str(), word.size() + 1)) == 0) {
      found.push_back(pid);
    }
    for (pid_t child : ChildrenOf(pid)) open.push_back(child);
  }
  return found;
}

bool JobProcess::WaitUntil(const std::function<bool()>& condition,
                           absl::Duration timeout) const {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (!condition()) {
    siginfo_t info = {};
    if (MonotonicNow() > deadline ||
        (waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_)) {
      return condition();
    }
    usleep(kPollMicroseconds);  // The file system has nothing to wait on.
  }
  return true;
}

int JobProcess::Wait(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (MonotonicNow() > deadline) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      ended_ = true;
      return -1;
    }
    usleep(kPollMicroseconds);
  }
  ended_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string JobProcess::Output() const { return ReadAll(output_path_); }

std::vector<std::string> RunCommand(const std::string& job) {
  return {MILLRACE_BINARY, "run", job};
}

std::vector<std::string> MpirunCommand(const std::string& job,
                                       int32_t num_agents) {
  return {"mpirun",
          "-n",
          absl::StrCat(num_agents),
          "--oversubscribe",
          "--allow-run-as-root",
          "--bind-to",
          "none",
          "--mca",
          "mpi_yield_when_idle",
          "1",
          "--mca",
          "odls_base_sigkill_timeout",
          "4",
          MILLRACE_BINARY,
          "agent",
          job};
}

nlohmann::json ReadResult(const JobFolder& folder) {
  return nlohmann::json::parse(ReadAll(RunsLatest(folder) + "/result.json"),
                               nullptr, /*allow_exceptions=*/false);
}

std::vector<nlohmann::json> ReadLines(const JobFolder& folder,
                                      const std::string& file) {
  std::vector<nlohmann::json> lines;
  std::istringstream content(ReadAll(RunsLatest(folder) + "/" + file));
  for (std::string line; std::getline(content, line);) {
    nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
    if (!parsed.is_discarded()) lines.push_back(std::move(parsed));
  }
  return lines;
}

int64_t CountEvents(const JobFolder& folder, const std::string& event) {
  int64_t count = 0;
  for (const nlohmann::json& line : ReadLines(folder, "events.jsonl")) {
    count += line.value("event", "") == event;
  }
  return count;
}

}  // namespace millrace
