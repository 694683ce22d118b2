// Copies of the training state in memory: a generation takes them, restores
// from them, and leaves what it holds when it fails. See generation_run.h.

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "fault/replicas.h"
#include "worker/agent/generation_run.h"

namespace millrace {
namespace {

// Above it, each part is held by its own rank and its partners alone.
constexpr int64_t kMostBytesKept = kGiB;
constexpr absl::Duration kSnapshotPoll = absl::Milliseconds(2);
// An order goes to all ranks at once, and comes to some while others have taken
// the step that it stops.
constexpr double kOrderSeconds = 1;

// Returns the ranks whose parts this rank keeps when its generation has failed:
// itself, the ranks that it is a partner of among all that hold the same, and
// the others too if all of their parts are small.
std::vector<Rank> RanksToKeep(
    Rank own, const std::map<Rank, std::vector<StatePiece>>& parts,
    const protocol::StartGeneration& message, int32_t num_partners) {
  std::vector<Rank> alike;
  std::vector<std::string> hosts;
  Rank own_idx{};
  int64_t num_bytes = 0;
  for (const auto& [rank, pieces] : parts) {
    if (rank == own) own_idx = Rank{static_cast<int32_t>(alike.size())};
    alike.push_back(rank);
    hosts.push_back(ToInt(rank) < message.failure_domains_size()
                        ? absl::StrCat(message.failure_domains(ToInt(rank)))
                        : "");
    for (const StatePiece& piece : pieces) {
      num_bytes +=
          (piece.end - piece.begin) * static_cast<int64_t>(sizeof(float));
    }
  }
  const auto partners = ReplicaPartners(hosts, num_partners);
  std::vector<Rank> kept = {own};
  std::vector<Rank> others;
  for (size_t i = 0; i < alike.size(); ++i) {
    if (alike[i] == own) continue;
    const bool is_partner = std::find(partners[i].begin(), partners[i].end(),
                                      own_idx) != partners[i].end();
    (is_partner ? kept : others).push_back(alike[i]);
  }
  if (num_bytes <= kMostBytesKept) {
    kept.insert(kept.end(), others.begin(), others.end());
  }
  return kept;
}

}  // namespace

absl::StatusOr<int64_t> GenerationRun::LoadFromMemory(
    const LoadableState& state) {
  const protocol::ReplicaRestore& restore = message_.replica_restore();
  const ReplicaSet set = {Generation{restore.generation()}, restore.step()};
  const absl::Status filled = replica_client_->Fill(
      set, {restore.addresses().begin(), restore.addresses().end()},
      replicas_->address(), replicas_->store(), state.pieces,
      state.target.get());
  if (!filled.ok()) {
    // Any error of the parts themselves means that others must do; one of the
    // network may have passed by then.
    const bool may_pass = absl::IsUnavailable(filled) ||
                          absl::IsDeadlineExceeded(filled) ||
                          absl::IsAborted(filled);
    return absl::Status(may_pass ? filled.code() : absl::StatusCode::kDataLoss,
                        absl::StrCat("the state of step ", set.step,
                                     " in memory: ", filled.message()));
  }
  return set.step;
}

absl::Status GenerationRun::BeginReplicas(const JobSpec& job) {
  const int64_t step = trainer_->completed_steps();
  replicas_->store().DropAfter(step);
  if (message_.replica_interval_steps() == 0 || step == 0) {
    return absl::OkStatus();
  }
  if (message_.has_replica_restore() && !message_.replica_restore().renew()) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(TakeReplicaNow(job));
  return KeepReplica(step);
}

absl::Status GenerationRun::AwaitReplica(int64_t step) {
  const int64_t interval = message_.replica_interval_steps();
  if (interval == 0 || (step % interval != 0 && (step + 1) % interval != 0)) {
    return absl::OkStatus();
  }
  const double began_s = MonotonicSeconds();
  // The copy before may take longer than many steps. TakeStep() says anew what
  // the rank does.
  activity_ = RankActivity::kExempt;
  RETURN_IF_ERROR(replicas_->WaitUntilIdle(aborted_));
  replica_wait_s_ += MonotonicSeconds() - began_s;
  return absl::OkStatus();
}

absl::Status GenerationRun::TakeReplica(const JobSpec& job) {
  const int64_t interval = message_.replica_interval_steps();
  const int64_t step = trainer_->completed_steps();
  if (interval == 0) {
    // All ranks have begun this step, so each holds a state as new as that in
    // memory.
    if (step == first_step_) replicas_->store().Clear();
    return absl::OkStatus();
  }
  return step % interval == 0 ? TakeReplicaNow(job) : absl::OkStatus();
}

absl::Status GenerationRun::TakeReplicaNow(const JobSpec& job) {
  const int64_t step = trainer_->completed_steps();
  const double began_s = MonotonicSeconds();
  activity_ = RankActivity::kExempt;
  absl::StatusOr<std::shared_ptr<const StateSnapshot>> snapshot;
  if (begun_checkpoint_.has_value() && begun_checkpoint_->info.step == step) {
    snapshot = begun_checkpoint_->snapshot;
  } else {
    // A checkpoint of an earlier step may still be written from the newest.
    newest_snapshot_ = nullptr;
    snapshot = trainer_->TakeSnapshot();
  }
  if (absl::IsResourceExhausted(snapshot.status())) {
    replicas_->ReportError(snapshot.status());
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(snapshot.status());
  begun_replica_ = {.info = InfoOf(job, step),
                    .rank = rank_,
                    .snapshot = *std::move(snapshot),
                    .partners = {message_.replica_partners().begin(),
                                 message_.replica_partners().end()},
                    .client = replica_client_};
  replica_wait_s_ += MonotonicSeconds() - began_s;
  return absl::OkStatus();
}

absl::Status GenerationRun::KeepReplica(int64_t known_step) {
  if (!begun_replica_.has_value() || known_step < begun_replica_->info.step) {
    return absl::OkStatus();
  }
  const double began_s = MonotonicSeconds();
  if (message_.has_replica_restore() && known_step >= first_step_) {
    // All ranks have trained on from this set.
    replicas_->store().DropOlder(
        {Generation{message_.replica_restore().generation()},
         message_.replica_restore().step()});
  }
  ReplicaSnapshot snapshot = *std::move(begun_replica_);
  begun_replica_.reset();
  activity_ = RankActivity::kExempt;
  RETURN_IF_ERROR(replicas_->Keep(std::move(snapshot), aborted_));
  replica_wait_s_ += MonotonicSeconds() - began_s;
  return absl::OkStatus();
}

void GenerationRun::KeepStateOfFailure(const JobSpec& job, Trainer& trainer) {
  if (trainer.completed_steps() < first_step_ &&
      message_.has_replica_restore()) {
    return;  // The state that it began with is in memory already.
  }
  std::optional<KeptState> kept = trainer.KeepState();
  if (!kept.has_value()) return;
  keeps_state_ = true;
  // A peer may have failed between a step and its report.
  if (result_.has_value() && result_->step > reported_step_ &&
      result_->step <= kept->completed_steps) {
    ReportStep(trainer, *result_, std::nullopt);
  }
  if (kept->completed_step.has_value()) {
    ReportStep(trainer, *kept->completed_step, std::nullopt);
  }
  KeepParts(job, kept->completed_steps, kept->parts);
}

bool GenerationRun::KeepParts(
    const JobSpec& job, int64_t step,
    const std::map<Rank, std::vector<StatePiece>>& parts) {
  keeps_state_ = true;
  const CheckpointInfo info = InfoOf(job, step);
  bool has_own = true;
  for (const Rank rank :
       RanksToKeep(rank_, parts, message_, job.fault.replica_partners)) {
    const absl::Status status = replicas_->KeepNow(info, rank, parts.at(rank));
    if (status.ok()) continue;
    std::cerr << "the state of rank " << ToInt(rank) << " after step "
              << info.step << " is not kept: " << status.message() << std::endl;
    has_own = rank != rank_;  // It comes first.
    break;
  }
  keeps_state_ = false;
  return has_own;
}

absl::Status GenerationRun::Pause(const JobSpec& job) {
  // A peer's vote may have come before the order.
  for (double began_s = MonotonicSeconds();
       !stop_requested_ && !pause_requested_ && !aborted_ &&
       MonotonicSeconds() - began_s < kOrderSeconds;) {
    absl::SleepFor(kSnapshotPoll);
  }
  if (stop_requested_) return absl::OkStatus();
  // Nobody trains the steps of a checkpoint or an export again.
  RETURN_IF_ERROR(WriteSnapshot());
  RETURN_IF_ERROR(writer_->WaitUntilIdle(aborted_));
  RETURN_IF_ERROR(replicas_->WaitUntilIdle(aborted_));
  ASSIGN_OR_RETURN(is_kept_, KeepStateOfPause(job));
  protocol::ToCoordinator message = NewMessage();
  message.mutable_worker_finished()->set_paused(true);
  message.mutable_worker_finished()->set_kept(is_kept_);
  client_->SendReliably(std::move(message));
  while (!stop_requested_) {
    if (aborted_) return absl::AbortedError("the generation has ended");
    absl::SleepFor(kSnapshotPoll);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> GenerationRun::KeepStateOfPause(const JobSpec& job) {
  const int64_t step = trainer_->completed_steps();
  const std::optional<KeptState> live = trainer_->KeepState();
  if (live.has_value()) return KeepParts(job, step, live->parts);
  // A GPU's state comes to host memory by a snapshot. The last step may have
  // one already, of which no copy was made yet.
  newest_snapshot_ = nullptr;
  absl::StatusOr<std::shared_ptr<const StateSnapshot>> snapshot;
  if (begun_replica_.has_value() && begun_replica_->info.step == step) {
    snapshot = begun_replica_->snapshot;
  } else {
    snapshot = trainer_->TakeSnapshot();
  }
  if (absl::IsResourceExhausted(snapshot.status())) return false;
  RETURN_IF_ERROR(snapshot.status());
  while (true) {
    ASSIGN_OR_RETURN(const bool is_taken, (*snapshot)->IsTaken());
    if (is_taken) break;
    if (aborted_) return absl::AbortedError("the generation has ended");
    absl::SleepFor(kSnapshotPoll);
  }
  return KeepParts(job, step, {{rank_, (*snapshot)->pieces()}});
}

CheckpointInfo GenerationRun::InfoOf(const JobSpec& job, int64_t step) const {
  return {.step = step,
          .generation = generation_,
          .seed = job.training.seed,
          .samples_consumed = step * job.training.global_batch,
          .layout = FromMessage(message_.layout()),
          .job_yaml = message_.job_yaml()};
}

}  // namespace millrace
