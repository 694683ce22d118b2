#include "planner/fleet/uneven_parts.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "planner/cost/formula_cost.h"
#include "planner/cost/stage_time.h"
#include "planner/fleet/device_pools.h"

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

// Whether stages of so few layers as there are devices for would fit, if they
// held what they do on average.
bool MayFit(PricedPool& pool, const Layout& sharding, int64_t groups,
            int64_t num_layers, std::span<const Recompute> recomputes) {
  constexpr int32_t kZeros[] = {0, 1, 2, 3};
  Layout smallest = sharding;
  smallest.pipeline = static_cast<int32_t>(std::min(groups, num_layers));
  smallest.data = static_cast<int32_t>(groups);
  smallest.num_microbatches = 1;
  const StepMemory memory =
      pool.model.LeastInterleavedMemory(smallest, kZeros, recomputes);
  return memory.total() - memory.overhead + pool.model.OverheadOf(sharding) <=
         pool.memory_limit;
}

}  // namespace

absl::StatusOr<double> UnevenFloor(const UnevenSearch& search) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const LayoutConstraints& pinned = search.job.layout;
  if (NamesStages(pinned)) return kNone;
  // Of all sets that are open the ends.
  std::vector<Recompute> recomputes = {Recompute::kNone, Recompute::kFull};
  if (!LeavesStagesOpen(pinned.recompute)) {
    Layout layout;
    SetRecompute(pinned.recompute, &layout);
    recomputes = {layout.recompute};
  }
  // On networks of their own, which are no slower.
  ASSIGN_OR_RETURN(
      std::vector<PricedPool> pools,
      PricePools(search, Implementation{}, /*joins_networks=*/false));
  const ModelSpec& model = search.job.model;
  const PlannedSpace all = SpaceOfAll(search);
  struct Part {
    StageKind kind;
    double count;  // Of a pass through the model.
  };
  std::vector<Part> parts = {{.kind = {.has_embedding = true}, .count = 1},
                             {.kind = {.has_head = true}, .count = 1}};
  if (model.num_dense_layers() > 0) {
    parts.push_back({.kind = {.num_dense = 1},
                     .count = static_cast<double>(model.num_dense_layers())});
  }
  if (model.num_expert_layers() > 0) {
    parts.push_back({.kind = {.num_experts = 1},
                     .count = static_cast<double>(model.num_expert_layers())});
  }
  double floor_s = kNone;
  // Seconds of each part, by type and part.
  std::vector<std::vector<double>> seconds(pools.size());
  for (Layout sharding : all.Shardings()) {
    sharding.recompute = recomputes.front();
    const int64_t ranks = int64_t{sharding.tensor} * sharding.context;
    const int64_t groups = all.UsableDevices(sharding.tensor) / ranks;
    bool may_fit = false;
    for (size_t k = 0; k < pools.size(); ++k) {
      may_fit |=
          MayFit(pools[k], sharding, groups, model.num_layers, recomputes);
      seconds[k].clear();
      for (const Part& part : parts) {
        const ChunkCosts pass =
            pools[k].model.PredictStage(sharding, part.kind).pass;
        seconds[k].push_back(pass.forward_s + pass.input_gradient_s +
                             pass.weight_gradient_s);
      }
    }
    if (!may_fit) continue;
    // What counts most prices the types, and of the other parts none is worth
    // more than that on any of them.
    size_t main = 0;
    for (size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].count * seconds[0][i] >
          parts[main].count * seconds[0][main]) {
        main = i;
      }
    }
    double pass_s = 0, passes_at_once = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      double worth_s = kNone;
      for (size_t k = 0; k < pools.size(); ++k) {
        worth_s = std::min(worth_s,
                           seconds[0][main] / seconds[k][main] * seconds[k][i]);
      }
      pass_s += parts[i].count * worth_s;
    }
    for (size_t k = 0; k < pools.size(); ++k) {
      passes_at_once +=
          seconds[0][main] / seconds[k][main] *
          static_cast<double>(pools[k].UsableDevices(sharding.tensor) / ranks);
    }
    if (passes_at_once == 0) continue;
    const double passes =
        static_cast<double>(search.job.training.global_batch) /
        sharding.micro_batch;
    floor_s = std::min(floor_s, passes * pass_s / passes_at_once);
  }
  return floor_s;
}

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

bool NamesStages(const LayoutConstraints& pinned) {
  return absl::StrContains(pinned.recompute, ',');
}

std::vector<Recompute> RecomputesOf(const LayoutConstraints& pinned,
                                    PricedPool& pool, const Layout& layout) {
  std::vector<Recompute> recomputes;
  for (const StageRecomputes& again :
       AllowedRecomputes(pinned.recompute, pool.model.Recomputes(layout))) {
    recomputes.push_back(again.recompute);
  }
  return recomputes;
}

}  // namespace millrace
