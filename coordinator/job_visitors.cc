// Answers those who look at a job and take no part in it: its status, and the
// logs of its ranks, which lie on the ranks' own hosts. Part of JobRunner
// (job_runner.h).

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/json.h"
#include "coordinator/job_runner.h"
#include "coordinator/watch/watch_page.h"

namespace millrace {
namespace {

// Enough for all lines of a page.
constexpr size_t kStatusLines = 1000;
constexpr size_t kStatusWidth = 110;

}  // namespace

void JobRunner::OnVisitorMessage(SessionId session,
                                 const protocol::ToCoordinator& message) {
  if (message.has_status_request()) {
    AnswerStatus(session);
  } else if (message.has_log_request()) {
    AskForLog(session, message.log_request());
  }
}

void JobRunner::AnswerStatus(SessionId session) {
  if (!follower_.has_value()) {
    absl::StatusOr<RunFollower> opened =
        RunFollower::Open(options_.run_directory);
    if (opened.ok()) follower_.emplace(*std::move(opened));
  }
  protocol::FromCoordinator answer;
  protocol::StatusAnswer* status = answer.mutable_status();
  const absl::Status read = follower_.has_value()
                                ? follower_->Refresh()
                                : absl::NotFoundError("no run directory");
  if (!read.ok()) {
    status->set_text(absl::StrCat("no status: ", read.message(), "\n"));
    status->set_json("{}");
    server_->Send(session, answer);
    return;
  }
  const double now_unix_s = UnixNow();
  for (const std::string& line :
       WatchLines(follower_->run(), {.width = kStatusWidth,
                                    .height = kStatusLines,
                                    .now_unix_s = now_unix_s})) {
    absl::StrAppend(status->mutable_text(), line, "\n");
  }
  status->set_json(JsonText(WatchJson(follower_->run(), now_unix_s)));
  server_->Send(session, answer);
}

void JobRunner::AskForLog(SessionId session,
                          const protocol::LogRequest& request) {
  // Before there is a plan, ranks are the workers in their order.
  const std::vector<WorkerIdx>& members = state_->members();
  const bool has_rank = request.rank() >= 0 &&
                        request.rank() < static_cast<int32_t>(members.size());
  const WorkerIdx worker =
      has_rank ? members[request.rank()] : WorkerIdx{request.rank()};
  const int32_t agent_idx = state_->AgentOf(worker);
  const auto agent = agent_sessions_.find(agent_idx);
  std::string error;
  if (agent_idx < 0) {
    error =
        absl::StrCat("the job has no rank ", request.rank(),
                     "; its hosts have ", Devices().num_devices, " devices");
  } else if (agent == agent_sessions_.end() ||
             !peers_.contains(agent->second)) {
    error = absl::StrCat("agent ", agent_idx, " of ", state_->NameOf(worker),
                         " is not connected");
  }
  if (!error.empty()) {
    protocol::FromCoordinator answer;
    answer.mutable_log()->set_error(error);
    server_->Send(session, answer);
    return;
  }
  log_readers_[++last_log_request_] = session;
  protocol::FromCoordinator order;
  *order.mutable_read_log() = request;
  order.mutable_read_log()->set_number(last_log_request_);
  order.mutable_read_log()->set_rank(ToInt(worker));
  server_->Send(agent->second, order);
}

void JobRunner::OnLogText(const protocol::LogText& text) {
  const auto reader = log_readers_.find(text.number());
  if (reader == log_readers_.end()) return;  // It has gone.
  protocol::FromCoordinator answer;
  *answer.mutable_log() = text;
  server_->Send(reader->second, answer);
  log_readers_.erase(reader);
}

void JobRunner::ForgetVisitor(SessionId session) {
  std::erase_if(log_readers_,
                [&](const auto& entry) { return entry.second == session; });
}

}  // namespace millrace
