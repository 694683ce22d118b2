#include "coordinator/replica_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "fault/replicas.h"
#include "planner/program/parameters.h"
#include "planner/search/snapshot_plan.h"

namespace millrace {
namespace {

constexpr char kKey[] = "fault.replica_interval_steps";
// Bytes that one core of a common server copies in a second, and TCP brings
// between processes of one host, and between hosts on ten gigabits.
constexpr double kCopyBytesPerSecond = 4e9;
constexpr double kLoopbackBytesPerSecond = 1.5e9;
constexpr double kNetworkBytesPerSecond = 1e9;

int32_t MostCopiesKept(const std::vector<std::optional<Rank>>& partners) {
  std::map<Rank, int32_t> kept;
  int32_t most = 0;
  for (const std::optional<Rank>& partner : partners) {
    if (partner.has_value()) most = std::max(most, ++kept[*partner]);
  }
  return most;
}

}  // namespace

int64_t PartBytes(const ModelSpec& model, const Layout& layout) {
  int64_t most = 0;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    most = std::max(
        most,
        StateBytesOfRank(BuildStageParameters(model, layout, stage), layout));
  }
  return most;
}

absl::StatusOr<ReplicaPlan> PlanReplicas(const JobSpec& job,
                                         const Layout& layout,
                                         const ReplicaFacts& facts) {
  ReplicaPlan plan = {.partners = ReplicaPartners(facts.hosts),
                      .part_bytes = PartBytes(job.model, layout)};
  const std::optional<int32_t>& asked = job.fault.replica_interval_steps;
  // A GPU's state cannot be trusted after its collectives were aborted.
  const bool is_live =
      !job.resources.uses_cuda() && HasLiveReplicas(layout, facts.hosts);
  if (asked == 0) {
    plan.description = absl::StrCat("none on a schedule (", kKey, " is 0)");
    return plan;
  }
  // A copy takes longer on its way from a GPU than most steps do, and several
  // times the state in host memory, so nobody gets it unasked.
  if (!asked.has_value() && job.resources.uses_cuda()) {
    plan.description = absl::StrCat("none on a schedule (", kKey,
                                    " is auto, which is 0 on GPUs)");
    return plan;
  }
  // Then a copy only serves where all holders of a part are lost at once.
  const bool sends = asked.has_value() || !is_live;
  if (!sends) plan.partners.assign(plan.partners.size(), std::nullopt);
  const bool several_hosts =
      std::set<std::string>(facts.hosts.begin(), facts.hosts.end()).size() > 1;
  const bool has_partner = sends && layout.num_ranks() > 1;
  const ReplicaCost cost = {.step_s = facts.step_s,
                            .part_bytes = plan.part_bytes,
                            .copy_bytes_per_s = kCopyBytesPerSecond,
                            .send_bytes_per_s = !has_partner ? 0
                                                : several_hosts
                                                    ? kNetworkBytesPerSecond
                                                    : kLoopbackBytesPerSecond,
                            .shares_processors = !job.resources.uses_cuda(),
                            .stall_s = facts.stall_s};
  plan.interval_steps = asked.value_or(ReplicaInterval(cost));
  const int32_t num_kept = MostCopiesKept(plan.partners);
  plan.host_bytes =
      ReplicaBytes(plan.part_bytes, num_kept, plan.interval_steps);
  if (!asked.has_value() && plan.interval_steps == 1 &&
      facts.memory_bytes.has_value() && plan.host_bytes > *facts.memory_bytes) {
    plan.interval_steps = 2;  // It takes less memory.
    plan.host_bytes =
        ReplicaBytes(plan.part_bytes, num_kept, plan.interval_steps);
  }
  if (facts.memory_bytes.has_value() && plan.host_bytes > *facts.memory_bytes) {
    const std::string lack = absl::StrCat(
        "copies of the state in memory take ", FormatBytes(plan.host_bytes),
        " of host memory a rank, and ",
        FormatBytes(std::max<int64_t>(0, *facts.memory_bytes)), " are left");
    if (asked.has_value()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          lack, "; set ", kKey,
          ": 0 and recover from checkpoints, use more ranks or hosts, or shard "
          "further (layout.zero)"));
    }
    plan.interval_steps = 0;
    plan.warning = absl::StrCat(
        lack, ": none are kept, recoveries read checkpoints from disk");
    plan.description = "none, for want of host memory";
    return plan;
  }
  plan.description = absl::StrCat(
      "every ", plan.interval_steps,
      plan.interval_steps == 1 ? " step, " : " steps, ",
      FormatBytes(plan.part_bytes), " a rank",
      !sends ? " in its own host's memory; others hold the same state live"
      : !has_partner  ? ""
      : several_hosts ? ", a copy on another host"
                      : ", a copy in another process of this host",
      "; takes ", FormatBytes(plan.host_bytes), " of host memory a rank and ",
      absl::StrFormat(
          "%.2f %% of the step",
          100 * ReplicaSeconds(cost) /
              std::max(1e-9, facts.step_s *
                                 static_cast<double>(plan.interval_steps))));
  const int64_t fair = layout.num_ranks() > 1 ? 1 : 0;
  if (several_hosts && MostCopiesKept(plan.partners) > fair) {
    plan.warning =
        "one host has more than half of all ranks, so ranks of the others keep "
        "several copies each";
  }
  return plan;
}

}  // namespace millrace
