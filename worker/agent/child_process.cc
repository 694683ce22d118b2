#include "worker/agent/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"

namespace millrace {
namespace {

constexpr char kSelf[] = "/proc/self/exe";
constexpr absl::Duration kEndPoll = absl::Milliseconds(2);

std::vector<std::string> ChildEnvironment(const ChildOptions& options) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const auto& [name, value] : options.environment) {
      replaced = replaced || absl::StartsWith(*entry, absl::StrCat(name, "="));
    }
    if (!replaced) result.emplace_back(*entry);
  }
  for (const auto& [name, value] : options.environment) {
    result.push_back(absl::StrCat(name, "=", value));
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Prepared {
  char** arguments;
  char** environment;
  int log_fd;
  bool keep_stdout;
  const int* keep_fds;
  size_t num_keep_fds;
  pid_t parent;
};

// Between fork and exec in a process with threads: async-signal-safe calls
// only, so everything was prepared before.
[[noreturn]] void BecomeChild(const Prepared& prepared) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != prepared.parent) _exit(1);  // It died before the prctl.
  // Slurm sends signals to all processes of a step, and a terminal to all of a
  // job. The agent alone obeys them; it ends its children itself. One that has
  // come already, and was blocked, is dropped by being ignored.
  for (int number : {SIGINT, SIGTERM, SIGUSR1}) signal(number, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  if (!prepared.keep_stdout) dup2(prepared.log_fd, STDOUT_FILENO);
  dup2(prepared.log_fd, STDERR_FILENO);
  for (size_t i = 0; i < prepared.num_keep_fds; ++i) {
    fcntl(prepared.keep_fds[i], F_SETFD, 0);
  }
  execve(kSelf, prepared.arguments, prepared.environment);
  _exit(127);
}

}  // namespace

absl::StatusOr<pid_t> StartChild(const ChildOptions& options) {
  std::vector<std::string> arguments = {"millrace"};
  arguments.insert(arguments.end(), options.arguments.begin(),
                   options.arguments.end());
  std::vector<std::string> environment = ChildEnvironment(options);
  std::vector<char*> argument_pointers = Pointers(arguments);
  std::vector<char*> environment_pointers = Pointers(environment);
  const int log_fd = open(options.log_path.c_str(),
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log_fd < 0) {
    return absl::InternalError(absl::StrCat(
        "cannot write the log ", options.log_path, ": ", strerror(errno)));
  }
  const Prepared prepared = {.arguments = argument_pointers.data(),
                             .environment = environment_pointers.data(),
                             .log_fd = log_fd,
                             .keep_stdout = options.keep_stdout,
                             .keep_fds = options.keep_fds.data(),
                             .num_keep_fds = options.keep_fds.size(),
                             .parent = getpid()};
  const pid_t pid = fork();
  if (pid == 0) BecomeChild(prepared);
  const int fork_error = errno;
  close(log_fd);
  if (pid < 0) {
    return absl::InternalError(
        absl::StrCat("cannot start a process: ", strerror(fork_error)));
  }
  return pid;
}

void WaitOrKill(pid_t pid, absl::Time deadline) {
  while (waitpid(pid, nullptr, WNOHANG) == 0) {
    if (MonotonicNow() >= deadline) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
      return;
    }
    absl::SleepFor(kEndPoll);
  }
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    return absl::StrCat("killed by signal ", number, " (", strsignal(number),
                        ")");
  }
  return absl::StrCat("exited with code ", WEXITSTATUS(wait_status));
}

}  // namespace millrace
