// Checkpoints, and how the job ends; see job_state.h.

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/job_state.h"

namespace millrace {

void JobState::On(const PartWritten& event) {
  if (event.generation != generation_ || event.step <= committed_step_ ||
      !IsActive(event.worker)) {
    return;
  }
  if (!event.error.empty()) {
    failed_steps_.insert(event.step);
    last_commit_error_ = absl::StrCat(NameOf(event.worker), ": ", event.error);
    FinishIfDone();
    return;
  }
  std::set<WorkerIdx>& written = parts_[event.step];
  if (!written.insert(event.worker).second) return;
  if (static_cast<int32_t>(written.size()) == NumMembers()) {
    committing_.emplace(generation_, event.step);
    actions_.emplace_back(CommitStep{generation_, event.step});
  }
}

void JobState::OnCommitAnswer(Generation generation, int64_t step) {
  committing_.erase({generation, step});
  if (!committing_.empty()) return;
  gives_up_commits_ = false;
  BeginIfAllCleared();
  EndPauseIfAllStopped();
}

void JobState::GiveUpCommitsFor(const std::string& reason) {
  if (committing_.empty() || gives_up_commits_) return;
  gives_up_commits_ = true;
  actions_.emplace_back(GiveUpCommits{reason});
}

void JobState::On(const StepCommitted& event) {
  // Also one of a generation that has failed since: it is on disk.
  committed_step_ = std::max(committed_step_, event.step);
  restarts_ = 0;
  std::erase_if(parts_, [&](const auto& entry) {
    return entry.first <= committed_step_;
  });
  actions_.emplace_back(Report{.event = "checkpoint_committed",
                               .step = event.step,
                               .generation = ToInt(event.generation)});
  OnCommitAnswer(event.generation, event.step);
  FinishIfDone();
}

void JobState::On(const CommitFailed& event) {
  if (event.generation == generation_) {
    failed_steps_.insert(event.step);
    last_commit_error_ = event.reason;
  }
  OnCommitAnswer(event.generation, event.step);
  FinishIfDone();
}

void JobState::On(const RestoredEarlier& event) {
  // Lower, so that the steps trained again are committed again.
  committed_step_ = std::min(committed_step_, event.step);
}

void JobState::On(const NothingToRestore& event) {
  // A job that has not begun loses nothing: it cannot work as it is.
  const bool has_begun = has_trained_ || committed_step_ >= 0;
  End(has_begun ? Verdict::kFailed : Verdict::kRefused, event.reason);
}

void JobState::On(const WorkerDone& event) {
  if (event.generation != generation_ || !IsActive(event.worker)) return;
  done_.insert(event.worker);
  done_steps_ = event.steps;
  done_stopped_ = event.stopped;
  done_saved_ = event.saved;
  FinishIfDone();
  EndPauseIfAllStopped();
}

void JobState::On(const WorkerPaused& event) {
  if (event.generation != generation_ || !IsActive(event.worker)) return;
  paused_[event.worker] = event.kept;
  EndPauseIfAllStopped();
}

void JobState::EndPauseIfAllStopped() {
  if (phase_ != Phase::kTraining || paused_.empty() || !committing_.empty()) {
    return;
  }
  bool all_kept = true;
  for (WorkerIdx worker : members_) {
    const auto paused = paused_.find(worker);
    if (paused == paused_.end() && !done_.contains(worker)) return;
    all_kept = all_kept && paused != paused_.end() && paused->second;
  }
  if (static_cast<int32_t>(done_.size()) == NumMembers()) return;
  if (all_kept && !stop_requested_) {
    was_paused_ = true;
    Regroup();
  } else {
    // The state goes on in a checkpoint.
    actions_.emplace_back(TellWorkersToStop{});
  }
}

void JobState::FinishIfDone() {
  if (phase_ != Phase::kTraining ||
      static_cast<int32_t>(done_.size()) != NumMembers() ||
      !committing_.empty()) {
    return;
  }
  // Stopped so that all can plan anew, perhaps by an earlier coordinator.
  if (done_stopped_ && !stop_requested_) {
    const bool awaits_commit = done_saved_ && committed_step_ < done_steps_ &&
                               restored_steps_ != done_steps_ &&
                               !failed_steps_.contains(done_steps_);
    if (!awaits_commit) Regroup();
    return;
  }
  if (failed_steps_.contains(done_steps_)) {
    End(Verdict::kFailed,
        absl::StrCat(
            done_stopped_ ? "stopped by request" : "all steps are done",
            ", but the last checkpoint could not be written: ",
            last_commit_error_));
    return;
  }
  // A state that was restored and not trained further needs no new checkpoint.
  if (done_saved_ && committed_step_ < done_steps_ &&
      restored_steps_ != done_steps_) {
    return;
  }
  if (done_stopped_) {
    End(requeue_ ? Verdict::kRequeued : Verdict::kStopped,
        done_saved_ ? "stopped by request after a checkpoint"
                    : "stopped by request, without a checkpoint: the hosts "
                      "share no folder for one");
  } else {
    End(Verdict::kFinished, "");
  }
}

void JobState::On(const StopRequested& event) {
  if (event.now) {
    End(Verdict::kBroken,
        "stopped at once; steps since the last checkpoint "
        "are lost");
    return;
  }
  requeue_ = requeue_ || event.requeue;
  if (stop_requested_) return;
  stop_requested_ = true;
  actions_.emplace_back(
      Report{.event = "stop_requested",
             .detail = requeue_ ? "to be started again" : ""});
  const Verdict before_training =
      requeue_ ? Verdict::kRequeued : Verdict::kStopped;
  switch (phase_) {
    case Phase::kRejoining:
      break;
    case Phase::kStarting:
    case Phase::kPlanning:
      if (purpose_ == Purpose::kTrain && HasStateToKeep()) break;
      End(before_training, ReasonOfEarlyStop());
      break;
    case Phase::kTraining:
      actions_.emplace_back(TellWorkersToStop{});
      break;
    default:
      End(before_training,
          refusal_.empty() ? ReasonOfEarlyStop()
                           : absl::StrCat("stopped while it waited for hosts, "
                                          "without which it cannot go on: ",
                                          refusal_));
  }
}

std::string JobState::ReasonOfEarlyStop() const {
  return has_trained_ ? "stopped in a recovery, before the first checkpoint: "
                        "the steps since the start are lost"
                      : "stopped before training";
}

void JobState::End(Verdict verdict, const std::string& reason) {
  phase_ = Phase::kEnded;
  actions_.emplace_back(
      EndJob{verdict, reason, std::max(done_steps_, committed_step_)});
}

}  // namespace millrace
