// Counts devices, and leaves out those that fail too often. See job_state.h.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/job_state.h"

namespace millrace {

std::vector<WorkerIdx> JobState::WorkersOf(int32_t agent_idx) const {
  int32_t first_worker = 0;
  for (int32_t i = 0; i < agent_idx; ++i) {
    first_worker += agents_[i].num_devices;
  }
  std::vector<WorkerIdx> workers;
  for (int32_t i = 0; i < agents_[agent_idx].num_devices; ++i) {
    workers.push_back(WorkerIdx{first_worker + i});
  }
  return workers;
}

int32_t JobState::AgentOf(WorkerIdx worker) const {
  if (ToInt(worker) < 0) return -1;
  int32_t first_worker = 0;
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    first_worker += agents_[i].num_devices;
    if (ToInt(worker) < first_worker) return i;
  }
  return -1;
}

std::vector<WorkerIdx> JobState::Workers() const {
  std::vector<WorkerIdx> workers;
  for (int32_t i = 0; i < options_.num_agents; ++i) {
    if (!agents_[i].takes_part) continue;
    for (const WorkerIdx worker : WorkersOf(i)) {
      if (IsUsable(worker, /*for_growth=*/false)) workers.push_back(worker);
    }
  }
  return workers;
}

std::vector<int32_t> JobState::DevicesByAgent() const {
  std::vector<int32_t> devices;
  for (const Agent& agent : agents_) devices.push_back(agent.num_devices);
  return devices;
}

bool JobState::IsUsable(WorkerIdx worker, bool for_growth) const {
  return !failing_.IsLeftOut(worker) ||
         (for_growth && failing_.MayComeBack(worker, now_));
}

int32_t JobState::NumUsableDevices(int32_t agent_idx, bool for_growth) const {
  const std::vector<WorkerIdx> workers = WorkersOf(agent_idx);
  return static_cast<int32_t>(std::count_if(
      workers.begin(), workers.end(),
      [&](WorkerIdx worker) { return IsUsable(worker, for_growth); }));
}

bool JobState::LeavesOutDeviceOf(WorkerIdx worker) {
  is_device_known_ = true;
  const int32_t agent_idx = AgentOf(worker);
  if (purpose_ != Purpose::kTrain || members_.empty() || agent_idx < 0) {
    return false;
  }
  // Ranks keep their places on hosts, so of several hosts one is left out
  // whole.
  const bool whole_host = options_.num_agents > 1;
  const std::vector<WorkerIdx> devices =
      whole_host ? WorkersOf(agent_idx) : std::vector<WorkerIdx>{worker};
  if (Workers().size() <= devices.size()) return false;  // None would be left.
  const std::optional<absl::Duration> duration =
      failing_.NoteFailure(worker, now_);
  if (!duration.has_value()) return false;
  failing_.LeaveOut(devices, now_ + *duration);
  actions_.emplace_back(Report{
      .event = "device_left_out",
      .worker = worker,
      .detail = absl::StrCat(
          "failed twice within ", absl::FormatDuration(FailingDevices::kWindow),
          "; the job goes on without ",
          whole_host ? absl::StrCat(NameOfAgent(agent_idx), " ") : "it ",
          "for ", absl::FormatDuration(*duration))});
  return true;
}

bool JobState::TakesBackDevices(const std::string& reason) {
  if (failing_.left_out().empty()) return false;
  failing_.TakeBackAll();
  actions_.emplace_back(
      Report{.event = "devices_taken_back", .detail = reason});
  return true;
}

void JobState::CheckDevices() {
  if (phase_ != Phase::kTraining || pauses_ ||
      failing_.NumOver(now_) <= num_over_) {
    return;
  }
  weighs_growth_ = false;
  ConsiderGrowth();
}

}  // namespace millrace
