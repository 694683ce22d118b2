#include "coordinator/server.h"

#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "coordinator/protocol/connection.h"
#include "coordinator/protocol/secret.h"

namespace millrace {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

// How long Stop() waits for peers that do not read.
constexpr auto kFlushLimit = std::chrono::seconds(2);
// Who has not proven to know the secret gets so much time and memory.
constexpr auto kProofLimit = std::chrono::seconds(20);
constexpr int64_t kMaxStrangersFrame = 64 << 10;

std::string AddressOf(const tcp::endpoint& endpoint) {
  const boost::asio::ip::address address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped,
                                            address.to_v6())
        .to_string();
  }
  return address.to_string();
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(ServerOptions options)
      : options_(std::move(options)),
        acceptor_(loop_),
        timer_(loop_),
        flush_timer_(loop_) {}

  absl::Status Listen() {
    error_code error;
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    const bool known =
        getsockname(options_.listen_fd, reinterpret_cast<sockaddr*>(&address),
                    &size) == 0;
    acceptor_.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(),
                     options_.listen_fd, error);
    if (error || !known) {
      return absl::InternalError(
          absl::StrCat("descriptor ", options_.listen_fd,
                       " is not a listening socket: ", error.message()));
    }
    return absl::OkStatus();
  }

  void Run() {
    Accept();
    Tick();
    loop_.run();
  }

  void Stop() {
    stopping_ = true;
    error_code ignored;
    acceptor_.cancel(ignored);
    acceptor_.close(ignored);
    timer_.cancel();
    // A copy: closing erases from the table.
    const auto sessions = sessions_;
    for (const auto& [id, session] : sessions) {
      session.connection->CloseAfterWriting();
    }
    if (sessions_.empty()) return;
    flush_timer_.expires_after(kFlushLimit);
    flush_timer_.async_wait([this](const error_code& error) {
      if (!error) loop_.stop();
    });
  }

  void Send(SessionId id, const protocol::FromCoordinator& message) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    found->second.connection->Send(message.SerializeAsString());
  }

  void CloseSession(SessionId id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    found->second.connection->CloseAfterWriting();
  }

  SessionRoute RouteOf(SessionId id) const {
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? SessionRoute{} : found->second.route;
  }

  void Post(std::function<void()> work) {
    boost::asio::post(loop_, std::move(work));
  }

 private:
  struct Session {
    std::shared_ptr<Connection> connection;
    SessionRoute route;
    std::chrono::steady_clock::time_point began;
    std::string
        expected_token;  // Its Hello must have it; set by its Challenge.
    bool authenticated = false;
  };

  void Accept() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (stopping_) return;
      if (!error) OnAccepted(std::move(socket));
      Accept();
    });
  }

  void OnAccepted(tcp::socket socket) {
    const SessionId id = static_cast<SessionId>(++last_session_);
    error_code gone;
    const SessionRoute route = {
        .here = AddressOf(socket.local_endpoint(gone)),
        .there = AddressOf(socket.remote_endpoint(gone))};
    auto connection = std::make_shared<Connection>(std::move(socket));
    connection->LimitFrames(kMaxStrangersFrame);
    sessions_[id] = {.connection = connection,
                     .route = route,
                     .began = std::chrono::steady_clock::now()};
    connection->Start(
        {.on_message = [this,
                        id](std::string payload) { OnMessage(id, payload); },
         .on_closed = [this, id](absl::Status) { OnClosed(id); }});
  }

  void OnMessage(SessionId id, const std::string& payload) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || stopping_) return;
    Session& session = found->second;
    protocol::ToCoordinator message;
    if (!message.ParseFromString(payload)) {
      Refuse(session);
    } else if (session.authenticated) {
      // At once, since the offset is off by half of what this takes.
      if (message.heartbeat().asked_ns() != 0) {
        AnswerClock(message.heartbeat(), session);
      }
      options_.on_message(id, message);
    } else if (session.expected_token.empty()) {
      if (!Prove(message.challenge(), session)) Refuse(session);
    } else if (message.has_hello() &&
               SecretsEqual(message.hello().token(), session.expected_token)) {
      session.authenticated = true;
      session.connection->LimitFrames(kMaxFrameBytes);
      options_.on_message(id, message);
    } else {
      Refuse(session);
    }
  }

  static void AnswerClock(const protocol::Heartbeat& heartbeat,
                          const Session& session) {
    protocol::FromCoordinator message;
    protocol::ClockAnswer* answer = message.mutable_clock();
    answer->set_asked_ns(heartbeat.asked_ns());
    answer->set_received_ns(absl::ToUnixNanos(MonotonicNow()));
    answer->set_answered_ns(answer->received_ns());
    session.connection->Send(message.SerializeAsString());
  }

  static void Refuse(const Session& session) {
    // A copy: closing erases the session.
    const std::shared_ptr<Connection> connection = session.connection;
    connection->Close(absl::PermissionDeniedError("not a peer of this job"));
  }

  // False if there is nothing to prove.
  bool Prove(const protocol::Challenge& challenge, Session& session) {
    const absl::StatusOr<std::string> nonce = MakeNonce();
    if (!nonce.ok() || challenge.nonce().size() != nonce->size()) return false;
    session.expected_token =
        ProofOf(options_.secret, Prover::kPeer, challenge.nonce(), *nonce);
    protocol::FromCoordinator answer;
    answer.mutable_proof()->set_nonce(*nonce);
    answer.mutable_proof()->set_token(ProofOf(
        options_.secret, Prover::kCoordinator, challenge.nonce(), *nonce));
    session.connection->Send(answer.SerializeAsString());
    return true;
  }

  void CloseStrangers() {
    const auto limit = std::chrono::steady_clock::now() - kProofLimit;
    std::vector<std::shared_ptr<Connection>> strangers;
    for (const auto& [id, session] : sessions_) {
      if (!session.authenticated && session.began < limit) {
        strangers.push_back(session.connection);
      }
    }
    for (const std::shared_ptr<Connection>& connection : strangers) {
      connection->Close(absl::DeadlineExceededError("no proof"));
    }
  }

  void OnClosed(SessionId id) {
    const bool was_peer = sessions_[id].authenticated;
    sessions_.erase(id);
    if (stopping_) {
      if (sessions_.empty()) flush_timer_.cancel();
      return;
    }
    if (was_peer) options_.on_closed(id);
  }

  void Tick() {
    timer_.expires_after(absl::ToChronoMilliseconds(options_.tick_interval));
    timer_.async_wait([this](const error_code& error) {
      if (error || stopping_) return;
      CloseStrangers();
      options_.on_tick();
      if (!stopping_) Tick();
    });
  }

  ServerOptions options_;
  boost::asio::io_context loop_;
  tcp::acceptor acceptor_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer flush_timer_;
  std::map<SessionId, Session> sessions_;
  uint64_t last_session_ = 0;
  bool stopping_ = false;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Create(ServerOptions options) {
  try {
    auto impl = std::make_unique<Impl>(std::move(options));
    if (absl::Status status = impl->Listen(); !status.ok()) return status;
    return std::unique_ptr<Server>(new Server(std::move(impl)));
  } catch (const boost::system::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot serve peers: ", error.what()));
  }
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;
void Server::Run() { impl_->Run(); }
void Server::Stop() { impl_->Stop(); }
void Server::Send(SessionId session, const protocol::FromCoordinator& message) {
  impl_->Send(session, message);
}
void Server::CloseSession(SessionId session) { impl_->CloseSession(session); }
SessionRoute Server::RouteOf(SessionId session) const {
  return impl_->RouteOf(session);
}
void Server::Post(std::function<void()> work) { impl_->Post(std::move(work)); }

}  // namespace millrace
