#include "fault/replicas.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fault/replica_check.h"
#include "planner/layout/mesh.h"

namespace millrace {
namespace {

constexpr double kShareOfStep = 0.005;
// Waking the threads that take part, and opening a connection.
constexpr double kSecondsOfEach = 2e-4;
// Taking the snapshot, storing it, its checksums, sending and receiving.
constexpr double kPassesOfEach = 5;
// Sending it to one more partner, and receiving as one.
constexpr double kPassesOfAnotherPartner = 2;
// A copy that is kept and sent within this share of a step is done before the
// next step ends, whatever that one does.
constexpr double kQuickShare = 0.5;

// Holders of each rank's part of one set.
struct SetHolders {
  int32_t num_ranks = 0;
  bool contradicts = false;
  std::map<Rank, std::vector<const HeldReplica*>> holders;

  bool is_whole() const {
    return !contradicts && num_ranks > 0 &&
           static_cast<int32_t>(holders.size()) == num_ranks;
  }
};

// Newest first.
using NewestFirst = std::pair<int64_t, int64_t>;  // Step, generation; negated.

std::map<NewestFirst, SetHolders> SetsOf(const std::vector<HeldReplica>& held,
                                         int64_t least_step,
                                         const std::set<ReplicaSet>& refused) {
  std::map<NewestFirst, SetHolders> sets;
  for (const HeldReplica& replica : held) {
    const ReplicaSet& set = replica.part.set;
    if (set.step < least_step || refused.contains(set)) continue;
    SetHolders& holders = sets[{-set.step, -ToInt(set.generation)}];
    const int32_t rank = ToInt(replica.part.rank);
    if (rank < 0 || rank >= replica.num_ranks ||
        (holders.num_ranks != 0 && holders.num_ranks != replica.num_ranks)) {
      holders.contradicts = true;
      continue;
    }
    holders.num_ranks = replica.num_ranks;
    holders.holders[replica.part.rank].push_back(&replica);
  }
  return sets;
}

// Seconds that one thread copies for each copy of the state.
double CopySeconds(const ReplicaCost& cost) {
  if (cost.copy_bytes_per_s <= 0) return 0;
  const double num_passes =
      kPassesOfEach +
      kPassesOfAnotherPartner * std::max(0, cost.num_partners - 1);
  return num_passes * static_cast<double>(cost.part_bytes) /
         cost.copy_bytes_per_s;
}

// The next holder of a part, on a host that `holders` are not on. A shift by
// the largest host's ranks leaves every host, and shifts in a row come back to
// one only where it has too large a share of all ranks. Then it is the rank
// that keeps the fewest copies so far.
int32_t HolderOnAnotherHost(const std::vector<std::string>& hosts,
                            const std::vector<int32_t>& holders, int32_t shift,
                            const std::vector<int32_t>& num_kept) {
  const auto num_ranks = static_cast<int32_t>(hosts.size());
  const auto is_elsewhere = [&](int32_t rank) {
    return std::none_of(holders.begin(), holders.end(), [&](int32_t holder) {
      return hosts[holder] == hosts[rank];
    });
  };
  const int64_t num_shifts = static_cast<int64_t>(holders.size());
  const auto shifted =
      static_cast<int32_t>((holders[0] + num_shifts * shift) % num_ranks);
  if (is_elsewhere(shifted)) return shifted;
  int32_t best = -1;
  for (int32_t i = 1; i < num_ranks; ++i) {
    const int32_t rank = (holders[0] + i) % num_ranks;
    if (is_elsewhere(rank) && (best < 0 || num_kept[rank] < num_kept[best])) {
      best = rank;
    }
  }
  return best;
}

// The next holder of a part where all hosts have one: the next rank of the last
// holder's host that is none, or of any host.
int32_t HolderOnTheLastHost(const std::vector<std::string>& hosts,
                            const std::vector<int32_t>& holders) {
  const auto num_ranks = static_cast<int32_t>(hosts.size());
  const int32_t last = holders.back();
  int32_t best = -1;
  for (int32_t i = 1; i < num_ranks; ++i) {
    const int32_t rank = (last + i) % num_ranks;
    if (std::find(holders.begin(), holders.end(), rank) != holders.end()) {
      continue;
    }
    if (hosts[rank] == hosts[last]) return rank;
    if (best < 0) best = rank;
  }
  return best;
}

// Those holders of a part whose hashes count as votes: a partner's copy only
// where no rank's own state has its hash, since it may have been made of that.
std::vector<const HeldReplica*> VotersOf(
    const std::vector<const HeldReplica*>& holders) {
  std::vector<const HeldReplica*> voters;
  std::set<uint64_t> hashes;
  for (const HeldReplica* replica : holders) {
    if (replica->kind == ReplicaKind::kCopy) continue;
    voters.push_back(replica);
    hashes.insert(replica->hash);
  }
  for (const HeldReplica* replica : holders) {
    if (replica->kind != ReplicaKind::kCopy) continue;
    if (hashes.insert(replica->hash).second) voters.push_back(replica);
  }
  return voters;
}

}  // namespace

std::optional<ReplicaChoice> ChooseReplicas(
    const std::vector<HeldReplica>& held, int64_t least_step,
    const std::set<ReplicaSet>& refused) {
  for (const auto& [key, set] : SetsOf(held, least_step, refused)) {
    if (!set.is_whole()) continue;
    ReplicaChoice choice = {.set = {Generation{-key.second}, -key.first}};
    std::map<WorkerIdx, int32_t> num_chosen;
    for (const auto& [rank, holders] : set.holders) {
      const HeldReplica& best = **std::min_element(
          holders.begin(), holders.end(),
          [&](const HeldReplica* a, const HeldReplica* b) {
            return std::tuple(a->kind, num_chosen[a->holder], a->holder) <
                   std::tuple(b->kind, num_chosen[b->holder], b->holder);
          });
      ++num_chosen[best.holder];
      choice.parts.push_back(best);
    }
    return choice;
  }
  return std::nullopt;
}

std::optional<HolderDifference> CompareHolders(
    const std::vector<HeldReplica>& held) {
  std::map<ReplicaPart, std::vector<const HeldReplica*>> holders;
  for (const HeldReplica& replica : held) {
    holders[replica.part].push_back(&replica);
  }
  std::optional<HolderDifference> newest;
  for (const auto& [part, of_part] : holders) {  // Oldest first.
    const std::vector<const HeldReplica*> voters = VotersOf(of_part);
    std::vector<uint64_t> votes;
    for (const HeldReplica* voter : voters) votes.push_back(voter->hash);
    if (std::set<uint64_t>(votes.begin(), votes.end()).size() < 2) continue;
    const std::optional<uint64_t> majority = MajorityOf(votes);
    if (!newest.has_value() || newest->set != part.set) {
      newest = HolderDifference{.set = part.set};
    }
    for (const HeldReplica* voter : voters) {
      if (!majority.has_value()) {
        newest->undecided.insert(voter->holder);
      } else if (voter->hash != *majority) {
        newest->minority.insert(voter->holder);
      }
    }
  }
  return newest;
}

bool NeedsNewCopies(const std::vector<HeldReplica>& held, const ReplicaSet& set,
                    const std::map<WorkerIdx, std::string>& domains,
                    int32_t num_partners) {
  struct Holders {
    std::set<WorkerIdx> workers;
    std::set<std::string> domains;
  };
  std::map<Rank, Holders> holders;
  for (const HeldReplica& replica : held) {
    if (replica.part.set != set) continue;
    Holders& of_part = holders[replica.part.rank];
    const auto domain = domains.find(replica.holder);
    if (domain == domains.end()) continue;
    of_part.workers.insert(replica.holder);
    of_part.domains.insert(domain->second);
  }
  std::set<std::string> all_domains;
  for (const auto& [worker, domain] : domains) all_domains.insert(domain);
  const auto num_holders = static_cast<size_t>(1 + num_partners);
  const size_t num_workers = std::min(domains.size(), num_holders);
  const size_t num_domains = std::min(all_domains.size(), num_holders);
  return std::any_of(holders.begin(), holders.end(), [&](const auto& entry) {
    return entry.second.workers.size() < num_workers ||
           entry.second.domains.size() < num_domains;
  });
}

std::string ReasonAgainstReplicas(const std::vector<HeldReplica>& held,
                                  int64_t least_step,
                                  const std::set<ReplicaSet>& refused) {
  const auto sets = SetsOf(held, least_step, refused);
  if (sets.empty()) return "";
  const auto& [key, set] = *sets.begin();
  if (set.contradicts) {
    return absl::StrCat("parts of step ", -key.first,
                        " disagree about the number of ranks");
  }
  std::vector<int32_t> missing;
  for (int32_t rank = 0; rank < set.num_ranks; ++rank) {
    if (!set.holders.contains(Rank{rank})) missing.push_back(rank);
  }
  if (missing.empty()) return "";
  return absl::StrCat("of step ", -key.first, ", nobody has the state of rank",
                      missing.size() == 1 ? " " : "s ",
                      absl::StrJoin(missing, ", "));
}

std::string DescribeSources(const ReplicaChoice& choice) {
  constexpr std::array<const char*, 3> kNames = {"live state", "own snapshot",
                                                 "partner's copy"};
  std::array<int32_t, 3> counts = {};
  for (const HeldReplica& replica : choice.parts) {
    ++counts[static_cast<size_t>(replica.kind)];
  }
  std::vector<std::string> words;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    words.push_back(absl::StrCat(counts[i], " by ", kNames[i]));
  }
  return absl::StrCat(choice.parts.size(), " parts, ",
                      absl::StrJoin(words, ", "));
}

std::vector<std::vector<Rank>> ReplicaPartners(
    const std::vector<std::string>& hosts, int32_t num_partners) {
  const auto num_ranks = static_cast<int32_t>(hosts.size());
  std::map<std::string, int32_t> ranks_of;
  for (const std::string& host : hosts) ++ranks_of[host];
  int32_t most = 0;
  for (const auto& [host, count] : ranks_of) most = std::max(most, count);
  const auto num_hosts = static_cast<int32_t>(ranks_of.size());
  const int32_t num_holders = 1 + std::min(num_partners, num_ranks - 1);
  std::vector<std::vector<Rank>> partners(hosts.size());
  std::vector<int32_t> num_kept(hosts.size());
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    std::vector<int32_t> holders = {rank};
    for (int32_t i = 1; i < num_holders; ++i) {
      const int32_t holder =
          i < num_hosts ? HolderOnAnotherHost(hosts, holders, most, num_kept)
                        : HolderOnTheLastHost(hosts, holders);
      holders.push_back(holder);
      ++num_kept[holder];
      partners[rank].push_back(Rank{holder});
    }
  }
  return partners;
}

bool HasLiveReplicas(const Layout& layout,
                     const std::vector<std::string>& hosts,
                     int32_t num_partners) {
  if (static_cast<int32_t>(hosts.size()) != layout.num_ranks()) return false;
  const int32_t copies = layout.zero == 0 ? layout.data : layout.data_groups;
  if (copies <
      std::min(1 + num_partners, std::max<int32_t>(2, layout.num_ranks()))) {
    return false;
  }
  const int32_t num_slices = layout.data / copies;
  const size_t num_hosts =
      std::set<std::string>(hosts.begin(), hosts.end()).size();
  const size_t least_hosts =
      std::min(num_hosts, static_cast<size_t>(1 + num_partners));
  // By what a rank holds: the hosts on which its like are.
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>,
           std::set<std::string>>
      hosts_of;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    const MeshCoordinates at = CoordinatesOf(layout, Rank{rank});
    hosts_of[{at.pipeline, at.tensor, at.context, at.data % num_slices}].insert(
        hosts[rank]);
  }
  return std::all_of(hosts_of.begin(), hosts_of.end(), [&](const auto& entry) {
    return entry.second.size() >= least_hosts;
  });
}

double ReplicaSeconds(const ReplicaCost& cost) {
  if (!cost.shares_processors) return kSecondsOfEach + cost.stall_s;
  return kSecondsOfEach + CopySeconds(cost);
}

int64_t UnhurriedInterval(const ReplicaCost& cost) {
  if (cost.step_s <= 0) return 1;
  const double keep_s = CopySeconds(cost);
  const double sent_bytes =
      static_cast<double>(cost.part_bytes) * cost.num_partners;
  const double send_s =
      cost.send_bytes_per_s > 0 ? sent_bytes / cost.send_bytes_per_s : 0;
  // Between two copies there is the step that takes the second. What is done in
  // a part of a step delays none.
  const bool is_quick = keep_s + send_s <= kQuickShare * cost.step_s;
  const double steps = is_quick ? 1 : 1 + (keep_s + send_s) / cost.step_s;
  return static_cast<int64_t>(std::clamp(std::ceil(steps), 1.0, 1e9));
}

int64_t ReplicaInterval(const ReplicaCost& cost) {
  if (cost.step_s <= 0) return 1;
  const double by_cost = ReplicaSeconds(cost) / (kShareOfStep * cost.step_s);
  return std::max(UnhurriedInterval(cost), static_cast<int64_t>(std::clamp(
                                               std::ceil(by_cost), 1.0, 1e9)));
}

int64_t ReplicaBytes(int64_t part_bytes, int32_t num_copies_kept,
                     int64_t interval_steps) {
  const int64_t num_sets = interval_steps == 1 ? 3 : 2;
  return (1 + num_sets * (1 + int64_t{num_copies_kept})) * part_bytes;
}

}  // namespace millrace
