#include "worker/agent/worker_children.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// /proc/PID/stat, counted from the field behind the name (proc(5)): the state
// is the first of these and the third of all.
constexpr size_t kFlagsField = 9 - 3;
constexpr size_t kExitCodeField = 52 - 3;
constexpr uint64_t kExiting = 0x4;  // The kernel's PF_EXITING.

// Not every C library declares pidfd_open() for C++.
int OpenPidfd(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

}  // namespace

std::optional<int> ExitBegun(pid_t pid) {
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!text.ok()) return std::nullopt;
  // The name stands in parentheses and may hold anything.
  const size_t name_end = text->rfind(") ");
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields =
      absl::StrSplit(text->substr(name_end + 2), ' ');
  uint64_t flags = 0;
  int exit_code = 0;
  if (fields.size() <= kExitCodeField ||
      !absl::SimpleAtoi(fields[kFlagsField], &flags) ||
      !absl::SimpleAtoi(fields[kExitCodeField], &exit_code) ||
      (flags & kExiting) == 0 || exit_code == 0) {
    return std::nullopt;
  }
  return exit_code;
}

WorkerChildren::~WorkerChildren() {
  EndStandbys();
  for (auto& [worker_idx, children] : leaving_) {
    for (const Child& child : children) close(child.pidfd);
  }
  for (auto& [worker_idx, child] : living_) {
    if (child.pidfd >= 0) close(child.pidfd);
  }
}

absl::StatusOr<WorkerChildren::Started> WorkerChildren::Start(
    int32_t worker_idx, int32_t incarnation,
    const std::string& coordinator_address, ChildOptions options) {
  if (const auto found = living_.find(worker_idx); found != living_.end()) {
    const Child before = found->second;
    CHECK(before.incarnation < incarnation);
    kill(before.pid, SIGKILL);
    if (before.pidfd >= 0) {
      leaving_[worker_idx].push_back(before);
    } else {
      waitpid(before.pid, nullptr, 0);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    living_.erase(found);
  }
  std::vector<Child>& leaving = leaving_[worker_idx];
  Reap(&leaving);
  StandbyOrder order = {.coordinator_address = coordinator_address,
                        .incarnation = incarnation};
  for (const Child& before : leaving) {
    order.predecessor_fds.push_back(before.pidfd);
  }
  Child child = {.incarnation = incarnation};
  const std::optional<pid_t> standby = UseStandby(worker_idx, order, options);
  if (standby.has_value()) {
    child.pid = *standby;
  } else {
    options.arguments.insert(options.arguments.end(),
                             {"--coordinator", coordinator_address,
                              "--incarnation", absl::StrCat(incarnation)});
    for (const int fd : order.predecessor_fds) {
      options.keep_fds.push_back(fd);
      options.arguments.insert(options.arguments.end(),
                               {"--predecessor-fd", absl::StrCat(fd)});
    }
    ASSIGN_OR_RETURN(child.pid, StartChild(options));
  }
  child.pidfd = OpenPidfd(child.pid);
  std::lock_guard<std::mutex> lock(mutex_);
  living_[worker_idx] = child;
  return Started{.pid = child.pid, .was_standby = standby.has_value()};
}

absl::Status WorkerChildren::StartStandby(int32_t worker_idx,
                                          ChildOptions options) {
  if (HasStandby(worker_idx)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const StandbySocket socket, MakeStandbySocket());
  Standby standby = {.agent_fd = socket.agent_fd, .options = options};
  options.keep_fds.push_back(socket.standby_fd);
  options.arguments.insert(options.arguments.end(),
                           {"--standby-fd", absl::StrCat(socket.standby_fd)});
  const absl::StatusOr<pid_t> pid = StartChild(options);
  close(socket.standby_fd);
  if (!pid.ok()) {
    close(socket.agent_fd);
    return pid.status();
  }
  standby.pid = *pid;
  standbys_[worker_idx] = std::move(standby);
  return absl::OkStatus();
}

std::optional<pid_t> WorkerChildren::UseStandby(int32_t worker_idx,
                                                const StandbyOrder& order,
                                                const ChildOptions& options) {
  if (!HasStandby(worker_idx)) return std::nullopt;
  const auto found = standbys_.find(worker_idx);
  const Standby standby = found->second;
  standbys_.erase(found);
  const bool is_used = standby.options == options &&
                       order.predecessor_fds.size() <= kMostPredecessors &&
                       SendOrder(standby.agent_fd, order).ok();
  close(standby.agent_fd);
  if (is_used) return standby.pid;
  kill(standby.pid, SIGKILL);
  ended_standbys_.push_back(standby.pid);
  return std::nullopt;
}

bool WorkerChildren::HasStandby(int32_t worker_idx) {
  const auto found = standbys_.find(worker_idx);
  if (found == standbys_.end()) return false;
  if (waitpid(found->second.pid, nullptr, WNOHANG) == 0) return true;
  close(found->second.agent_fd);
  standbys_.erase(found);
  return false;
}

void WorkerChildren::EndStandbys() {
  for (auto& [worker_idx, standby] : standbys_) {
    kill(standby.pid, SIGKILL);
    close(standby.agent_fd);
    ended_standbys_.push_back(standby.pid);
  }
  standbys_.clear();
}

void WorkerChildren::Kill(int32_t worker_idx, int32_t incarnation) {
  const auto found = living_.find(worker_idx);
  if (found == living_.end() || found->second.incarnation != incarnation) {
    return;
  }
  kill(found->second.pid, SIGKILL);
}

std::vector<WorkerChildren::Death> WorkerChildren::TakeDeaths() {
  for (auto& [worker_idx, children] : leaving_) Reap(&children);
  std::erase_if(ended_standbys_,
                [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
  std::vector<Death> deaths;
  for (auto it = living_.begin(); it != living_.end();) {
    const Child& child = it->second;
    int wait_status = 0;
    if (waitpid(child.pid, &wait_status, WNOHANG) == child.pid) {
      if (child.pidfd >= 0) close(child.pidfd);
    } else {
      // Without a descriptor the next process could not wait for its end.
      const std::optional<int> begun =
          child.pidfd >= 0 ? ExitBegun(child.pid) : std::nullopt;
      if (!begun.has_value()) {
        ++it;
        continue;
      }
      wait_status = *begun;
      leaving_[it->first].push_back(child);
    }
    deaths.push_back({it->first, child.incarnation, wait_status});
    std::lock_guard<std::mutex> lock(mutex_);
    it = living_.erase(it);
  }
  return deaths;
}

std::vector<std::pair<int32_t, int32_t>> WorkerChildren::Living() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::pair<int32_t, int32_t>> result;
  for (const auto& [worker_idx, child] : living_) {
    result.emplace_back(worker_idx, child.incarnation);
  }
  return result;
}

void WorkerChildren::End(absl::Time deadline) {
  EndStandbys();
  for (auto& [worker_idx, child] : living_) WaitOrKill(child.pid, deadline);
  for (auto& [worker_idx, children] : leaving_) {
    for (const Child& child : children) WaitOrKill(child.pid, deadline);
  }
  for (const pid_t pid : ended_standbys_) WaitOrKill(pid, deadline);
  ended_standbys_.clear();
}

void WorkerChildren::Reap(std::vector<Child>* leaving) {
  std::erase_if(*leaving, [](const Child& child) {
    if (waitpid(child.pid, nullptr, WNOHANG) == 0) return false;
    close(child.pidfd);
    return true;
  });
}

}  // namespace millrace
