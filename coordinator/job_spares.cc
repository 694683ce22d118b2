// Hosts that are kept spare, and how one takes the place of another; see
// spare_hosts.h. Part of JobRunner (job_runner.h).

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/units.h"
#include "coordinator/job_runner.h"
#include "coordinator/spare_hosts.h"

namespace millrace {

absl::Status JobRunner::CheckSpareHosts() const {
  if (plan_.has_value() || options_.profile_only) return absl::OkStatus();
  std::vector<SpareCandidate> agents;
  for (const auto& [agent_idx, agent] : agents_) {
    agents.push_back({.host = agent.host(),
                      .num_devices = agent.num_devices(),
                      .machine = agent.machine()});
  }
  return millrace::CheckSpareHosts(job_.fault.spare_hosts, agents);
}

bool JobRunner::SpareTakesPlace(const DeviceFacts& devices) const {
  return job_.fault.spare_hosts > 0 && plan_.has_value() &&
         plan_->num_devices == devices.num_devices &&
         plan_->memory_bytes <= devices.memory_bytes &&
         PlacesAmong(state_->Workers()).has_value();
}

std::optional<std::vector<WorkerIdx>> JobRunner::PlacesAmong(
    const std::vector<WorkerIdx>& workers) const {
  return TakePlaces(plan_->members, workers,
                    agents_.begin()->second.num_devices());
}

std::string JobRunner::SpareDecision(const DeviceFacts& devices,
                                     const Plan& plan) const {
  if (job_.fault.spare_hosts == 0 || !plan_.has_value() ||
      devices.num_devices >= plan_->num_devices) {
    return "";
  }
  return absl::StrCat("no spare host is left: the others shrink to ",
                      devices.num_devices, " devices, and a step takes ",
                      FormatSeconds(plan.prediction.step_time_s), ", not ",
                      FormatSeconds(plan_->step_time_s));
}

void JobRunner::OnSparePlaces() {
  const auto members = PlacesAmong(state_->Workers());
  if (!members.has_value()) {
    Handle(PlanMade{});  // A host was lost meanwhile.
    return;
  }
  const absl::StatusOr<ReplicaPlan> replicas =
      ReplicaPlanOf(plan_->layout, plan_->step_time_s, FailureDomains(*members),
                    plan_->memory_bytes, plan_->snapshots);
  if (!replicas.ok()) {
    Handle(PlanRefused{std::string(replicas.status().message())});
    return;
  }
  replica_plan_ = *replicas;
  std::set<std::string> spares;
  for (size_t rank = 0; rank < members->size(); ++rank) {
    const WorkerIdx worker = (*members)[rank];
    if (worker != plan_->members[rank]) spares.insert(state_->HostOf(worker));
  }
  plan_->members = *members;
  plan_->devices_by_agent = state_->DevicesByAgent();
  plan_->left_out = state_->LeftOutDevices();
  MustSucceed([&] { return log_->PlanChosen(PlanRecordToJson(*plan_)); });
  const std::string detail = absl::StrCat(
      "spare ", spares.size() == 1 ? "host " : "hosts ",
      absl::StrJoin(spares, ", "), spares.size() == 1 ? " takes" : " take",
      " the place: a step takes ", FormatSeconds(plan_->step_time_s),
      " as before",
      fewer_hosts_step_s_.has_value()
          ? absl::StrCat(", and would take ",
                         FormatSeconds(*fewer_hosts_step_s_),
                         " with one host fewer")
          : "");
  output_->Event({.event = "spare_taken", .detail = detail});
  progress_->Line(detail);
  Handle(PlanMade{*members, absl::Seconds(plan_->step_time_s)});
}

}  // namespace millrace
