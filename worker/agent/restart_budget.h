// How often agent 0 starts a coordinator that dies. A machine's bad day is over
// after one restart; a coordinator that dies of what it is told again after
// each restart would go on for ever. What tells them apart is whether the
// training got on in between.

#ifndef MILLRACE_WORKER_AGENT_RESTART_BUDGET_H_
#define MILLRACE_WORKER_AGENT_RESTART_BUDGET_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace millrace {

class RestartBudget {
 public:
  static constexpr int kMaxRestartsWithoutProgress = 5;

  // A death. `progress` is any number that grows with every training step.
  // Returns how long to wait before the restart, none at first and longer each
  // time, or nothing if the budget is spent.
  std::optional<absl::Duration> OnDeath(int64_t progress);

 private:
  int64_t progress_ = 0;
  int num_restarts_ = 0;  // Since the last progress.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_RESTART_BUDGET_H_
