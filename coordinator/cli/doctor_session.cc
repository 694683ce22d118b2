#include "coordinator/cli/doctor_session.h"

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/cli/launch.h"
#include "coordinator/server.h"

namespace millrace {
namespace {

constexpr absl::Duration kDoctorTick = absl::Milliseconds(100);

class DoctorSession {
 public:
  explicit DoctorSession(DoctorSessionOptions options)
      : options_(std::move(options)),
        examination_(options_.examination, MonotonicNow()) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(
        server_,
        Server::Create(
            {.listen_fd = options_.listen_fd,
             .secret = options_.secret,
             .on_message =
                 [this](SessionId session, const auto& message) {
                   OnMessage(session, message);
                 },
             .on_closed = [this](SessionId session) { OnClosed(session); },
             .tick_interval = kDoctorTick,
             .on_tick =
                 [this] {
                   examination_.OnTick(MonotonicNow());
                   GoOn();
                 }}));
    server_->Run();
    return absl::OkStatus();
  }

 private:
  void OnMessage(SessionId session, const protocol::ToCoordinator& message) {
    if (message.has_hello()) {
      OnHello(session, message.hello());
    } else if (message.has_examined() && agents_.contains(session)) {
      examination_.OnAnswer(agents_[session], message.examined().number(),
                            message.examined().json(), MonotonicNow());
    }
    GoOn();
  }

  void OnHello(SessionId session, const protocol::Hello& hello) {
    if (!hello.agent().to_examine()) {
      End(session, kBadInput,
          "millrace doctor listens here, not a job; start the job when it has "
          "ended");
      return;
    }
    const absl::StatusOr<int32_t> agent_idx = examination_.OnHello(
        hello.agent().agent_idx(), hello.agent().instance(),
        hello.agent().host(), MonotonicNow());
    if (!agent_idx.ok()) {
      End(session, kBadInput, std::string(agent_idx.status().message()));
      return;
    }
    agents_[session] = *agent_idx;
    sessions_.insert_or_assign(*agent_idx, session);
  }

  void OnClosed(SessionId session) {
    const auto found = agents_.find(session);
    if (found == agents_.end()) return;
    const int32_t agent_idx = found->second;
    agents_.erase(found);
    const auto newest = sessions_.find(agent_idx);
    if (newest == sessions_.end() || newest->second != session) return;
    sessions_.erase(newest);
    examination_.OnGone(agent_idx, MonotonicNow());
  }

  void End(SessionId session, int exit_code, const std::string& why) {
    protocol::FromCoordinator message;
    message.mutable_shutdown()->set_exit_code(exit_code);
    message.mutable_shutdown()->set_message(why);
    server_->Send(session, message);
  }

  void GoOn() {
    if (ended_) return;
    const std::string line = examination_.TakeProgress();
    if (!line.empty()) options_.on_progress(line);
    if (examination_.is_looking() != looking_) {
      looking_ = !looking_;
      options_.on_looking(looking_);
    }
    for (const ExamineOrder& order : examination_.TakeOrders()) {
      const auto session = sessions_.find(order.agent_idx);
      if (session == sessions_.end()) continue;  // Given again at its hello.
      protocol::FromCoordinator message;
      message.mutable_examine()->set_number(order.number);
      message.mutable_examine()->set_json(order.json);
      server_->Send(session->second, message);
    }
    if (!examination_.is_done()) return;
    ended_ = true;
    const int exit_code = options_.on_done(examination_.result());
    for (const auto& [agent_idx, session] : sessions_) {
      End(session, exit_code, "");
    }
    server_->Stop();
  }

  const DoctorSessionOptions options_;
  Examination examination_;
  std::map<SessionId, int32_t> agents_;
  std::map<int32_t, SessionId> sessions_;  // The newest of each agent.
  bool looking_ = false;
  bool ended_ = false;
  std::unique_ptr<Server> server_;
};

}  // namespace

absl::Status RunDoctorSession(DoctorSessionOptions options) {
  DoctorSession session(std::move(options));
  return session.Run();
}

}  // namespace millrace
