// The coordinator's process on this host: started and, within restart_budget.h,
// started again by the agent that has it. Agent 0 has the run's first one;
// where agents keep its log, another one gets it when that host is lost
// (succession.h).

#ifndef MILLRACE_WORKER_AGENT_COORDINATOR_PROCESS_H_
#define MILLRACE_WORKER_AGENT_COORDINATOR_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/files/file_server.h"
#include "worker/agent/agent.h"
#include "worker/agent/host_job.h"
#include "worker/agent/restart_budget.h"
#include "worker/agent/succession.h"

namespace millrace {

class CoordinatorProcess {
 public:
  // `log` takes lines for the agent's log.
  CoordinatorProcess(const AgentOptions& options,
                     std::function<void(const std::string&)> log)
      : options_(options), log_(std::move(log)) {}

  // The run's first one, by options.coordinator.
  absl::Status StartFirst();
  // From now on this host may have the coordinator later. Listens for its
  // peers; errors are those of Listener::Create(). `files` as in Succession.
  absl::Status BeKeeper(const HostJob& job, int32_t agent_idx, uint64_t id,
                        FileServer* files);
  // Where a coordinator of this host is reached. Empty: this host has none.
  const std::string& address() const;

  // Does what is due: starts it, starts it again, ends one whose place another
  // agent has. To be called a few times a second, and when event_fd() is
  // readable. An error means that the job cannot go on.
  absl::Status Update();
  int event_fd() const;  // Below zero: none.

  // It has ended for good, by its own will, and said this.
  const std::optional<std::string>& last_exit() const { return last_exit_; }
  pid_t pid() const { return pid_; }  // 0: none runs here.

 private:
  absl::Status Start(const std::vector<std::string>& more);
  absl::Status OnWon(const Succession::Won& won);
  absl::Status OnEnd(int wait_status);
  absl::Status Restart();
  bool HasCopies() const;
  // Grows by a line with every step that the coordinator hears of.
  int64_t RecordedProgress() const;

  const AgentOptions& options_;
  const std::function<void(const std::string&)> log_;
  const CoordinatorStart* start_ = nullptr;
  std::optional<CoordinatorStart> later_;  // Of an agent other than the first.
  std::string run_;                        // As in HostJob.
  int32_t agent_idx_ = 0;
  int32_t num_agents_ = 1;
  std::optional<Succession> succession_;
  pid_t pid_ = 0;
  int64_t term_ = 0;  // Of the process that runs, or ran last.
  std::optional<std::string> last_exit_;
  RestartBudget budget_;
  absl::Time restart_at_ = absl::InfiniteFuture();
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_COORDINATOR_PROCESS_H_
