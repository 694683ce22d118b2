// How checkpoints are committed: on a thread of its own, so that a disk that
// hangs and a host that vanished hold up nothing but the commit. Part of
// JobRunner (job_runner.h).

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/job_runner.h"
#include "coordinator/replica_plan.h"
#include "fault/checkpoint.h"

namespace millrace {
namespace {

// Before a new interval holds: ranks hear of it within a moment, and are at
// most a few steps ahead of what they have reported.
constexpr int64_t kLeastNoticeSteps = 10;
constexpr double kLeastNoticeSeconds = 3;
// For an earlier coordinator, which ends well before if it has no majority
// (LogCopiesOptions).
constexpr absl::Duration kLockLimit = absl::Seconds(60);
constexpr absl::Duration kLockPoll = absl::Milliseconds(100);

// How many checkpoints stay: as many as the job asks for, and all since the
// oldest one that is to be exported.
int32_t CheckpointsToKeep(FileSystem& files, const std::string& directory,
                          int32_t asked, std::optional<int64_t> oldest,
                          int64_t step) {
  if (!oldest.has_value()) return asked;
  const auto entries = ListCheckpoints(files, directory);
  int32_t num_needed = 1;  // This step's.
  if (entries.ok()) {
    for (const CheckpointEntry& entry : *entries) {
      num_needed += entry.step >= *oldest && entry.step < step;
    }
  }
  return std::max(num_needed, asked);
}

absl::StatusOr<std::string> PathOfStep(FileSystem& files,
                                       const std::string& directory,
                                       int64_t step) {
  const absl::StatusOr<std::vector<CheckpointEntry>> listed =
      ListCheckpoints(files, directory);
  if (!listed.ok()) return listed.status();
  for (const CheckpointEntry& entry : *listed) {
    if (entry.step == step) return entry.path;
  }
  return absl::InternalError(absl::StrCat("the checkpoint of step ", step,
                                          " is gone from ", directory,
                                          " right after its commit"));
}

}  // namespace

void JobRunner::LockCheckpoints(std::function<bool()> waits, Locked then) {
  folder_work_->Add([this, waits = std::move(waits),
                     then = std::move(then)]() -> SideWork::Work {
    if (checkpoint_lock_ != nullptr || options_.profile_only) {
      then(absl::OkStatus());
      return nullptr;
    }
    return [this, waits, then, directory = CheckpointDirectory(),
            owner =
                absl::StrCat("the job of ", options_.run, " (", probe_, ")",
                             options_.term > 0
                                 ? absl::StrCat(", coordinator ", options_.term)
                                 : ""),
            stop = lock_stop_.get_token()]() -> SideWork::Then {
      absl::StatusOr<std::shared_ptr<CheckpointLock>> lock;
      do {
        lock = CheckpointLock::Take(directory, owner,
                                    /*needs_lock=*/options_.term > 0,
                                    &stored_files_->objects(), stop);
        if (!absl::IsFailedPrecondition(lock.status()) || waits == nullptr) {
          break;
        }
        absl::SleepFor(kLockPoll);
      } while (waits());
      return [this, then, lock] {
        if (lock.ok()) checkpoint_lock_ = *lock;
        then(lock.status());
      };
    };
  });
}

void JobRunner::Do(const CommitStep& action) {
  const auto commit = std::make_shared<Commit>();
  commit->generation = action.generation;
  commit->step = action.step;
  commit->layout = plan_->layout;
  commit->parts = parts_[action.step];
  commits_.push_back(commit);
  if (options_.taken_over_from >= 0 && awaited_until_ == absl::InfinitePast()) {
    awaited_until_ = MonotonicNow() + kLockLimit;
  }
  LockCheckpoints(
      [commit, until = awaited_until_] {
        return commit->fate == Commit::Fate::kOpen && MonotonicNow() <= until;
      },
      [this, commit](const absl::Status& locked) {
        committing_->Add(
            [this, commit, locked] { return BeginCommit(commit, locked); });
      });
}

SideWork::Work JobRunner::BeginCommit(const std::shared_ptr<Commit>& commit,
                                      const absl::Status& locked) {
  if (commit->fate == Commit::Fate::kGivenUp || exit_code_.has_value()) {
    return nullptr;
  }
  // On a disk that is slower than the job asks for, the newest counts, and each
  // that is exported.
  const bool may_give_up = !IsExported(job_, commit->step);
  for (const std::shared_ptr<Commit>& later : commits_) {
    if (!may_give_up || later->generation != commit->generation ||
        later->step <= commit->step) {
      continue;
    }
    OnCommitEnd(*commit,
                {.status = absl::CancelledError(absl::StrCat(
                     "given up for step ", later->step,
                     ", since commits take longer than the steps between "
                     "them; raise checkpoint.interval_steps")),
                 .path = ""});
    return nullptr;
  }
  if (!locked.ok()) {
    OnCommitEnd(*commit, {.status = locked, .path = ""});
    return nullptr;
  }
  std::vector<std::string> entries;
  for (const auto& [rank, part] : commit->parts) entries.push_back(part.entry);
  const CheckpointInfo info = {
      .step = commit->step,
      .generation = commit->generation,
      .seed = job_.training.seed,
      .samples_consumed = commit->step * job_.training.global_batch,
      .layout = commit->layout,
      .job_yaml = job_yaml_};
  return [this, commit, info, entries = std::move(entries),
          files = CheckpointFiles(), directory = CheckpointDirectory(),
          lock = checkpoint_lock_, keep = job_.checkpoint.keep,
          oldest = OldestToExport(),
          above_is_durable = above_is_durable_]() -> SideWork::Then {
    // The last moment at which a commit can be refused: only now does it count
    // that no other coordinator has taken over.
    const auto may_commit = [&]() -> absl::Status {
      const absl::Status held = lock->CheckHeld();
      if (!held.ok()) return held;
      if (const absl::Status first = log_->Confirm(); !first.ok()) {
        StepDown(std::string(first.message()));
      }
      Commit::Fate open = Commit::Fate::kOpen;
      return commit->fate.compare_exchange_strong(open, Commit::Fate::kCommits)
                 ? absl::OkStatus()
                 : absl::CancelledError("given up");
    };
    const double began_s = MonotonicSeconds();
    CommitOutcome outcome = {.status = lock->CheckHeld(), .path = ""};
    if (outcome.status.ok()) {
      outcome.status = CommitCheckpoint(
          *files, directory, info, entries,
          CheckpointsToKeep(*files, directory, keep, oldest, info.step),
          may_commit, above_is_durable);
    }
    if (outcome.status.ok()) {
      const absl::StatusOr<std::string> path =
          PathOfStep(*files, directory, info.step);
      if (path.ok()) outcome.path = *path;
      outcome.status = path.status();
    }
    if (outcome.status.ok()) {
      outcome.logged = log_->WriteCheckpointCommitted(info.step, outcome.path);
    }
    outcome.seconds = MonotonicSeconds() - began_s;
    return [this, commit, outcome] { OnCommitEnd(*commit, outcome); };
  };
}

void JobRunner::OnCommitEnd(Commit& commit, const CommitOutcome& outcome) {
  // One that was given up has its answer.
  if (exit_code_.has_value() || commit.fate == Commit::Fate::kGivenUp) return;
  std::erase_if(commits_,
                [&](const auto& other) { return other.get() == &commit; });
  if (!outcome.status.ok()) {
    if (commit.generation == state_->generation()) AbandonParts(commit.step);
    FailCommit({commit.generation, commit.step},
               std::string(outcome.status.message()));
    return;
  }
  above_is_durable_ = true;
  bool tries_again = false;  // Then the first half, too.
  MustSucceed([&]() -> absl::Status {
    if (std::exchange(tries_again, true)) {
      return log_->CheckpointCommitted(commit.step, outcome.path);
    }
    RETURN_IF_ERROR(outcome.logged);
    return log_->CountCheckpointCommitted(commit.step, outcome.path);
  });
  verify_before_restore_ = false;
  double waited_s = 0, written_s = 0;
  for (const auto& [rank, part] : commit.parts) {
    // Later generations have processes that number their messages anew.
    if (commit.generation == state_->generation()) {
      Acknowledge(worker_sessions_[part.worker], part.sequence);
    }
    waited_s = std::max(waited_s, part.waited_s);
    written_s = std::max(written_s, part.written_s);
  }
  const std::optional<SnapshotPlan>& predicted = plan_->snapshots;
  checkpoint_cost_ = {
      .stall_s = waited_s + (predicted.has_value() ? predicted->stall_s : 0),
      .write_s = written_s + outcome.seconds,
      .is_measured = true};
  commit_detail_ =
      absl::StrCat("training waited ", FormatSeconds(waited_s),
                   predicted.has_value()
                       ? absl::StrCat("; predicted stall of the next step ",
                                      FormatSeconds(predicted->stall_s))
                       : "",
                   "; written in ", FormatSeconds(written_s));
  parts_.erase(parts_.begin(), parts_.upper_bound(commit.step));
  ExportStep(commit.step, outcome.path);
  Handle(StepCommitted{commit.generation, commit.step});
  ReconsiderInterval();
}

void JobRunner::AbandonParts(int64_t step) {
  abandoned_steps_.insert(step);
  for (const auto& [rank, part] : parts_[step]) {
    Acknowledge(worker_sessions_[part.worker], part.sequence);
  }
  parts_.erase(step);
  if (checkpoint_lock_ == nullptr) return;
  // The step itself stays until the next one: a coordinator that takes over
  // now may be told of its parts once more.
  committing_->Add([this, step]() -> SideWork::Work {
    if (exit_code_.has_value()) return nullptr;
    return [files = CheckpointFiles(), directory = CheckpointDirectory(),
            lock = checkpoint_lock_, committed = state_->committed_step(),
            step]() -> SideWork::Then {
      if (lock->CheckHeld().ok()) {
        // The next failure or commit tries again.
        RemoveUncommitted(*files, directory, committed, step).IgnoreError();
      }
      return [] {};
    };
  });
}

void JobRunner::FailCommit(const CommitStep& action,
                           const std::string& reason) {
  output_->Event({.event = "checkpoint_failed",
                  .generation = ToInt(action.generation),
                  .step = action.step,
                  .detail = reason});
  Handle(CommitFailed{action.generation, action.step, reason});
}

void JobRunner::Do(const GiveUpCommits& action) {
  std::vector<std::shared_ptr<Commit>> rest;
  for (const std::shared_ptr<Commit>& commit : std::exchange(commits_, {})) {
    if (GiveUp(*commit)) {
      FailCommit({commit->generation, commit->step},
                 absl::StrCat("given up: ", action.reason));
    } else {
      rest.push_back(commit);
    }
  }
  commits_ = std::move(rest);
}

bool JobRunner::GiveUp(Commit& commit) {
  Commit::Fate open = Commit::Fate::kOpen;
  return commit.fate.compare_exchange_strong(open, Commit::Fate::kGivenUp);
}

// How often. ------------------------------------------------------------------

IntervalChoice JobRunner::ChooseInterval() const {
  const double measured_s = output_->MedianStepTime();
  return ChooseCheckpointInterval(
      {.cost =
           checkpoint_cost_.is_measured
               ? checkpoint_cost_
               : GuessCheckpointCost(PartBytes(job_.model, plan_->layout),
                                     plan_->ranks_per_host, plan_->snapshots,
                                     job_.checkpoint.bytes_per_second),
       .step_s = measured_s > 0 ? measured_s : plan_->step_time_s,
       .mean_time_between_failures_s = MeanTimeBetweenFailures(
           job_.goodput, {.num_devices = plan_->layout.num_ranks(),
                          .num_failures = num_failures_,
                          .seconds = output_->SecondsSinceStart()}),
       .recovery_s = last_recovery_s_});
}

int64_t JobRunner::IntervalToBegin() {
  interval_change_.reset();
  interval_from_ = 0;
  if (job_.checkpoint.policy != "auto") return job_.checkpoint.interval_steps;
  const IntervalChoice choice = ChooseInterval();
  if (std::exchange(interval_steps_, choice.steps) != choice.steps) {
    ReportInterval(choice, 0);
  }
  return choice.steps;
}

void JobRunner::ReconsiderInterval() {
  if (job_.checkpoint.policy != "auto" || exit_code_.has_value() ||
      state_->phase() != JobState::Phase::kTraining) {
    return;
  }
  const int64_t now = output_->last_step();
  // One change after another, so that all ranks have the same.
  if (now < interval_from_) return;
  const IntervalChoice choice = ChooseInterval();
  if (interval_steps_ > 0 && !IsWorthChanging(interval_steps_, choice.steps)) {
    return;
  }
  const double step_s = std::max(1e-6, output_->MedianStepTime());
  const int64_t from =
      now +
      std::max<int64_t>(kLeastNoticeSteps,
                        static_cast<int64_t>(kLeastNoticeSeconds / step_s) + 1);
  if (from > job_.training.num_steps) return;
  interval_steps_ = choice.steps;
  interval_from_ = from;
  ReportInterval(choice, from);
  interval_change_.emplace();
  interval_change_->set_generation(ToInt(state_->generation()));
  interval_change_->mutable_checkpoint_interval()->set_from_step(from);
  interval_change_->mutable_checkpoint_interval()->set_interval_steps(
      choice.steps);
  SendToWorkers(*interval_change_);
}

void JobRunner::ReportInterval(const IntervalChoice& choice, int64_t from) {
  const std::string detail =
      absl::StrCat(from > 0 ? absl::StrCat("from step ", from, " on ") : "",
                   choice.description);
  progress_->Line(absl::StrCat("checkpoints: ", detail));
  output_->Event({.event = "checkpoint_interval",
                  .generation = ToInt(state_->generation()),
                  .step = from > 0 ? from : -1,
                  .detail = detail});
}

}  // namespace millrace
