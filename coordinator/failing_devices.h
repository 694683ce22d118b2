// Decides which devices are left out of a job's plans for a while, since they
// fail again and again. A fault of hardware that comes and goes would otherwise
// cost a recovery each time.

#ifndef MILLRACE_COORDINATOR_FAILING_DEVICES_H_
#define MILLRACE_COORDINATOR_FAILING_DEVICES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/ids.h"

namespace millrace {

// Devices are known by their workers. Times never go back.
class FailingDevices {
 public:
  // A device is left out when it fails for the second time within this window.
  static constexpr absl::Duration kWindow = absl::Hours(1);
  // `base_time`: how long it is left out the first time. Each time doubles it,
  // up to kMostDoublings. Zero: no device is ever left out.
  explicit FailingDevices(absl::Duration base_time) : base_time_(base_time) {}
  static constexpr int32_t kMostDoublings = 6;

  // Notes that the device failed by itself. Returns for how long it is to be
  // left out, if it is.
  std::optional<absl::Duration> NoteFailure(WorkerIdx device, absl::Time now);
  void LeaveOut(const std::vector<WorkerIdx>& devices, absl::Time until);

  bool IsLeftOut(WorkerIdx device) const { return left_out_.contains(device); }
  // Left out, and its time is over.
  bool MayComeBack(WorkerIdx device, absl::Time now) const;
  int32_t NumOver(absl::Time now) const;  // How many may come back.
  std::vector<WorkerIdx> left_out() const;

  // Plans count these again: those whose time is over, or all.
  void TakeBackThoseOver(absl::Time now);
  void TakeBackAll() { left_out_.clear(); }

 private:
  struct History {
    absl::Time last_failure = absl::InfinitePast();
    int32_t num_times = 0;  // It was left out.
  };

  const absl::Duration base_time_;
  std::map<WorkerIdx, History> histories_;
  std::map<WorkerIdx, absl::Time> left_out_;  // Until when.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_FAILING_DEVICES_H_
