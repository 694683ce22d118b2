#include "planner/device_pools.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "planner/cost.h"

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

// Constants that are seconds grow with slowness, shares shrink.
bool IsSeconds(const std::string& name) {
  return name.size() > 2 && name.compare(name.size() - 2, 2, "_s") == 0;
}

// Of pools [0, count), the fastest first.
struct Choice {
  size_t count;
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

std::string DoesOtherwise(const Choice& choice, const Plan& chosen) {
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
      constant.value = IsSeconds(constant.name)
                           ? std::max(constant.value, other.value)
                           : std::min(constant.value, other.value);
    }
  }
  return slower;
}

absl::StatusOr<Plan> FindPlanForPools(const SearchInput& input,
                                      std::span<const DevicePool> pools) {
  std::vector<const DevicePool*> fastest_first;
  for (const DevicePool& pool : pools) fastest_first.push_back(&pool);
  std::stable_sort(fastest_first.begin(), fastest_first.end(),
                   [](const DevicePool* a, const DevicePool* b) {
                     return a->profile.device.bf16_flops_per_s >
                            b->profile.device.bf16_flops_per_s;
                   });
  std::vector<Choice> choices;
  for (size_t count = 1; count <= fastest_first.size(); ++count) {
    const auto used =
        std::span<const DevicePool* const>(fastest_first).first(count);
    choices.push_back({.count = count,
                       .names = NamesOf(used),
                       .plan = PlanTogether(input, used)});
  }
  const auto chosen = std::min_element(
      choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
        if (a.plan.ok() != b.plan.ok()) return a.plan.ok();
        return a.plan.ok() &&
               a.plan->prediction.step_time_s < b.plan->prediction.step_time_s;
      });
  if (!chosen->plan.ok()) return choices.back().plan.status();
  Plan plan = *chosen->plan;
  if (choices.size() > 1) {
    plan.warnings.push_back(absl::StrCat("uses ", chosen->names));
    for (const Choice& choice : choices) {
      if (choice.count == chosen->count) continue;
      plan.warnings.push_back(DoesOtherwise(choice, plan));
    }
  }
  return plan;
}

}  // namespace millrace
