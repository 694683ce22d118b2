// A rank's reports of itself while it trains: how far it is, steps whose
// numbers are bad, hashes of its state. Part of GenerationRun.

#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "fault/bad_steps.h"
#include "fault/checkpoint.h"
#include "fault/replica_check.h"
#include "worker/agent/generation_run.h"
#include "worker/agent/parameter_hash.h"

namespace millrace {

void GenerationRun::AddProgress(protocol::ToCoordinator* heartbeat) const {
  if (message_.purpose() != protocol::GENERATION_PURPOSE_TRAIN) return;
  heartbeat->set_generation(ToInt(generation_));
  protocol::Progress* progress =
      heartbeat->mutable_heartbeat()->mutable_progress();
  const RankActivity activity =
      progress_.locks_memory.load(std::memory_order_relaxed)
          ? RankActivity::kExempt
          : activity_.load(std::memory_order_relaxed);
  // The values of both enumerations are the same.
  progress->set_activity(static_cast<protocol::RankActivity>(activity));
  progress->set_step(progress_.step.load(std::memory_order_relaxed));
  for (const auto& lane : progress_.completed) {
    progress->add_completed(lane.load(std::memory_order_relaxed));
  }
}

absl::Status GenerationRun::RepeatBadStep(const JobSpec& job,
                                          StepResult* result) {
  // It takes longer than others, as a first step does.
  activity_ = RankActivity::kFirstStep;
  // HashState() below begins the next hashes of slices.
  RETURN_IF_ERROR(HashGathered(result->step));
  StepRequest request = {.vote_to_stop = votes_to_stop()};
  CheckedStep checked;
  ASSIGN_OR_RETURN(checked, trainer_->RepeatStep(request));
  protocol::ToCoordinator message = NewMessage();
  protocol::BadStep* bad = message.mutable_bad_step();
  bad->set_step(result->step);
  bad->set_passed(checked.result.finite);
  bad->set_origin(checked.origin);
  bad->set_largest_amax(checked.largest_amax);
  bad->set_largest_in(checked.largest_in);
  if (!checked.result.finite &&
      CanExchangeSamples(trainer_->program().layout)) {
    request.sample_shift = 1;
    ASSIGN_OR_RETURN(checked, trainer_->RepeatStep(request));
    bad->mutable_elsewhere()->set_passed(checked.result.finite);
    bad->mutable_elsewhere()->set_origin(checked.origin);
  }
  *result = std::move(checked.result);
  // Parameters that are not numbers have no op that made them. If one replica
  // alone has them, its hash differs. The hash is sent before the report.
  if (!result->finite) {
    RETURN_IF_ERROR(HashState());
    RETURN_IF_ERROR(FinishHash(trainer_->completed_steps()));
  }
  client_->SendReliably(std::move(message));
  return result->finite ? RetakeSnapshots(job) : absl::OkStatus();
}

absl::Status GenerationRun::HashState() {
  const Layout& layout = trainer_->program().layout;
  RETURN_IF_ERROR(HashOwnSlice());
  if (!HasReplicas(layout)) return absl::OkStatus();
  // The trainer keeps one hash. Where this rank waited for the result of that
  // step, the steps known since did not tell.
  if (hashed_step_.has_value() && *hashed_step_ < trainer_->completed_steps()) {
    RETURN_IF_ERROR(FinishHash(*hashed_step_));
  }
  ASSIGN_OR_RETURN(const bool is_begun, trainer_->BeginReplicaHash());
  if (is_begun) {
    hashed_step_ = trainer_->completed_steps();
    return absl::OkStatus();
  }
  std::vector<StatePiece> state;
  ASSIGN_OR_RETURN(state, trainer_->ReadState());
  state = ReplicatedPieces(state);
  // One pass over the memory makes the hash and what a checkpoint is held
  // against, so that no bit can flip between the two.
  const std::vector<std::vector<uint64_t>> checksums = ChecksumsOf(state);
  compared_ = {.step = trainer_->completed_steps()};
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].is_owner) compared_.checksums.push_back(checksums[i]);
  }
  SendStateHash(compared_.step, HashReplica(checksums));
  return absl::OkStatus();
}

absl::Status GenerationRun::HashOwnSlice() {
  ASSIGN_OR_RETURN(const bool is_begun, trainer_->HashOwnSlice());
  if (is_begun) own_slice_step_ = trainer_->completed_steps();
  return absl::OkStatus();
}

absl::Status GenerationRun::HashGathered(int64_t known_step) {
  if (gathered_step_.has_value()) RETURN_IF_ERROR(SendSliceHashes());
  // A bad step hashes the slice for the step after it, which has not run yet.
  if (!own_slice_step_.has_value() ||
      *own_slice_step_ == trainer_->completed_steps()) {
    return absl::OkStatus();
  }
  const int64_t own_slice_step = *std::exchange(own_slice_step_, std::nullopt);
  // A step that was left out has gathered nothing.
  if (left_out_) return absl::OkStatus();
  RETURN_IF_ERROR(trainer_->HashGathered());
  gathered_step_ = own_slice_step + 1;
  return known_step >= *gathered_step_ ? SendSliceHashes() : absl::OkStatus();
}

absl::Status GenerationRun::SendSliceHashes() {
  std::vector<uint64_t> hashes;
  ASSIGN_OR_RETURN(hashes, trainer_->SliceHashes());
  protocol::ToCoordinator message = NewMessage();
  protocol::StateHash* sent = message.mutable_state_hash();
  sent->set_step(*std::exchange(gathered_step_, std::nullopt) - 1);
  for (const uint64_t hash : hashes) sent->add_gathered(hash);
  client_->SendReliably(std::move(message));
  return absl::OkStatus();
}

absl::Status GenerationRun::FinishHash(int64_t known_step) {
  if (!hashed_step_.has_value() || known_step < *hashed_step_) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const uint64_t hash, trainer_->FinishReplicaHash());
  SendStateHash(*hashed_step_, hash);
  hashed_step_.reset();
  return absl::OkStatus();
}

void GenerationRun::SendStateHash(int64_t step, uint64_t hash) {
  protocol::ToCoordinator message = NewMessage();
  message.mutable_state_hash()->set_step(step);
  message.mutable_state_hash()->set_hash(hash);
  client_->SendReliably(std::move(message));
}

}  // namespace millrace
