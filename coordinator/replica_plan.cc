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

constexpr char kIntervalKey[] = "fault.replica_interval_steps";
constexpr char kPartnersKey[] = "fault.replica_partners";
// Bytes that one core of a common server copies in a second, and TCP brings
// between processes of one host, and between hosts on ten gigabits.
constexpr double kCopyBytesPerSecond = 4e9;
constexpr double kLoopbackBytesPerSecond = 1.5e9;
constexpr double kNetworkBytesPerSecond = 1e9;

// How copies go to a number of partners, and what they take.
struct Copies {
  std::vector<std::vector<Rank>> partners;  // Of each rank.
  int32_t most_kept = 0;                    // On the rank that keeps most.
  ReplicaCost cost;
  int64_t interval_steps = 0;
  int64_t host_bytes = 0;
  bool fit = true;
};

int32_t MostCopiesKept(const std::vector<std::vector<Rank>>& partners) {
  std::map<Rank, int32_t> kept;
  int32_t most = 0;
  for (const std::vector<Rank>& of_rank : partners) {
    for (const Rank partner : of_rank) most = std::max(most, ++kept[partner]);
  }
  return most;
}

size_t NumHosts(const ReplicaFacts& facts) {
  return std::set<std::string>(facts.hosts.begin(), facts.hosts.end()).size();
}

Copies CopiesTo(int32_t num_partners, const JobSpec& job,
                const ReplicaFacts& facts, int64_t part_bytes) {
  const std::optional<int32_t>& asked = job.fault.replica_interval_steps;
  Copies copies = {.partners = ReplicaPartners(facts.hosts, num_partners)};
  copies.most_kept = MostCopiesKept(copies.partners);
  const bool is_local = facts.are_agents || NumHosts(facts) == 1;
  copies.cost = {
      .step_s = facts.step_s,
      .part_bytes = part_bytes,
      .copy_bytes_per_s = kCopyBytesPerSecond,
      .send_bytes_per_s = copies.most_kept == 0 ? 0
                          : is_local            ? kLoopbackBytesPerSecond
                                                : kNetworkBytesPerSecond,
      .num_partners = copies.partners.empty()
                          ? 0
                          : static_cast<int32_t>(copies.partners[0].size()),
      .shares_processors = !job.resources.uses_cuda(),
      .stall_s = facts.stall_s};
  copies.interval_steps = asked.value_or(ReplicaInterval(copies.cost));
  const auto fit = [&] {
    copies.host_bytes =
        ReplicaBytes(part_bytes, copies.most_kept, copies.interval_steps);
    return !facts.memory_bytes.has_value() ||
           copies.host_bytes <= *facts.memory_bytes;
  };
  copies.fit = fit();
  if (!copies.fit && !asked.has_value() && copies.interval_steps == 1) {
    copies.interval_steps = 2;  // It takes less memory.
    copies.fit = fit();
  }
  return copies;
}

// For the plan's description.
std::string WhereCopiesAre(const Copies& copies, const ReplicaFacts& facts) {
  const int32_t num_partners = copies.cost.num_partners;
  const size_t num_hosts = NumHosts(facts);
  if (num_partners == 0) return "";
  if (num_hosts == 1) {
    return num_partners == 1 ? ", a copy in another process of this host"
                             : ", copies in two other processes of this host";
  }
  const char* host = facts.are_agents ? "agent" : "host";
  if (num_partners == 1) return absl::StrCat(", a copy on another ", host);
  return num_hosts > 2
             ? absl::StrCat(", copies on two other ", host, "s")
             : absl::StrCat(", two copies, one at least on the other ", host);
}

// Says which loss a job with two partners does not survive. Empty if it
// survives the loss of any two hosts.
std::string LackOfHosts(const ReplicaFacts& facts) {
  const bool is_one = facts.are_agents || NumHosts(facts) == 1;
  if (!is_one && NumHosts(facts) > 2) return "";
  return absl::StrCat(kPartnersKey, " is 2 on ",
                      is_one ? "one host: losing it" : "two hosts: losing both",
                      " loses all copies; use three hosts or more");
}

// Says whether copies to one partner fit where those to two do not. Empty for a
// job with one.
std::string OfferOfOnePartner(const Copies& copies, const JobSpec& job,
                              const ReplicaFacts& facts) {
  if (copies.cost.num_partners < 2) return "";
  const Copies to_one = CopiesTo(1, job, facts, copies.cost.part_bytes);
  const std::string bytes = FormatBytes(to_one.host_bytes);
  return to_one.fit ? absl::StrCat("copies to one partner take ", bytes,
                                   " and fit: set ", kPartnersKey, ": 1; or ")
                    : absl::StrCat("copies to one partner take ", bytes,
                                   " and do not fit either; ");
}

// Says that some ranks keep more copies than others. Empty if none do.
std::string LopsidedHosts(const Copies& copies, const ReplicaFacts& facts) {
  const size_t num_hosts = NumHosts(facts);
  const int32_t num_partners = copies.cost.num_partners;
  if (num_hosts < 2 || copies.most_kept <= num_partners) return "";
  return absl::StrCat(
      facts.are_agents ? "one agent" : "one host", " has more than ",
      num_partners > 1 && num_hosts > 2 ? "a third" : "half",
      " of all ranks, so ranks of the others keep ",
      num_partners > 1 ? "more than two" : "several", " copies each");
}

// Says that training will wait for copies that are taken as often as the job
// asks. Empty if it will not.
std::string Hurry(const Copies& copies) {
  const int64_t unhurried = UnhurriedInterval(copies.cost);
  if (copies.interval_steps >= unhurried) return "";
  return absl::StrCat(
      kIntervalKey, " is ", copies.interval_steps,
      ", and keeping and sending a copy takes about as long as ", unhurried - 1,
      " steps, so training waits for each: set ", kIntervalKey, ": ", unhurried,
      " or more");
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
  ReplicaPlan plan = {.part_bytes = PartBytes(job.model, layout)};
  const std::optional<int32_t>& asked = job.fault.replica_interval_steps;
  const int32_t num_partners = job.fault.replica_partners;
  // A GPU's state cannot be trusted after its collectives were aborted.
  const bool is_live = !job.resources.uses_cuda() &&
                       HasLiveReplicas(layout, facts.hosts, num_partners);
  if (asked == 0) {
    plan.description =
        absl::StrCat("none on a schedule (", kIntervalKey, " is 0)");
    return plan;
  }
  // A copy takes longer on its way from a GPU than most steps do, and several
  // times the state in host memory, so nobody gets it unasked.
  if (!asked.has_value() && job.resources.uses_cuda()) {
    plan.description = absl::StrCat("none on a schedule (", kIntervalKey,
                                    " is auto, which is 0 on GPUs)");
    if (num_partners > 1) {
      plan.warning =
          absl::StrCat(kPartnersKey, " is ", num_partners,
                       ", and no copies are taken: set ", kIntervalKey);
    }
    return plan;
  }
  // Then a copy only serves where all holders of a part are lost at once.
  const bool sends = asked.has_value() || !is_live;
  const Copies copies =
      CopiesTo(sends ? num_partners : 0, job, facts, plan.part_bytes);
  plan.interval_steps = copies.interval_steps;
  plan.partners = copies.partners;
  plan.host_bytes = copies.host_bytes;
  if (!copies.fit) {
    const std::string lack = absl::StrCat(
        "copies of the state in memory take ", FormatBytes(plan.host_bytes),
        " of host memory a rank, and ",
        FormatBytes(std::max<int64_t>(0, *facts.memory_bytes)), " are left");
    if (asked.has_value() || num_partners > 1) {
      return absl::ResourceExhaustedError(absl::StrCat(
          lack, "; ", OfferOfOnePartner(copies, job, facts), "set ",
          num_partners > 1 ? absl::StrCat(kPartnersKey, ": 1 and ") : "",
          kIntervalKey,
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
             : WhereCopiesAre(copies, facts),
      "; takes ", FormatBytes(plan.host_bytes), " of host memory a rank and ",
      absl::StrFormat(
          "%.2f %% of the step",
          100 * ReplicaSeconds(copies.cost) /
              std::max(1e-9, facts.step_s *
                                 static_cast<double>(plan.interval_steps))));
  for (const std::string& warning :
       {LopsidedHosts(copies, facts),
        num_partners > 1 ? LackOfHosts(facts) : std::string(), Hurry(copies)}) {
    if (warning.empty()) continue;
    absl::StrAppend(&plan.warning, plan.warning.empty() ? "" : "; ", warning);
  }
  return plan;
}

}  // namespace millrace
