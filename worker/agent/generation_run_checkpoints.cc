// Checkpoints of a generation: when one is due, and handing its snapshot to the
// writer. See generation_run.h.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "fault/checkpoint.h"
#include "worker/agent/generation_run.h"
#include "worker/agent/parameter_hash.h"

namespace millrace {

void GenerationRun::SetCheckpointInterval(
    const protocol::CheckpointInterval& interval) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // It is sent again after a lost connection.
  if (interval.from_step() > last_interval_change_) {
    last_interval_change_ = interval.from_step();
    later_intervals_.push_back(interval);
  }
}

absl::StatusOr<int64_t> GenerationRun::CheckpointIntervalAt(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (later_intervals_.empty()) return checkpoint_interval_;
  const protocol::CheckpointInterval& next = later_intervals_.front();
  if (step < next.from_step()) return checkpoint_interval_;
  // Ranks that do not save the same steps would commit nothing.
  if (step > next.from_step()) {
    return absl::AbortedError(
        absl::StrCat("heard too late, in step ", step,
                     ", that checkpoints have another interval from step ",
                     next.from_step(), " on"));
  }
  checkpoint_interval_ = next.interval_steps();
  later_intervals_.pop_front();
  return checkpoint_interval_;
}

absl::StatusOr<std::shared_ptr<const StateSnapshot>>
GenerationRun::SnapshotOfState(const JobSpec& job) {
  // A slow disk holds up training, not the host's memory.
  RETURN_IF_ERROR(writer_->WaitUntilIdle(aborted_));
  newest_snapshot_ = nullptr;
  absl::StatusOr<std::shared_ptr<const StateSnapshot>> snapshot =
      trainer_->TakeSnapshot();
  if (absl::IsResourceExhausted(snapshot.status()) &&
      !job.resources.uses_cuda()) {
    std::vector<StatePiece> state;
    ASSIGN_OR_RETURN(state, trainer_->ReadState());
    snapshot = StateSnapshot::InPlace(state);
  }
  if (snapshot.ok()) newest_snapshot_ = *snapshot;
  return snapshot;
}

absl::Status GenerationRun::BeginCheckpoint(const JobSpec& job) {
  const double began_s = MonotonicSeconds();
  const int64_t step = trainer_->completed_steps();
  const absl::StatusOr<std::shared_ptr<const StateSnapshot>> snapshot =
      SnapshotOfState(job);
  const bool has_memory = !absl::IsResourceExhausted(snapshot.status());
  snapshot_refused_ = !has_memory;
  if (has_memory) RETURN_IF_ERROR(snapshot.status());
  const bool holds_up_training = has_memory && (*snapshot)->is_in_place();
  std::optional<std::vector<std::vector<uint64_t>>> compared;
  if (compared_.step == step) compared = compared_.checksums;
  // The object that this is called by may be gone by then.
  const auto on_written = [client = client_, message = NewMessage(), step,
                           compared = std::move(compared),
                           waited_s = MonotonicSeconds() - began_s,
                           holds_up_training](
                              const absl::StatusOr<std::string>& entry,
                              double seconds) {
    protocol::ToCoordinator written = message;
    protocol::CheckpointPart* part = written.mutable_checkpoint_part();
    part->set_step(step);
    part->set_waited_s(waited_s + (holds_up_training ? seconds : 0));
    part->set_written_s(seconds);
    if (entry.ok() && compared.has_value() && !IsPartOf(*entry, *compared)) {
      part->set_error(
          "the state changed in this process's memory after its replicas "
          "were compared and before it was written");
      part->set_memory_changed(true);
    } else if (entry.ok()) {
      part->set_entry(*entry);
    } else {
      // A full disk must not end the training; the coordinator says so
      // aloud.
      part->set_error(std::string(entry.status().message()));
    }
    client->SendReliably(std::move(written));
  };
  if (!has_memory) {
    on_written(snapshot.status(), 0);
    return absl::OkStatus();
  }
  begun_checkpoint_ = {.files = checkpoints_->files(),
                       .directory = checkpoints_->directory(),
                       .placement = checkpoints_->placement(),
                       .info = InfoOf(job, step),
                       .rank = rank_,
                       .snapshot = *snapshot,
                       .bytes_per_second = job.checkpoint.bytes_per_second,
                       .on_written = on_written};
  if (!holds_up_training) return absl::OkStatus();
  RETURN_IF_ERROR(WriteSnapshot());
  // The writer reads the trainer's own memory, so it is waited for even after
  // Abort(), which ends it soon. A disk that hangs then overruns the time to
  // tear down, and the process is replaced.
  static const std::atomic<bool> never = false;
  return writer_->WaitUntilIdle(never);
}

absl::StatusOr<uint64_t> GenerationRun::HashOfState() {
  if (newest_snapshot_ != nullptr) {
    return HashOwnedParameters(newest_snapshot_->pieces());
  }
  std::vector<StatePiece> state;
  ASSIGN_OR_RETURN(state, trainer_->ReadState());
  return HashOwnedParameters(state);
}

absl::Status GenerationRun::WriteSnapshot() {
  if (!begun_checkpoint_.has_value()) return absl::OkStatus();
  // Before the part is committed, its replicas are compared.
  RETURN_IF_ERROR(FinishHash(begun_checkpoint_->info.step));
  RETURN_IF_ERROR(writer_->Start(*std::move(begun_checkpoint_), aborted_));
  begun_checkpoint_.reset();
  return absl::OkStatus();
}

// On a GPU they are begun before the result of their step is known.
absl::Status GenerationRun::RetakeSnapshots(const JobSpec& job) {
  const int64_t step = trainer_->completed_steps();
  if (hashed_step_ == step || own_slice_step_ == step) {
    RETURN_IF_ERROR(HashState());
  }
  const bool has_replica =
      begun_replica_.has_value() && begun_replica_->info.step == step;
  if (has_replica) begun_replica_.reset();
  if (begun_checkpoint_.has_value() && begun_checkpoint_->info.step == step) {
    begun_checkpoint_.reset();
    activity_ = RankActivity::kExempt;
    RETURN_IF_ERROR(BeginCheckpoint(job));
  }
  return has_replica ? TakeReplicaNow(job) : absl::OkStatus();
}

}  // namespace millrace
