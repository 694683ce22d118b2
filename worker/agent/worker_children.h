// The processes of an agent's workers: starts them, kills them, and sees them
// die.
//
// A worker counts as dead as soon as its process begins to exit. The driver of
// a GPU then takes up to a second to free what the process held, and the
// recovery need not wait for that: other ranks end their generation meanwhile,
// and the worker's next process starts and prepares its GPU. That process joins
// the job once those before it have ended (WorkerOptions::predecessor_fds), so
// two processes of a worker never write to the same memory. Where it was a
// standby process, its GPU is prepared.

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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/agent/child_process.h"
#include "worker/agent/standby.h"

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

  struct Started {
    pid_t pid = 0;
    bool was_standby = false;
  };

  // Starts the process of an incarnation, which must be newer than those
  // before. One that still lives is killed, and its death is not told. The
  // worker's standby process takes over if it was started with the same
  // options.
  absl::StatusOr<Started> Start(int32_t worker_idx, int32_t incarnation,
                                const std::string& coordinator_address,
                                ChildOptions options);
  // Starts a standby process of the worker (standby.h), unless it has one.
  absl::Status StartStandby(int32_t worker_idx, ChildOptions options);
  void EndStandbys();
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

  struct Standby {
    pid_t pid = 0;
    int agent_fd = -1;  // Of its StandbySocket.
    ChildOptions options;
  };

  void Reap(std::vector<Child>* leaving);
  // Gives the order to the worker's standby process if it can be used for these
  // options. Returns the process; nothing if there is none any more.
  std::optional<pid_t> UseStandby(int32_t worker_idx, const StandbyOrder& order,
                                  const ChildOptions& options);
  bool HasStandby(int32_t worker_idx);

  mutable std::mutex mutex_;  // Of living_, which this thread alone changes.
  std::map<int32_t, Child> living_;                // By worker.
  std::map<int32_t, std::vector<Child>> leaving_;  // Dead, and not ended yet.
  std::map<int32_t, Standby> standbys_;            // By worker; may have ended.
  std::vector<pid_t> ended_standbys_;              // Killed, to be waited for.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_WORKER_CHILDREN_H_
