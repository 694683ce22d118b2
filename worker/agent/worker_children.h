// The processes of an agent's workers: starts them, kills them, and sees them
// die.
//
// A worker counts as dead as soon as its process begins to exit. The driver of
// a GPU then takes up to a second to free what the process held, and the
// recovery need not wait for that: other ranks end their generation meanwhile,
// and the worker's next process starts and prepares its GPU. That process joins
// the job once those before it have ended (WorkerOptions::predecessor_fds), so
// two processes of a worker never write to the same memory.

#ifndef MILLRACE_WORKER_AGENT_WORKER_CHILDREN_H_
#define MILLRACE_WORKER_AGENT_WORKER_CHILDREN_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/agent/child_process.h"

namespace millrace {

// The wait status of a child that has begun to exit, as waitpid() will give it.
// Nothing while it runs, where /proc does not tell, and for the exit code 0:
// the kernel says that an exit begins a moment before it says how.
std::optional<int> ExitBegun(pid_t pid);

class WorkerChildren {
 public:
  struct Death {
    int32_t worker_idx = 0;
    int32_t incarnation = 0;
    int wait_status = 0;  // As waitpid() gives it.
  };

  WorkerChildren() = default;
  ~WorkerChildren();

  // Starts the process of an incarnation, which must be newer than those
  // before. One that still lives is killed, and its death is not told.
  absl::StatusOr<pid_t> Start(int32_t worker_idx, int32_t incarnation,
                              ChildOptions options);
  // Kills that incarnation if it lives. TakeDeaths() tells of it.
  void Kill(int32_t worker_idx, int32_t incarnation);
  // Who has died since the last call. Nothing wakes the caller when an exit
  // begins, so deaths are seen as late as this is called.
  std::vector<Death> TakeDeaths();
  // The living: worker and incarnation. Any thread may ask.
  std::vector<std::pair<int32_t, int32_t>> Living() const;
  // Waits until all have ended. Kills those that live at the deadline.
  void End(absl::Time deadline);

 private:
  struct Child {
    int32_t incarnation = 0;
    pid_t pid = 0;
    int pidfd = -1;  // -1: this kernel has none.
  };

  void Reap(std::vector<Child>* leaving);

  mutable std::mutex mutex_;  // Of living_, which this thread alone changes.
  std::map<int32_t, Child> living_;                // By worker.
  std::map<int32_t, std::vector<Child>> leaving_;  // Dead, and not ended yet.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_WORKER_CHILDREN_H_
