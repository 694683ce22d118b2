// Limits how often agent 0 restarts a coordinator that dies. Deaths count only
// while training makes no progress in between: a coordinator that dies of a
// message it receives again would otherwise restart for ever.

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
