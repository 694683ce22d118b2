// Copies of the training state in memory; see cluster.h.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace millrace {
namespace {

constexpr double kRetryS = 0.1;

}  // namespace

void Cluster::AddReplica(WorkerIdx holder, const HeldReplica& replica) {
  auto& parts = memory_[holder];
  const ReplicaSet& set = replica.part.set;
  ReplicaSet before;
  for (const auto& [part, held] : parts) {
    if (part.set.generation == set.generation &&
        part.set.step + 2 <= set.step) {
      before = std::max(before, part.set);
    }
  }
  std::erase_if(parts,
                [&](const auto& entry) { return entry.first.set < before; });
  HeldReplica held = replica;
  held.holder = holder;
  parts[replica.part] = held;
}

bool Cluster::IsAtWork(WorkerIdx worker, Generation generation) const {
  return std::any_of(
      workers_.begin(), workers_.end(), [&](const SimulatedWorker& other) {
        return other.process.worker == worker && IsResponsive(other) &&
               IsReachable(other.agent_idx) && other.given == generation &&
               other.seen == generation;
      });
}

void Cluster::TakeReplicas(Generation generation, int64_t step) {
  const std::vector<WorkerIdx>& ranks = generation_members_[ToInt(generation)];
  const std::vector<std::vector<Rank>> partners =
      ReplicaPartners(HostsOf(ranks), options_.replica_partners);
  sending_ = generation;
  num_sending_ = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const HeldReplica replica = {
        .part = {{generation, step}, Rank{static_cast<int32_t>(rank)}},
        .num_ranks = static_cast<int32_t>(ranks.size()),
        .kind = ReplicaKind::kOwn};
    AddReplica(ranks[rank], replica);
    for (const Rank partner : partners[rank]) {
      ++num_sending_;
      At(Random(options_.most_copy_s / 40, options_.most_copy_s),
         [this, replica, partner = ranks[ToInt(partner)]] {
           ArriveAtPartner(replica, partner);
         });
    }
  }
  if (num_sending_ == 0) {
    whole_ = {generation, step};
    num_absences_ = 0;
    num_absences_survived_ = NumAbsencesSurvived(ranks);
  }
}

void Cluster::Pause(Generation generation, int64_t step) {
  const std::vector<WorkerIdx>& ranks = generation_members_[ToInt(generation)];
  bool all_kept = true;
  for (size_t i : Members(generation)) {
    SimulatedWorker& worker = workers_[i];
    const auto rank =
        std::find(ranks.begin(), ranks.end(), worker.process.worker) -
        ranks.begin();
    const bool kept = Random(0, 1) >= options_.unkept_probability;
    all_kept = all_kept && kept;
    worker.paused = true;
    if (kept) {
      const HeldReplica replica = {
          .holder = worker.process.worker,
          .part = {{generation, step}, Rank{static_cast<int32_t>(rank)}},
          .num_ranks = static_cast<int32_t>(ranks.size()),
          .kind = ReplicaKind::kLive};
      memory_[replica.holder][replica.part] = replica;
    }
    PostFromWorker(i, WorkerPaused{worker.process.worker, generation, kept});
  }
  if (!all_kept) return;
  ++num_pauses_;
  whole_ = {generation, step};
  num_absences_ = NumHostsAway(generation);
  num_absences_survived_ = 0;
}

void Cluster::ArriveAtPartner(const HeldReplica& replica, WorkerIdx partner) {
  const Generation generation = replica.part.set.generation;
  const WorkerIdx sender =
      generation_members_[ToInt(generation)][ToInt(replica.part.rank)];
  if (sending_ != generation || log_.generation != generation) return;
  if (!IsAtWork(sender, generation) || !IsAtWork(partner, generation)) {
    // A network that was cut may come back; a generation that ended does not.
    At(kRetryS,
       [this, replica, partner] { ArriveAtPartner(replica, partner); });
    return;
  }
  HeldReplica copy = replica;
  copy.kind = ReplicaKind::kCopy;
  AddReplica(partner, copy);
  if (--num_sending_ > 0) return;
  whole_ = replica.part.set;
  num_absences_ = NumHostsAway(generation);  // Since they sent theirs.
  num_absences_survived_ =
      NumAbsencesSurvived(generation_members_[ToInt(generation)]);
}

std::vector<std::string> Cluster::HostsOf(
    const std::vector<WorkerIdx>& workers) const {
  std::vector<std::string> hosts;
  for (WorkerIdx worker : workers) {
    hosts.push_back(absl::StrCat(HostOf(worker)));
  }
  return hosts;
}

int32_t Cluster::NumAbsencesSurvived(
    const std::vector<WorkerIdx>& workers) const {
  const std::vector<std::string> hosts = HostsOf(workers);
  const auto num_hosts = static_cast<int32_t>(
      std::set<std::string>(hosts.begin(), hosts.end()).size());
  // A single host is the coordinator's, which tests with copies do not lose.
  return num_hosts == 1 ? 1
                        : std::min(options_.replica_partners, num_hosts - 1);
}

int32_t Cluster::NumHostsAway(Generation generation) const {
  std::set<int32_t> away;
  for (WorkerIdx worker : generation_members_.at(ToInt(generation))) {
    const int32_t agent_idx = HostOf(worker);
    if (!IsReachable(agent_idx)) away.insert(agent_idx);
  }
  return static_cast<int32_t>(away.size());
}

void Cluster::KeepLiveState(const SimulatedWorker& worker) {
  if (options_.num_flips_and_kills == 0 ||
      worker.phase != WorkerPhase::kRunning) {
    return;
  }
  const std::vector<WorkerIdx>& ranks =
      generation_members_[ToInt(worker.given)];
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const ReplicaPart part = {{worker.given, worker.steps},
                              Rank{static_cast<int32_t>(rank)}};
    memory_[worker.process.worker][part] = {
        .holder = worker.process.worker,
        .part = part,
        .num_ranks = static_cast<int32_t>(ranks.size()),
        .kind = ReplicaKind::kLive,
        .hash = worker.flipped
                    ? 1 + static_cast<uint64_t>(ToInt(worker.process.worker))
                    : 0};
  }
}

void Cluster::ExpectUnflipped(const ReplicaChoice& choice,
                              const std::vector<HeldReplica>& held) {
  for (const HeldReplica& chosen : choice.parts) {
    for (const HeldReplica& other : held) {
      if (other.part == chosen.part && other.hash != chosen.hash) {
        Violate("restored a part of which another worker holds other bits");
      }
    }
  }
}

// The state machine has cleared all workers, so all that is held is known.
int64_t Cluster::ChooseStep(const BeginGeneration& action) {
  const int64_t on_disk = std::max<int64_t>(action.restore_step, 0);
  std::vector<HeldReplica> held;
  for (const SimulatedWorker& worker : workers_) {
    // Those have told in clearing, or in joining a new coordinator while they
    // were idle. Whoever has died since fails the generation.
    const bool has_told =
        worker.seen == action.generation ||
        (worker.phase == WorkerPhase::kIdle && IsResponsive(worker) &&
         IsReachable(worker.agent_idx));
    if (!has_told) continue;
    for (const auto& [part, replica] : memory_[worker.process.worker]) {
      held.push_back(replica);
    }
  }
  const std::vector<HeldReplica> all_held = held;
  const auto leave_out_distrusted = [&] {
    std::erase_if(held, [&](const HeldReplica& replica) {
      return replica.part.set.generation <= distrusted_;
    });
  };
  leave_out_distrusted();
  while (const auto differ = CompareHolders(held)) {
    ++num_differing_;
    distrusted_ = differ->set.generation;
    leave_out_distrusted();
  }
  const auto choice = ChooseReplicas(held, on_disk, {});
  if (choice.has_value()) ExpectUnflipped(*choice, all_held);
  std::map<WorkerIdx, std::string> domains;
  for (WorkerIdx worker : action.members) {
    domains[worker] = absl::StrCat(HostOf(worker));
  }
  renews_ = !choice.has_value() || NeedsNewCopies(held, choice->set, domains,
                                                  options_.replica_partners);
  // It is held as a set is that has just arrived everywhere.
  if (options_.replica_interval > 0 && !renews_ && choice->set == whole_) {
    num_absences_ = NumHostsAway(action.generation);
    num_absences_survived_ = NumAbsencesSurvived(action.members);
  }
  const int64_t step = choice.has_value() ? choice->set.step : on_disk;
  num_back_to_disk_ += !choice.has_value() && step < whole_.step;
  if (num_absences_ <= num_absences_survived_ && step < whole_.step) {
    Violate(absl::StrCat(
        "went back to step ", step, " though step ", whole_.step,
        " was copied, and ", num_absences_,
        " hosts were away since: ", ReasonAgainstReplicas(held, step + 1, {})));
  }
  return step;
}

}  // namespace millrace
