// Copies of the training state in memory: who keeps them, and recoveries from
// them; see job_runner.h.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/job_runner.h"

namespace millrace {
namespace {

// A set from which so many generations began and did not come to train is not
// tried again.
constexpr int kMostTries = 3;

ReplicaKind KindOf(protocol::ReplicaKind kind) {
  switch (kind) {
    case protocol::REPLICA_KIND_LIVE:
      return ReplicaKind::kLive;
    case protocol::REPLICA_KIND_OWN:
      return ReplicaKind::kOwn;
    default:
      return ReplicaKind::kCopy;
  }
}

std::string StepsTrainedAgain(int64_t count) {
  return absl::StrCat(count, count == 1 ? " step" : " steps", " trained again");
}

}  // namespace

absl::StatusOr<ReplicaPlan> JobRunner::ReplicaPlanOf(
    const Layout& layout, double step_s, const std::vector<std::string>& hosts,
    int64_t memory_bytes, const std::optional<SnapshotPlan>& snapshots) const {
  ReplicaFacts facts = {.step_s = step_s,
                        .hosts = hosts,
                        .are_agents = !state_->HasSeveralHosts()};
  if (snapshots.has_value()) facts.stall_s = snapshots->stall_s;
  // On a CPU the copies lie beside the arenas; what the hosts of GPUs have left
  // is seen when copies are taken.
  const int64_t device_bytes = Devices().memory_bytes;
  if (!job_.resources.uses_cuda() && device_bytes > 0) {
    facts.memory_bytes = device_bytes - memory_bytes;
  }
  return PlanReplicas(job_, layout, facts);
}

std::vector<std::string> JobRunner::FailureDomains(
    const std::vector<WorkerIdx>& members) const {
  std::vector<std::string> domains;
  for (WorkerIdx worker : members) {
    domains.push_back(state_->HasSeveralHosts()
                          ? state_->HostOf(worker)
                          : absl::StrCat("agent ", state_->AgentOf(worker)));
  }
  return domains;
}

void JobRunner::AddReplicas(protocol::StartGeneration* start) {
  if (!replica_plan_.has_value()) {
    // The plan is of an earlier coordinator, which has warned and refused.
    const absl::StatusOr<ReplicaPlan> replicas = ReplicaPlanOf(
        plan_->layout, plan_->step_time_s, FailureDomains(plan_->members),
        plan_->memory_bytes, plan_->snapshots);
    replica_plan_ = replicas.ok() ? *replicas : ReplicaPlan{};
  }
  start->set_replica_interval_steps(replica_plan_->interval_steps);
  std::map<std::string, int32_t> numbers;
  for (const std::string& domain : FailureDomains(plan_->members)) {
    const auto next = static_cast<int32_t>(numbers.size());
    start->add_failure_domains(numbers.emplace(domain, next).first->second);
  }
}

std::vector<std::vector<std::string>> JobRunner::PartnerAddresses() const {
  std::vector<std::vector<std::string>> addresses;
  if (!plan_.has_value() || !replica_plan_.has_value() ||
      replica_plan_->interval_steps == 0) {
    return addresses;
  }
  for (const std::vector<Rank>& partners : replica_plan_->partners) {
    addresses.emplace_back();
    for (const Rank partner : partners) {
      const auto found = replicas_.find(plan_->members[ToInt(partner)]);
      if (found != replicas_.end()) {
        addresses.back().push_back(found->second.address());
      }
    }
  }
  return addresses;
}

bool JobRunner::IsDistrusted(const ReplicaSet& set) const {
  const LoggedJob& job = log_->job();
  return set.generation < job.distrusted_memory ||
         (set.generation == job.distrusted_memory &&
          set.step > job.trusted_step);
}

int64_t JobRunner::DistrustMemory(Generation generation, int64_t before) {
  const bool has_agreed =
      agreed_.generation == generation && agreed_.step < before;
  const int64_t trusted_step = has_agreed ? agreed_.step : -1;
  MustSucceed([&] { return log_->MemoryDistrusted(generation, trusted_step); });
  return trusted_step;
}

void JobRunner::CompareHeldReplicas() {
  while (const auto differ = CompareHolders(HeldReplicas())) {
    const bool outvoted = differ->undecided.empty();
    const std::set<WorkerIdx>& suspects =
        outvoted ? differ->minority : differ->undecided;
    std::vector<std::string> names;
    for (const WorkerIdx worker : suspects) {
      names.push_back(state_->NameOf(worker));
    }
    const int64_t trusted_step =
        DistrustMemory(differ->set.generation, differ->set.step);
    const std::string detail = absl::StrCat(
        "the state after step ", differ->set.step, ", which ",
        absl::StrJoin(names, ", "), suspects.size() == 1 ? " holds" : " hold",
        outvoted ? " in memory, differs from what most others hold of it"
                 : " in memory, differs, with no majority",
        "; no copy of it is trusted", BackToText(trusted_step));
    progress_->Line(absl::StrCat("wrong numbers: ", detail));
    output_->Event(
        {.event = "replicas_differ",
         .generation = ToInt(differ->set.generation),
         .step = differ->set.step,
         .rank = ToInt(state_->RankOf(*suspects.begin()).value_or(Rank{-1})),
         .detail = detail});
  }
}

std::vector<HeldReplica> JobRunner::HeldReplicas() const {
  std::vector<HeldReplica> held;
  for (const auto& [worker, of_worker] : replicas_) {
    const auto session = worker_sessions_.find(worker);
    if (session == worker_sessions_.end() ||
        !peers_.contains(session->second)) {
      continue;  // It is away.
    }
    for (const protocol::HeldReplica& part : of_worker.parts()) {
      if (IsDistrusted({Generation{part.generation()}, part.step()})) continue;
      held.push_back({.holder = worker,
                      .part = {{Generation{part.generation()}, part.step()},
                               Rank{part.rank()}},
                      .num_ranks = part.num_ranks(),
                      .kind = KindOf(part.kind()),
                      .bytes = part.bytes(),
                      .hash = part.hash()});
    }
  }
  return held;
}

std::optional<ReplicaChoice> JobRunner::ChooseFromMemory(
    int64_t least_step) const {
  return ChooseReplicas(HeldReplicas(), least_step, refused_replicas_);
}

void JobRunner::ReportIncomplete(int64_t step, const std::string& instead) {
  const std::string reason =
      ReasonAgainstReplicas(HeldReplicas(), step + 1, refused_replicas_);
  if (reason.empty() || !began_training_) return;
  progress_->Line(absl::StrCat("not from copies in memory: ", reason,
                               "; going back to ", instead));
  output_->Event({.event = "replicas_incomplete",
                  .generation = ToInt(state_->generation()),
                  .step = step,
                  .detail = absl::StrCat(reason, "; back to ", instead)});
}

int64_t JobRunner::StepOnDisk(const std::string& path,
                              const Prepared& prepared) const {
  if (path.empty()) return 0;
  if (path == CommittedPath()) return log_->job().committed_step;
  if (path == plan_->resume_path && resume_step_.has_value()) {
    return *resume_step_;
  }
  const bool is_exchanged = prepared.choice.has_value() &&
                            prepared.choice->ok() &&
                            (*prepared.choice)->path == path;
  return is_exchanged ? (*prepared.choice)->step : 0;
}

absl::Status JobRunner::AddRestore(int64_t committed_step,
                                   const Prepared& prepared,
                                   protocol::StartGeneration* start) {
  source_.clear();
  restore_s_ = 0;
  start_parts_.clear();
  restored_set_.reset();
  const int64_t expected_step = committed_step >= 0
                                    ? committed_step
                                    : StepOnDisk(plan_->resume_path, prepared);
  std::optional<ReplicaChoice> choice = ChooseFromMemory(expected_step);
  if (!choice.has_value()) {
    ASSIGN_OR_RETURN(const std::string path,
                     RestorePath(committed_step, prepared));
    const int64_t step = StepOnDisk(path, prepared);
    // Where the newest checkpoint is damaged, memory may have more than the
    // one before.
    if (step < expected_step) choice = ChooseFromMemory(step + 1);
    if (!choice.has_value()) {
      const std::string source = path.empty() ? "the beginning" : path;
      start->set_restore_path(path);
      ReportIncomplete(step, source);
      NoteSource(source, step);
      return absl::OkStatus();
    }
  }
  restored_set_ = choice->set;
  if (++replica_tries_[choice->set] >= kMostTries) {
    refused_replicas_.insert(choice->set);
  }
  protocol::ReplicaRestore* restore = start->mutable_replica_restore();
  restore->set_generation(ToInt(choice->set.generation));
  restore->set_step(choice->set.step);
  std::map<WorkerIdx, std::string> domains;
  const std::vector<std::string> of_members = FailureDomains(plan_->members);
  for (size_t i = 0; i < of_members.size(); ++i) {
    domains[plan_->members[i]] = of_members[i];
  }
  restore->set_renew(NeedsNewCopies(HeldReplicas(), choice->set, domains,
                                    job_.fault.replica_partners));
  int64_t num_bytes = 0;
  for (const HeldReplica& part : choice->parts) {
    restore->add_addresses(replicas_[part.holder].address());
    num_bytes += part.bytes;
  }
  NoteSource(absl::StrCat("memory (", DescribeSources(*choice), ", ",
                          FormatBytes(num_bytes), ")"),
             choice->set.step);
  return absl::OkStatus();
}

void JobRunner::NoteSource(const std::string& source, int64_t step) {
  if (!began_training_) return;
  const int64_t again = std::max<int64_t>(0, output_->last_step() - step);
  source_ = absl::StrCat("from ", source, ", ", StepsTrainedAgain(again));
}

void JobRunner::AddStart(const protocol::GenerationRunning& running) {
  restore_s_ = std::max(restore_s_, running.restore_s());
  for (const protocol::StartPart& part : running.parts()) {
    const auto found = std::find_if(
        start_parts_.begin(), start_parts_.end(),
        [&](const auto& entry) { return entry.first == part.name(); });
    if (found == start_parts_.end()) {
      start_parts_.emplace_back(part.name(), part.seconds());
    } else {
      found->second = std::max(found->second, part.seconds());
    }
  }
}

void JobRunner::ReportSource(int64_t step) {
  replica_tries_.clear();
  restored_set_.reset();
  if (source_.empty()) return;
  progress_->Line(absl::StrCat("state of step ", step, " ", source_, ", in ",
                               FormatSeconds(restore_s_)));
  std::vector<std::string> parts;
  for (const auto& [name, seconds] : start_parts_) {
    parts.push_back(absl::StrCat(name, " ", FormatSeconds(seconds)));
  }
  output_->Event(
      {.event = "restored",
       .generation = ToInt(state_->generation()),
       .step = step,
       .detail = absl::StrCat(
           source_, ", in ", FormatSeconds(restore_s_),
           "; each part on the slowest rank: ", absl::StrJoin(parts, ", "))});
  source_.clear();
}

void JobRunner::OnReplicaStep(Rank rank, const protocol::StepDone& step) {
  if (step.replica_wait_s() > 0) {
    output_->AddCheckpoint(rank, step.replica_wait_s());
  }
  if (step.replica_error().empty()) return;
  output_->Event({.event = "replica_failed",
                  .generation = ToInt(state_->generation()),
                  .step = step.step(),
                  .rank = ToInt(rank),
                  .detail = step.replica_error()});
  progress_->Line(absl::StrCat(
      "rank ", ToInt(rank),
      " has no new copy of its state in memory: ", step.replica_error()));
}

}  // namespace millrace
