#include "worker/agent/coordinator_process.h"

#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/exceptions.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/protocol/exit_codes.h"
#include "coordinator/protocol/secret.h"
#include "worker/agent/child_process.h"
#include "worker/agent/worker_child.h"

namespace millrace {

bool CoordinatorProcess::HasCopies() const {
  return succession_.has_value() && succession_->has_log();
}

absl::Status CoordinatorProcess::StartFirst() {
  start_ = &*options_.coordinator;
  run_ = start_->run_directory;
  num_agents_ = options_.num_agents;
  if (options_.job.ok() && options_.job->fault.coordinator_replicas > 0 &&
      !start_->profile_only) {
    // Each process has a term of its own until there are keepers.
    ++term_;
  }
  return Start({});
}

absl::Status CoordinatorProcess::BeKeeper(const HostJob& job, int32_t agent_idx,
                                          uint64_t id, FileServer* files) {
  agent_idx_ = agent_idx;
  num_agents_ = job.num_agents;
  run_ = job.run;
  if (start_ == nullptr) {
    ASSIGN_OR_RETURN(Listener listener, ListenForPeers(job));
    later_.emplace(
        CoordinatorStart{.listener = std::move(listener),
                         .run_directory = job.run_directory,
                         .job_file = job.run_directory + "/job.yaml"});
  }
  succession_.emplace(id, options_.secret, files);
  if (start_ != nullptr) succession_->Lead();
  return absl::OkStatus();
}

const std::string& CoordinatorProcess::address() const {
  static const std::string* const kNone = new std::string;
  if (start_ != nullptr) return start_->listener.address();
  return later_.has_value() ? later_->listener.address() : *kNone;
}

int CoordinatorProcess::event_fd() const {
  return succession_.has_value() ? succession_->event_fd() : -1;
}

absl::Status CoordinatorProcess::Start(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "coordinator",
      "--run-directory",
      start_->run_directory,
      "--run",
      run_,
      "--job-file",
      start_->job_file,
      "--listen-fd",
      absl::StrCat(start_->listener.fd()),
      "--agents",
      absl::StrCat(num_agents_),
      "--own-agent",
      absl::StrCat(agent_idx_),
      "--term",
      absl::StrCat(term_),
      "--join-seconds",
      absl::StrCat(absl::ToInt64Seconds(start_->join_timeout))};
  for (const std::string& host : start_->hosts) {
    arguments.insert(arguments.end(), {"--host", host});
  }
  if (start_->profile_only) arguments.push_back("--profile-only");
  if (start_->tune) arguments.push_back("--tune");
  if (!start_->profile_output.empty()) {
    arguments.insert(arguments.end(),
                     {"--profile-output", start_->profile_output});
  }
  arguments.insert(arguments.end(), more.begin(), more.end());
  ASSIGN_OR_RETURN(
      pid_,
      StartChild({.arguments = arguments,
                  .environment = {{kSecretVariable, options_.secret}},
                  .log_path = start_->run_directory + "/logs/coordinator.log",
                  .keep_stdout = true,
                  .keep_fds = {start_->listener.fd()}}));
  return absl::OkStatus();
}

absl::Status CoordinatorProcess::OnWon(const Succession::Won& won) {
  if (start_ == nullptr) start_ = &*later_;
  std::string lines;
  for (const std::string& record : won.records) lines += LogLine(record);
  RETURN_IF_ERROR(
      WriteFileAtomically(start_->run_directory + "/state.log", lines));
  RETURN_IF_ERROR(WriteFileAtomically(start_->run_directory + "/address",
                                      address() + "\n"));
  term_ = won.term;
  std::vector<std::string> more;
  if (won.taken_over_from >= 0) {
    more = {"--taken-over-from", absl::StrCat(won.taken_over_from)};
    log_(absl::StrCat("the coordinator of agent ", won.taken_over_from,
                      " is lost; this host has it now, as number ", won.term));
  }
  return Start(more);
}

absl::Status CoordinatorProcess::Update() {
  if (pid_ > 0) {
    if (HasCopies() && succession_->term() > term_) {
      // Another agent has the coordinator. This one must not do anything more,
      // however it is held up.
      kill(pid_, SIGKILL);
    }
    int wait_status = 0;
    if (waitpid(pid_, &wait_status, WNOHANG) == pid_) {
      pid_ = 0;
      RETURN_IF_ERROR(OnEnd(wait_status));
    }
  }
  if (MonotonicNow() >= restart_at_) {
    restart_at_ = absl::InfiniteFuture();
    RETURN_IF_ERROR(Restart());
  }
  if (!succession_.has_value()) return absl::OkStatus();
  const std::optional<Succession::Won> won = succession_->TakeWon();
  if (!won.has_value()) return absl::OkStatus();
  if (pid_ == 0) return OnWon(*won);
  // It is about to end, since it was told of a later one.
  succession_->Follow();
  return absl::OkStatus();
}

absl::Status CoordinatorProcess::Restart() {
  if (HasCopies()) {
    succession_->StandAfter(term_);
    return absl::OkStatus();
  }
  return StartFirst();
}

absl::Status CoordinatorProcess::OnEnd(int wait_status) {
  const bool has_exited = WIFEXITED(wait_status);
  const int exit_code = has_exited ? WEXITSTATUS(wait_status) : -1;
  if (HasCopies() &&
      (exit_code == kSteppedDownExitCode || succession_->term() > term_)) {
    log_(absl::StrCat("the coordinator of this host, number ", term_,
                      ", has given up its place"));
    succession_->Follow();
    return absl::OkStatus();
  }
  if (has_exited && exit_code != kExceptionExitCode) {
    last_exit_ = DescribeExit(wait_status);
    return absl::OkStatus();
  }
  const std::optional<absl::Duration> wait =
      budget_.OnDeath(RecordedProgress());
  if (!wait.has_value()) {
    return absl::UnavailableError(absl::StrCat(
        "the coordinator dies again and again (", DescribeExit(wait_status),
        "), ", RestartBudget::kMaxRestartsWithoutProgress,
        " restarts without a training step in between; see ",
        start_->run_directory, "/logs/coordinator.log"));
  }
  log_(absl::StrCat("coordinator ", DescribeExit(wait_status),
                    "; starting it again in ", absl::FormatDuration(*wait)));
  restart_at_ = MonotonicNow() + *wait;
  return absl::OkStatus();
}

int64_t CoordinatorProcess::RecordedProgress() const {
  std::error_code none_yet;
  const auto bytes = std::filesystem::file_size(
      start_->run_directory + "/metrics.jsonl", none_yet);
  return none_yet ? 0 : static_cast<int64_t>(bytes);
}

}  // namespace millrace
