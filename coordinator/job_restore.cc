// How a generation begins and what it restores. Asking other hosts and reading
// checkpoints happens on a thread of its own. Part of JobRunner (job_runner.h).

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/job_runner.h"
#include "coordinator/protocol/convert.h"
#include "fault/checkpoint.h"

namespace millrace {

void JobRunner::Do(const BeginGeneration& action) {
  if (action.purpose == Purpose::kProfile) {
    BeginPrepared(action, {});
    return;
  }
  CompareHeldReplicas();
  const Preparation what = WhatToPrepare(action);
  if (!what.search.has_value() && !what.damaged.has_value() &&
      what.resume_path.empty()) {
    BeginPrepared(action, {});
    return;
  }
  is_preparing_ = true;
  preparing_->Add([this, action, what]() -> SideWork::Work {
    if (action.generation != state_->generation()) return nullptr;
    return [this, action, what]() -> SideWork::Then {
      return [this, action, prepared = Prepare(what)] {
        if (action.generation != state_->generation() ||
            state_->phase() == JobState::Phase::kEnded) {
          return;
        }
        BeginPrepared(action, prepared);
      };
    };
  });
}

JobRunner::Preparation JobRunner::WhatToPrepare(const BeginGeneration& action) {
  Preparation what = {.search = SearchForFolders()};
  const bool committed = action.restore_step >= 0;
  if (!committed && !resume_step_.has_value()) {
    what.resume_path = plan_->resume_path;
  }
  const int64_t expected_step =
      committed ? action.restore_step : resume_step_.value_or(0);
  if (!verify_before_restore_ || ChooseFromMemory(expected_step).has_value()) {
    return what;
  }
  const bool resumes_directory = job_.checkpoint.resume == "auto";
  // A checkpoint that the user named is not exchanged for another.
  const bool may_exchange = committed || resumes_directory;
  what.damaged = {.path = committed ? CommittedPath() : plan_->resume_path,
                  .directory = may_exchange ? CheckpointDirectory() : "",
                  .newest_step = committed
                                     ? action.restore_step
                                     : std::numeric_limits<int64_t>::max(),
                  .job_yaml = resumes_directory ? "" : job_yaml_};
  return what;
}

JobRunner::Prepared JobRunner::Prepare(const Preparation& what) const {
  Prepared prepared;
  if (what.search.has_value()) prepared.folders = FindFolders(*what.search);
  const CheckpointFolders none;
  const CheckpointFolders& folders =
      prepared.folders.ok() ? *prepared.folders : none;
  const std::shared_ptr<FileSystem> files = FilesOf(folders);
  if (what.damaged.has_value()) {
    prepared.choice = ChooseRestore(*files, *what.damaged);
    if (prepared.choice->ok()) {
      (*prepared.choice)->damaged_copies = TakeDamagedCopies(folders);
    }
  }
  if (!what.resume_path.empty()) {
    const absl::StatusOr<CheckpointInfo> info =
        ReadCheckpointInfo(*files, what.resume_path);
    if (info.ok()) prepared.resume_step = info->step;
  }
  return prepared;
}

void JobRunner::BeginPrepared(const BeginGeneration& action,
                              Prepared prepared) {
  is_preparing_ = false;
  protocol::FromCoordinator message;
  message.set_generation(ToInt(action.generation));
  protocol::StartGeneration* start = message.mutable_start_generation();
  start->set_num_ranks(static_cast<int32_t>(action.members.size()));
  start->set_job_yaml(job_yaml_);
  start->set_ranks_per_host(Devices().ranks_per_host);
  if (state_->HasSeveralHosts()) {
    for (WorkerIdx worker : action.members) {
      start->add_hosts(state_->HostOf(worker));
    }
  }
  if (action.purpose == Purpose::kProfile) {
    start->set_purpose(protocol::GENERATION_PURPOSE_PROFILE);
    TellOfStandbys(false);  // They would be measured with the rest.
    if (options_.tune) {
      start->set_tune_command(
          absl::StrCat("millrace profile --tune ", options_.job_file));
    }
    SendBegin(action, &message);
    return;
  }
  start->set_purpose(protocol::GENERATION_PURPOSE_TRAIN);
  *start->mutable_layout() = ToMessage(plan_->layout);
  *start->mutable_tuning() = ToMessage(profile_->tuning);
  for (uint64_t hash : plan_->program_hashes) {
    start->add_program_hashes(hash);
  }
  if (plan_->snapshots.has_value()) {
    start->set_staged_bytes(plan_->snapshots->staged_bytes);
  }
  checkpoint_folders_ = {};
  if (prepared.resume_step.has_value()) resume_step_ = prepared.resume_step;
  const absl::Status found = prepared.folders.status();
  if (found.ok()) checkpoint_folders_ = *std::move(prepared.folders);
  AddCheckpointFolders(found, start);
  const absl::Status restore = AddRestore(action.restore_step, prepared, start);
  if (!restore.ok()) {
    Handle(NothingToRestore{std::string(restore.message())});
    return;
  }
  for (const int64_t step : log_->job().left_out_steps) {
    start->add_left_out_steps(step);
  }
  start->set_checkpoint_interval_steps(IntervalToBegin());
  start->set_compared_steps(compared_steps_);
  num_agreed_ = 0;
  BeginWatching();
  AddReplicas(start);
  SendBegin(action, &message);
  if (stops_when_begun_) Do(TellWorkersToStop{});
}

void JobRunner::SendBegin(const BeginGeneration& action,
                          protocol::FromCoordinator* message) {
  protocol::StartGeneration* start = message->mutable_start_generation();
  const std::vector<std::vector<std::string>> partners = PartnerAddresses();
  for (int32_t rank = 0; rank < start->num_ranks(); ++rank) {
    const WorkerIdx worker = action.members[rank];
    if (action.purpose == Purpose::kTrain && state_->HasSeveralHosts()) {
      output_->SetHost(Rank{rank}, state_->HostOf(worker));
    }
    start->set_rank(rank);
    if (start->checkpoint_hosts_size() > 0) {
      start->set_checkpoint_host(
          checkpoint_folders_.of_agent[state_->AgentOf(worker)]);
    }
    if (rank < static_cast<int32_t>(partners.size())) {
      start->mutable_replica_partners()->Assign(partners[rank].begin(),
                                                partners[rank].end());
    }
    server_->Send(worker_sessions_[worker], *message);
  }
}

absl::StatusOr<std::string> JobRunner::RestorePath(int64_t committed_step,
                                                   const Prepared& prepared) {
  const bool committed = committed_step >= 0;
  const std::string expected = committed ? CommittedPath() : plan_->resume_path;
  if (!prepared.choice.has_value()) return expected;
  RETURN_IF_ERROR(prepared.choice->status());
  const ResumeChoice& choice = **prepared.choice;
  ReportSkipped(choice);
  if (choice.path == expected) return expected;
  progress_->Line(absl::StrCat("going on from ", choice.path, " instead"));
  // Logged, so that a restarted coordinator does not go back to the damaged
  // one.
  if (committed) {
    MustSucceed(
        [&] { return log_->CheckpointCommitted(choice.step, choice.path); });
    Handle(RestoredEarlier{choice.step});
  } else {
    plan_->resume_path = choice.path;
    resume_step_ = choice.step;
    MustSucceed([&] { return log_->PlanChosen(PlanRecordToJson(*plan_)); });
  }
  return choice.path;
}

void JobRunner::ReportSkipped(const ResumeChoice& choice) {
  for (const std::string& reason : choice.skipped) {
    progress_->Line(absl::StrCat("checkpoint passed over: ", reason));
    output_->Event({.event = "checkpoint_skipped",
                    .generation = ToInt(state_->generation()),
                    .detail = reason});
  }
  ReportDamagedCopies(choice.damaged_copies);
}

}  // namespace millrace
