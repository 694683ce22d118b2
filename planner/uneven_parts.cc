#include "planner/uneven_parts.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "planner/device_cost.h"
#include "planner/device_pools.h"

namespace millrace {
namespace {

// The profile, but on the slower network outside of nodes.
HardwareProfile OnNetworkOf(HardwareProfile profile,
                            const HardwareProfile& slower) {
  for (size_t level = 1; level < profile.network.size(); ++level) {
    profile.network[level] = slower.network[level];
  }
  for (ModelConstant& constant : profile.constants) {
    if (constant.name != "fabric_share") continue;
    for (const ModelConstant& other : slower.constants) {
      if (other.name == constant.name) constant.value = other.value;
    }
  }
  return profile;
}

LayoutSpace SpaceOf(const JobSpec& job, std::span<const NodeGroup> nodes) {
  LayoutSpace space =
      LayoutSpaceOf(job, static_cast<int32_t>(NumDevices(nodes)));
  space.nodes.assign(nodes.begin(), nodes.end());
  return space;
}

}  // namespace

absl::StatusOr<std::vector<PricedPool>> PricePools(
    const UnevenSearch& search, const Implementation& implementation,
    bool joins_networks) {
  HardwareProfile slower = search.pools.front().profile;
  for (const DevicePool& pool : search.pools) {
    ASSIGN_OR_RETURN(slower, SlowerOf(slower, pool.profile));
  }
  std::vector<PricedPool> priced;
  for (const DevicePool& pool : search.pools) {
    HardwareProfile profile =
        joins_networks ? OnNetworkOf(pool.profile, slower) : pool.profile;
    ASSIGN_OR_RETURN(
        StepModel model,
        StepModel::Create(search.job.model, profile, implementation));
    ASSIGN_OR_RETURN(const DeviceCost cost, DeviceCost::Create(profile));
    priced.push_back(
        {.profile = std::move(profile),
         .model = std::move(model),
         .space = PlannedSpace(SpaceOf(search.job, pool.nodes)),
         .memory_limit = search.job.resources.memory_per_device_bytes.value_or(
             pool.profile.device_memory_bytes),
         .data_hidden_share = cost.constants().data_hidden_share});
  }
  return priced;
}

PlannedSpace SpaceOfAll(const UnevenSearch& search) {
  std::vector<NodeGroup> nodes;
  for (const DevicePool& pool : search.pools) {
    nodes.insert(nodes.end(), pool.nodes.begin(), pool.nodes.end());
  }
  return PlannedSpace(SpaceOf(search.job, nodes));
}

std::vector<Recompute> RecomputesOf(const LayoutConstraints& pinned) {
  std::vector<Recompute> recomputes;
  for (int r = 0; r < kNumRecomputes; ++r) {
    const auto recompute = static_cast<Recompute>(r);
    if (pinned.recompute == "auto" ||
        pinned.recompute == RecomputeName(recompute)) {
      recomputes.push_back(recompute);
    }
  }
  return recomputes;
}

}  // namespace millrace
