#include "worker/agent/restart_budget.h"

namespace millrace {
namespace {

constexpr absl::Duration kFirstWait = absl::Milliseconds(200);

}  // namespace

std::optional<absl::Duration> RestartBudget::OnDeath(int64_t progress) {
  if (progress > progress_) num_restarts_ = 0;
  progress_ = progress;
  if (num_restarts_ == kMaxRestartsWithoutProgress) return std::nullopt;
  const int restart_idx = num_restarts_++;
  if (restart_idx == 0) return absl::ZeroDuration();
  return kFirstWait * (1 << (restart_idx - 1));
}

}  // namespace millrace
