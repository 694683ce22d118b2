// Hosts that are kept spare (fault.spare_hosts): they have joined the job and
// have its data, and no rank is on them until one takes the place of a host
// that is lost. Pure.

#ifndef MILLRACE_COORDINATOR_SPARE_HOSTS_H_
#define MILLRACE_COORDINATOR_SPARE_HOSTS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"

namespace millrace {

// An agent's host, as the agent reported it.
struct SpareCandidate {
  std::string host;
  int32_t num_devices = 0;
  std::string machine;  // Fingerprint, as in a profile's provenance.
};

// InvalidArgument, with what to do, unless any of the agents can take the place
// of any other, each is on a host of its own, and at least one host trains.
absl::Status CheckSpareHosts(int32_t num_spare_hosts,
                             std::span<const SpareCandidate> agents);

// Returns the workers of a plan that stays though hosts were lost, by rank.
// `before` has those until then, `there` all workers of the agents that are
// left; each agent has `devices_per_agent` workers in a row. Workers that are
// there keep their ranks. An agent without a rank takes the place of each that
// is lost, the first in order. Nothing if there are too few of them.
std::optional<std::vector<WorkerIdx>> TakePlaces(
    const std::vector<WorkerIdx>& before, const std::vector<WorkerIdx>& there,
    int32_t devices_per_agent);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_SPARE_HOSTS_H_
