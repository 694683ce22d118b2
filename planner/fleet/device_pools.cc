#include "planner/fleet/device_pools.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "planner/cost/op_cost.h"
#include "planner/fleet/uneven.h"
#include "planner/layout/model.h"
#include "planner/search/prediction.h"

namespace millrace {
namespace {

constexpr char kExample[] =
    "expected nodes x devices, as 122x8+3x7, with types before them where "
    "there "
    "are several, as h100-sxm:122x8,a100-80gb:16x8";

absl::StatusOr<NodeGroup> ParseGroup(absl::string_view text) {
  const std::vector<std::string> sizes = absl::StrSplit(text, 'x');
  NodeGroup group;
  if (sizes.size() != 2 || !absl::SimpleAtoi(sizes[0], &group.nodes) ||
      !absl::SimpleAtoi(sizes[1], &group.devices) || group.nodes < 1 ||
      group.devices < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' in a cluster; ", kExample));
  }
  return group;
}

absl::Status RequireDataSheet(const HardwareProfile& profile) {
  if (profile.device.is_given() && !profile.network.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "hardware profile '", profile.name, "' has no ",
      profile.device.is_given() ? "network" : "device",
      " section, without which devices of several types cannot be compared; "
      "name a shipped profile (configs/hardware), or add the section as "
      "docs/profile.md explains"));
}

// Where less is worse.
void Lower(double* value, double other) { *value = std::min(*value, other); }

// Constants that are seconds or noise grow with slowness, shares shrink.
bool GrowsWithSlowness(const std::string& name) {
  return absl::EndsWith(name, "_s") || absl::EndsWith(name, "_noise");
}

struct PoolChoice {
  std::string names;  // "976 h100-sxm and 128 a100-80gb".
  absl::StatusOr<Plan> plan;
};

std::string NamesOf(std::span<const DevicePool* const> pools) {
  return absl::StrJoin(
      pools, " and ", [](std::string* out, const DevicePool* pool) {
        absl::StrAppend(out, NumDevices(pool->nodes), " ", pool->profile.name);
      });
}

absl::StatusOr<Plan> PlanTogether(const SearchInput& input,
                                  std::span<const DevicePool* const> pools) {
  HardwareProfile profile = pools.front()->profile;
  SearchInput together = input;
  together.all_axes = true;
  together.nodes.clear();
  for (const DevicePool* pool : pools) {
    ASSIGN_OR_RETURN(profile, SlowerOf(profile, pool->profile));
    together.nodes.insert(together.nodes.end(), pool->nodes.begin(),
                          pool->nodes.end());
  }
  together.num_devices = static_cast<int32_t>(NumDevices(together.nodes));
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(std::move(profile)));
  return FindPlan(together, cost);
}

// "64 h100-sxm and 24 a100-80gb, layers by speed".
std::string NamesOf(const UnevenPlan& uneven) {
  std::vector<std::string> names;
  for (const UnevenPart& part : uneven.parts) {
    names.push_back(absl::StrCat(part.num_devices, " ", part.devices));
  }
  return absl::StrCat(absl::StrJoin(names, " and "),
                      uneven.split == UnevenPlan::Split::kStages
                          ? ", layers by speed"
                          : ", micro-batches by speed");
}

absl::StatusOr<Plan> PlanOf(const SearchInput& input,
                            std::span<const DevicePool* const> pools,
                            UnevenPlan uneven) {
  Plan plan;
  plan.layout = uneven.layout;
  plan.plan_only = true;
  plan.pipeline_outermost = uneven.pipeline_outermost;
  plan.layouts_considered = uneven.layouts_considered;
  ASSIGN_OR_RETURN(const CostModel cost,
                   CostModel::Create(pools.front()->profile));
  Prediction& prediction = plan.prediction;
  prediction =
      PredictionOf(input.job.model, plan.layout, cost, uneven.closed_form);
  FillTime(input.job.model, plan.layout, cost, uneven.step_time_s, &prediction);
  prediction.bubble_fraction = uneven.bubble_fraction;
  prediction.exposed_communication_fraction =
      uneven.exposed_communication_fraction;
  // Of the batch there is, and of what the devices used could do at most.
  const double tokens = static_cast<double>(input.job.training.global_batch) *
                        static_cast<double>(input.job.model.sequence_length);
  prediction.tokens_per_s = tokens / uneven.step_time_s;
  double peak = 0;
  for (const UnevenPart& part : uneven.parts) {
    for (const DevicePool* pool : pools) {
      if (pool->profile.name != part.devices) continue;
      ASSIGN_OR_RETURN(const CostModel of_type,
                       CostModel::Create(pool->profile));
      peak += part.num_devices * of_type.PeakFlopsPerSecond();
      break;
    }
  }
  const TokenFlops flops = CountTokenFlops(input.job.model);
  prediction.mfu_full =
      prediction.tokens_per_s / peak * (flops.linear + flops.attention_full);
  prediction.mfu_causal =
      prediction.tokens_per_s / peak * (flops.linear + flops.attention_causal);
  plan.uneven = std::make_shared<const UnevenPlan>(std::move(uneven));
  return plan;
}

// Adds unequal shares, where they are faster than equal ones by the closed
// form. Returns the seconds that this says of none; nothing where that is not
// known.
std::optional<double> AddUneven(
    const SearchInput& input, std::span<const DevicePool* const> fastest_first,
    std::vector<PoolChoice>* choices) {
  const LayoutSpace space = LayoutSpaceOf(input.job, 1);
  // As of equal shares.
  if (space.precision != Precision::kBfloat16) return std::nullopt;
  std::vector<DevicePool> pools;
  for (const DevicePool* pool : fastest_first) pools.push_back(*pool);
  double fastest_s = std::numeric_limits<double>::infinity();
  for (const PoolChoice& choice : *choices) {
    if (!choice.plan.ok()) continue;
    const Prediction& prediction = choice.plan->prediction;
    fastest_s =
        std::min(fastest_s, prediction.closed_form.has_value()
                                ? prediction.closed_form->time.step_time_s()
                                : prediction.step_time_s);
  }
  const UnevenSearch search{
      .job = input.job, .pools = pools, .slowest_s = fastest_s};
  std::optional<double> floor_s = std::numeric_limits<double>::infinity();
  for (const auto find : {FindUnevenStages, FindUnevenReplicas}) {
    absl::StatusOr<UnevenFound> uneven = find(search);
    // Profiles that cannot be priced cannot with equal shares either, which
    // then says why.
    if (!uneven.ok()) {
      floor_s.reset();
      continue;
    }
    if (floor_s.has_value()) floor_s = std::min(*floor_s, uneven->floor_s);
    if (!uneven->plan.has_value()) continue;
    const std::string names = NamesOf(*uneven->plan);
    choices->push_back(
        {.names = names, .plan = PlanOf(input, fastest_first, *uneven->plan)});
  }
  if (pools.size() == 2 || !floor_s.has_value()) return floor_s;
  const absl::StatusOr<double> of_any = UnevenFloor(search);
  if (!of_any.ok()) return std::nullopt;
  return *of_any;
}

// By what share the fastest plan could be faster at most, by the closed form,
// by which unequal shares take `uneven_s` at least; nothing where that is not
// known.
std::optional<double> GapOfAll(std::optional<double> uneven_s,
                               const std::vector<PoolChoice>& choices) {
  double best_s = std::numeric_limits<double>::infinity();
  double floor_s = best_s;
  for (const PoolChoice& choice : choices) {
    if (!choice.plan.ok()) continue;
    const Plan& plan = *choice.plan;
    double seconds = std::numeric_limits<double>::infinity();
    const auto take = [&](const Prediction& prediction) {
      if (!prediction.closed_form.has_value()) return;
      seconds = std::min(seconds, prediction.closed_form->time.step_time_s());
    };
    take(plan.prediction);
    for (const Alternative& other : plan.alternatives) take(other.prediction);
    best_s = std::min(best_s, seconds);
    if (plan.uneven != nullptr) continue;
    if (!plan.optimality_gap.has_value()) return std::nullopt;
    floor_s = std::min(floor_s, seconds / (1 + *plan.optimality_gap));
  }
  if (!uneven_s.has_value()) return std::nullopt;
  return best_s / std::min({best_s, floor_s, *uneven_s}) - 1;
}

std::string DoesOtherwise(const PoolChoice& choice, const Plan& chosen) {
  if (!choice.plan.ok()) {
    return absl::StrCat(choice.names, ": ",
                        std::string(choice.plan.status().message()));
  }
  return absl::StrFormat("%s: a step takes %.4g s instead of %.4g s",
                         choice.names, choice.plan->prediction.step_time_s,
                         chosen.prediction.step_time_s);
}

}  // namespace

absl::StatusOr<std::vector<PoolText>> ParsePools(absl::string_view text) {
  std::vector<PoolText> pools;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    PoolText pool;
    // A path may hold a colon, so the last one counts.
    const size_t colon = part.rfind(':');
    absl::string_view groups = part;
    if (colon != absl::string_view::npos) {
      pool.profile = std::string(part.substr(0, colon));
      groups = part.substr(colon + 1);
    }
    for (const absl::string_view group : absl::StrSplit(groups, '+')) {
      ASSIGN_OR_RETURN(const NodeGroup parsed, ParseGroup(group));
      pool.nodes.push_back(parsed);
    }
    pools.push_back(std::move(pool));
  }
  for (const PoolText& pool : pools) {
    if (pools.size() > 1 && pool.profile.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a cluster of several pools, one of which has no profile; ",
          kExample));
    }
  }
  return pools;
}

int64_t NumDevices(std::span<const NodeGroup> nodes) {
  int64_t sum = 0;
  for (const NodeGroup& group : nodes) {
    sum += int64_t{group.nodes} * group.devices;
  }
  return sum;
}

absl::StatusOr<HardwareProfile> SlowerOf(const HardwareProfile& a,
                                         const HardwareProfile& b) {
  if (a.name == b.name && a.device == b.device) return a;
  RETURN_IF_ERROR(RequireDataSheet(a));
  RETURN_IF_ERROR(RequireDataSheet(b));
  if (a.network.size() != b.network.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hardware profiles '", a.name, "' and '", b.name, "' have networks of ",
        a.network.size(), " and ", b.network.size(),
        " levels; devices on both cannot be planned together"));
  }
  HardwareProfile slower = a;
  slower.name = absl::StrCat(a.name, " with ", b.name);
  // Tables are of one type.
  slower.gemms.clear();
  slower.attention.clear();
  slower.cross_entropy.clear();
  slower.bandwidth.clear();
  slower.communication.clear();
  slower.copy_engines.clear();
  slower.device_memory_bytes =
      std::min(a.device_memory_bytes, b.device_memory_bytes);
  slower.device.name = absl::StrCat(a.device.name, " with ", b.device.name);
  Lower(&slower.device.bf16_flops_per_s, b.device.bf16_flops_per_s);
  Lower(&slower.device.fp8_flops_per_s, b.device.fp8_flops_per_s);
  Lower(&slower.device.fp4_flops_per_s, b.device.fp4_flops_per_s);
  Lower(&slower.device.memory_bytes_per_s, b.device.memory_bytes_per_s);
  for (size_t level = 0; level < slower.network.size(); ++level) {
    NetworkLevel& link = slower.network[level];
    const NetworkLevel& other = b.network[level];
    link.devices = link.devices == 0    ? other.devices
                   : other.devices == 0 ? link.devices
                                        : std::min(link.devices, other.devices);
    Lower(&link.bytes_per_s, other.bytes_per_s);
    link.latency_s = std::max(link.latency_s, other.latency_s);
  }
  for (ModelConstant& constant : slower.constants) {
    for (const ModelConstant& other : b.constants) {
      if (other.name != constant.name) continue;
      constant.value = GrowsWithSlowness(constant.name)
                           ? std::max(constant.value, other.value)
                           : std::min(constant.value, other.value);
    }
  }
  return slower;
}

absl::StatusOr<Plan> FindPlanForPools(const SearchInput& input,
                                      std::span<const DevicePool> pools) {
  const double start_s = MonotonicSeconds();
  std::vector<const DevicePool*> fastest_first;
  for (const DevicePool& pool : pools) fastest_first.push_back(&pool);
  std::stable_sort(fastest_first.begin(), fastest_first.end(),
                   [](const DevicePool* a, const DevicePool* b) {
                     return a->profile.device.bf16_flops_per_s >
                            b->profile.device.bf16_flops_per_s;
                   });
  std::vector<PoolChoice> choices;
  for (size_t count = 1; count <= fastest_first.size(); ++count) {
    const auto used =
        std::span<const DevicePool* const>(fastest_first).first(count);
    choices.push_back(
        {.names = NamesOf(used), .plan = PlanTogether(input, used)});
    if (count > 1) choices.back().names += ", all with equal shares";
  }
  std::optional<double> uneven_s;
  if (pools.size() > 1) uneven_s = AddUneven(input, fastest_first, &choices);
  const auto chosen = std::min_element(
      choices.begin(), choices.end(),
      [](const PoolChoice& a, const PoolChoice& b) {
        if (a.plan.ok() != b.plan.ok()) return a.plan.ok();
        return a.plan.ok() &&
               a.plan->prediction.step_time_s < b.plan->prediction.step_time_s;
      });
  if (!chosen->plan.ok()) return choices[pools.size() - 1].plan.status();
  Plan plan = *chosen->plan;
  if (pools.size() > 1) {
    int64_t num_devices = 0;
    for (const DevicePool& pool : pools) num_devices += NumDevices(pool.nodes);
    plan.num_idle_devices =
        static_cast<int32_t>(num_devices - plan.layout.num_ranks());
    std::string uses = absl::StrCat("uses ", chosen->names);
    for (const PoolChoice& choice : choices) {
      if (&choice == &*chosen || !choice.plan.ok()) continue;
      plan.layouts_considered += choice.plan->layouts_considered;
    }
    plan.optimality_gap = GapOfAll(uneven_s, choices);
    plan.warnings.insert(plan.warnings.begin(), std::move(uses));
    for (const PoolChoice& choice : choices) {
      if (&choice == &*chosen) continue;
      plan.warnings.push_back(DoesOtherwise(choice, plan));
    }
  }
  if (plan.uneven != nullptr) WarnOfApproximation(input.job, &plan);
  plan.search_seconds = MonotonicSeconds() - start_s;
  return plan;
}

}  // namespace millrace
