// Processes that an agent starts: the coordinator and the workers.

#ifndef MILLRACE_WORKER_AGENT_CHILD_PROCESS_H_
#define MILLRACE_WORKER_AGENT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace millrace {

struct ChildOptions {
  // Arguments of this same program after its name: {"worker", "--worker", "3"}.
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment;  // Added.
  std::string log_path;       // Appended to by standard error and output.
  bool keep_stdout = false;   // Standard output stays this process's.
  std::vector<int> keep_fds;  // Stay open in the child.
  friend bool operator==(const ChildOptions&, const ChildOptions&) = default;
};

// The child leads a process group of its own, so that a terminal's Ctrl-C
// reaches the agent alone; it ignores SIGINT, and the kernel kills it when the
// calling *thread* ends, so that no orphan trains on.
absl::StatusOr<pid_t> StartChild(const ChildOptions& options);

// Waits until a child has ended; kills it if it lives at the deadline.
void WaitOrKill(pid_t pid, absl::Time deadline);

// "killed by signal 9 (Killed)", "exited with code 3".
std::string DescribeExit(int wait_status);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_CHILD_PROCESS_H_
