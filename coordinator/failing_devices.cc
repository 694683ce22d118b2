#include "coordinator/failing_devices.h"

#include <algorithm>
#include <utility>

namespace millrace {

std::optional<absl::Duration> FailingDevices::NoteFailure(WorkerIdx device,
                                                          absl::Time now) {
  if (base_time_ <= absl::ZeroDuration()) return std::nullopt;
  History& history = histories_[device];
  const absl::Time before = std::exchange(history.last_failure, now);
  if (now - before > kWindow) return std::nullopt;
  const int32_t num_doublings = std::min(history.num_times++, kMostDoublings);
  return base_time_ * (1 << num_doublings);
}

void FailingDevices::LeaveOut(const std::vector<WorkerIdx>& devices,
                              absl::Time until) {
  for (const WorkerIdx device : devices) left_out_[device] = until;
}

bool FailingDevices::MayComeBack(WorkerIdx device, absl::Time now) const {
  const auto found = left_out_.find(device);
  return found != left_out_.end() && found->second <= now;
}

int32_t FailingDevices::NumOver(absl::Time now) const {
  return static_cast<int32_t>(
      std::count_if(left_out_.begin(), left_out_.end(),
                    [now](const auto& entry) { return entry.second <= now; }));
}

std::vector<WorkerIdx> FailingDevices::left_out() const {
  std::vector<WorkerIdx> devices;
  for (const auto& [device, until] : left_out_) devices.push_back(device);
  return devices;
}

void FailingDevices::TakeBackThoseOver(absl::Time now) {
  std::erase_if(left_out_,
                [now](const auto& entry) { return entry.second <= now; });
}

}  // namespace millrace
