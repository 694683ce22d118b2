// The remaining work after a job has ended, and its last messages; see
// job_runner.h.

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "coordinator/job_runner.h"
#include "coordinator/protocol/exit_codes.h"
#include "coordinator/report/report.h"

namespace millrace {
namespace {

// A process that outlives its agent is killed by nobody else.
constexpr unsigned kLeaveSeconds = 30;

const char* StatusWord(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFinished:
      return "finished";
    case Verdict::kStopped:
    case Verdict::kRequeued:
    case Verdict::kBroken:
      return "stopped";
    case Verdict::kFailed:
    case Verdict::kRefused:
      return "failed";
  }
  return "failed";
}

int ExitCode(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFinished:
    case Verdict::kStopped:
      return kDoneExitCode;
    case Verdict::kRequeued:
      return kRequeueExitCode;
    case Verdict::kBroken:
    case Verdict::kFailed:
      return kFailedExitCode;
    case Verdict::kRefused:
      return kRefusedExitCode;
  }
  return kFailedExitCode;
}

}  // namespace

std::string JobRunner::ReasonNotToRequeue() const {
  if (!CanCheckpoint()) return "there is no folder for checkpoints";
  return ReasonNotToResume(job_.checkpoint);
}

void JobRunner::Do(const EndJob& action) {
  if (action.verdict == Verdict::kRequeued) {
    const std::string obstacle = ReasonNotToRequeue();
    if (!obstacle.empty()) {
      End({Verdict::kFailed,
           absl::StrCat(action.reason,
                        "; started again, the job would not go "
                        "on from there: ",
                        obstacle),
           action.steps});
      return;
    }
  }
  // Who stops a job does not wait: its checkpoint can be exported later.
  if (action.verdict == Verdict::kFinished && num_exports_ > 0) {
    progress_->Line("waiting for the export of the weights");
    end_after_exports_ = action;
    return;
  }
  End(action);
}

void JobRunner::End(const EndJob& action) {
  if (outlives_agent_) alarm(kLeaveSeconds);
  AbandonPlans();
  lock_stop_.request_stop();
  exporter_.reset();
  for (const std::shared_ptr<Commit>& commit : commits_) GiveUp(*commit);
  uint64_t hash = 0;  // Ranks' hashes add up, in whatever order they came.
  for (const auto& [rank, part] : parameter_hashes_) hash += part;
  const bool complete =
      plan_.has_value() && static_cast<int32_t>(parameter_hashes_.size()) ==
                               plan_->layout.num_ranks();
  const bool all_well = ExitCode(action.verdict) == kDoneExitCode ||
                        action.verdict == Verdict::kRequeued;
  output_->Event({.event = all_well ? "finished" : "failed",
                  .generation = ToInt(state_->generation()),
                  .step = action.steps,
                  .detail = action.reason});
  ShouldSucceed(output_->WriteTime());
  const ResultRecord result = {
      .status = StatusWord(action.verdict),
      .reason = action.reason,
      .steps = std::max<int64_t>(action.steps, 0),
      .final_loss = complete ? final_loss_ : output_->last_loss(),
      .device_bytes = device_bytes_,
      .parameter_hash = complete ? absl::StrFormat("%016x", hash) : ""};
  MustSucceed([&] { return output_->WriteResult(result); });
  const int exit_code = ExitCode(action.verdict);
  last_message_ = all_well ? "" : action.reason;
  MustSucceed([&] { return log_->Ended(exit_code, last_message_); });
  output_->FreeReserve();  // Needed no more.
  PrintSummary(action);
  exit_code_ = exit_code;
  protocol::FromCoordinator message;
  message.mutable_shutdown()->set_exit_code(exit_code);
  message.mutable_shutdown()->set_message(last_message_);
  SendToWorkers(message);
  for (const auto& [agent_idx, session] : agent_sessions_) {
    server_->Send(session, message);
  }
  for (const auto& [session, peer] : peers_) {
    if (peer.visits) server_->Send(session, message);
  }
  server_->Stop();
}

void JobRunner::OutliveAgent() {
  if (options_.agent_pid == 0 || outlives_agent_) return;
  outlives_agent_ = true;
  prctl(PR_SET_PDEATHSIG, 0);
  signal(SIGPIPE, SIG_IGN);  // Standard output may be the launcher's.
}

void JobRunner::LeaveWithAgent() {
  if (!outlives_agent_ || exit_code_.has_value() ||
      getppid() == options_.agent_pid) {
    return;
  }
  std::cerr << "coordinator: the agent was killed before the job had stopped; "
               "giving the folder of checkpoints back"
            << std::endl;
  alarm(kLeaveSeconds);
  exporter_.reset();
  for (const std::shared_ptr<Commit>& commit : commits_) GiveUp(*commit);
  AbandonPlans();
  lock_stop_.request_stop();
  exit_code_ = kFailedExitCode;
  server_->Stop();
}

void JobRunner::PrintSummary(const EndJob& action) {
  if (action.verdict == Verdict::kRefused || options_.profile_only) return;
  const double measured = output_->MedianStepTime();
  if (measured > 0 && plan_.has_value()) {
    progress_->Line(absl::StrFormat(
        "step time: predicted %s, measured %s (median), %.0f %% of predicted "
        "speed",
        FormatSeconds(plan_->step_time_s), FormatSeconds(measured),
        100 * plan_->step_time_s / measured));
    if (device_bytes_ > 0) {
      progress_->Line(absl::StrCat(
          "memory: predicted ", FormatBytes(plan_->memory_bytes), ", used ",
          FormatBytes(device_bytes_), " at most by a rank",
          plan_->keeps_standbys ? " and its standby process" : ""));
    }
    progress_->Line(
        absl::StrCat("where the time went: ", output_->TimeInOneLine()));
    LearnProfile(action);
  }
  if (server_->num_strangers() > 0) {
    progress_->Line(absl::StrCat(server_->num_strangers(),
                                 " connections of strangers were turned away"));
  }
  const absl::Status report = WriteReport(options_.run_directory);
  progress_->Line(absl::StrCat(StatusWord(action.verdict),
                               action.reason.empty() ? "" : ": ", action.reason,
                               "; run directory: ", options_.run_directory));
  if (report.ok()) {
    progress_->Line(
        absl::StrCat("report: ", ReportPath(options_.run_directory)));
  } else {
    progress_->Line(absl::StrCat("no report: ", report.message()));
  }
}

}  // namespace millrace
