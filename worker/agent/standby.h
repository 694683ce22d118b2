// How an agent hands the next incarnation of a worker to a standby process.
//
// A standby process is started like a process of the worker, prepares the
// worker's GPU, and waits. When the worker's process dies, the standby process
// becomes the next one, so a recovery need not wait seconds for the context of
// a GPU and for NCCL. It holds memory of the GPU while it waits
// (planner/search/standby_plan.h).

#ifndef MILLRACE_WORKER_AGENT_STANDBY_H_
#define MILLRACE_WORKER_AGENT_STANDBY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

// The facts that a worker's next process needs and that are not known until the
// process before it has died. All others are in its arguments.
struct StandbyOrder {
  std::string coordinator_address;
  int32_t incarnation = 0;
  // As WorkerOptions::predecessor_fds. The receiver of an order owns copies of
  // these descriptors.
  std::vector<int> predecessor_fds;
};

constexpr size_t kMostPredecessors = 32;

// The two ends of a connection. Both are closed when a process is replaced by
// another program (ChildOptions::keep_fds).
struct StandbySocket {
  int agent_fd = -1;
  int standby_fd = -1;
};
absl::StatusOr<StandbySocket> MakeStandbySocket();

// Unavailable if the standby process has ended. At most kMostPredecessors.
absl::Status SendOrder(int agent_fd, const StandbyOrder& order);
// Waits for an order. Nothing if the agent has ended, or wants none any more.
absl::StatusOr<std::optional<StandbyOrder>> ReceiveOrder(int standby_fd);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_STANDBY_H_
