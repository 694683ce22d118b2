#include "coordinator/spare_hosts.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/profile/profile_merge.h"

namespace millrace {

absl::Status CheckSpareHosts(int32_t num_spare_hosts,
                             std::span<const SpareCandidate> agents) {
  if (num_spare_hosts == 0) return absl::OkStatus();
  const std::string key =
      absl::StrCat("fault.spare_hosts is ", num_spare_hosts);
  std::set<std::string> hosts;
  for (const SpareCandidate& agent : agents) hosts.insert(agent.host);
  const auto num_hosts = static_cast<int32_t>(hosts.size());
  if (num_hosts == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        key, ", and the job has one host, ", agents.front().host,
        ", which trains; start agents on more hosts, or set it to 0"));
  }
  if (num_spare_hosts >= num_hosts) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ", and the job has ", num_hosts,
                     " hosts, of which one at least trains; set it to ",
                     num_hosts - 1, " at most, or start agents on more hosts"));
  }
  std::set<std::string> known;
  const SpareCandidate& first = agents.front();
  for (const SpareCandidate& agent : agents) {
    if (!known.insert(agent.host).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, ", and several agents are on ", agent.host,
                       "; start one agent a host"));
    }
    if (agent.num_devices != first.num_devices) {
      return absl::InvalidArgumentError(absl::StrCat(
          key, ", and ", first.host, " has ", first.num_devices,
          " devices and ", agent.host, " ", agent.num_devices,
          ", so that one cannot take the other's place; give all hosts as many "
          "(resources.devices_per_agent), or set it to 0"));
    }
    if (MachineKind(agent.machine) != MachineKind(first.machine)) {
      return absl::InvalidArgumentError(absl::StrCat(
          key, ", and the hosts are not of one kind: ", first.host, " is ",
          first.machine, ", ", agent.host, " is ", agent.machine,
          "; a spare of another kind cannot take a host's place: start agents "
          "on hosts of one kind, or set it to 0"));
    }
  }
  return absl::OkStatus();
}

std::optional<std::vector<WorkerIdx>> TakePlaces(
    const std::vector<WorkerIdx>& before, const std::vector<WorkerIdx>& there,
    int32_t devices_per_agent) {
  const auto agent_of = [&](WorkerIdx worker) {
    return ToInt(worker) / devices_per_agent;
  };
  std::set<int32_t> with_rank;
  for (const WorkerIdx worker : before) with_rank.insert(agent_of(worker));
  std::set<int32_t> left;
  std::set<int32_t> free;
  for (const WorkerIdx worker : there) {
    left.insert(agent_of(worker));
    if (!with_rank.contains(agent_of(worker))) free.insert(agent_of(worker));
  }
  std::map<int32_t, int32_t> in_place_of;
  std::vector<WorkerIdx> members;
  for (const WorkerIdx worker : before) {
    const int32_t agent = agent_of(worker);
    if (!left.contains(agent) && !in_place_of.contains(agent)) {
      if (free.empty()) return std::nullopt;
      in_place_of[agent] = free.extract(free.begin()).value();
    }
    const auto spare = in_place_of.find(agent);
    const int32_t of = spare == in_place_of.end() ? agent : spare->second;
    members.push_back(
        WorkerIdx{of * devices_per_agent + ToInt(worker) % devices_per_agent});
  }
  return members;
}

}  // namespace millrace
