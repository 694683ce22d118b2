#include "coordinator/server.h"

#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/protocol/connection.h"
#include "coordinator/protocol/tls.h"

namespace millrace {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

// How long Stop() waits for peers that do not read.
constexpr auto kFlushLimit = std::chrono::seconds(2);
// Who has not proven to know the secret gets so much time.
constexpr auto kProofLimit = std::chrono::seconds(20);
// So many may be without a proof at once. One more takes the place of the
// oldest, which has had this long; until then it waits in the socket's queue.
constexpr size_t kMaxStrangers = 256;
constexpr auto kLeastProofTime = std::chrono::seconds(1);
constexpr auto kAcceptPause = std::chrono::milliseconds(50);
// Two and more fit into what a client waits (Client).
constexpr auto kBeat = std::chrono::seconds(1);

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
  Impl(ServerOptions options, TlsContext tls)
      : options_(std::move(options)),
        tls_(tls.release()),
        acceptor_(loop_),
        timer_(loop_),
        accept_timer_(loop_),
        flush_timer_(loop_) {
    protocol::FromCoordinator term;
    term.set_term(options_.term);
    term_ = term.SerializeAsString();
  }

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
    accept_timer_.cancel();
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
    SendTo(*found->second.connection, message);
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

  int64_t num_strangers() const { return num_strangers_; }

  void Post(std::function<void()> work) {
    boost::asio::post(loop_, std::move(work));
  }

 private:
  struct Session {
    std::shared_ptr<Connection> connection;
    SessionRoute route;
    std::chrono::steady_clock::time_point began;
    bool greeted = false;  // Its Hello has come.
  };

  void Accept() {
    if (strangers_.size() >= kMaxStrangers && !MakeRoom()) {
      AcceptLater();
      return;
    }
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (stopping_) return;
      if (error) {  // For example no descriptor is free.
        AcceptLater();
        return;
      }
      OnAccepted(std::move(socket));
      Accept();
    });
  }

  void AcceptLater() {
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this](const error_code& error) {
      if (!error && !stopping_) Accept();
    });
  }

  // False if all strangers have come only just now.
  bool MakeRoom() {
    const auto oldest = sessions_.find(*strangers_.begin());
    const auto now = std::chrono::steady_clock::now();
    if (now - oldest->second.began < kLeastProofTime) return false;
    Refuse(oldest->first, "no proof, and others wait");
    return true;
  }

  void OnAccepted(tcp::socket socket) {
    const SessionId id = static_cast<SessionId>(++last_session_);
    error_code gone;
    const SessionRoute route = {
        .here = AddressOf(socket.local_endpoint(gone)),
        .there = AddressOf(socket.remote_endpoint(gone))};
    auto connection = std::make_shared<Connection>(std::move(socket), tls_,
                                                   TlsEnd::kCoordinator);
    sessions_[id] = {.connection = connection,
                     .route = route,
                     .began = std::chrono::steady_clock::now()};
    strangers_.insert(id);
    connection->Start(
        {.on_proven = [this, id] { strangers_.erase(id); },
         .on_message = [this,
                        id](std::string payload) { OnMessage(id, payload); },
         .on_closed =
             [this, id](const absl::Status& reason) {
               // Else the stranger has left by himself.
               if (absl::IsPermissionDenied(reason)) {
                 Count(id, reason.message());
               }
               OnClosed(id);
             }});
  }

  void OnMessage(SessionId id, const std::string& payload) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || stopping_) return;
    Session& session = found->second;
    protocol::ToCoordinator message;
    if (message.ParseFromString(payload) &&
        (session.greeted || message.has_hello())) {
      session.greeted = true;
      // At once, since the offset is off by half of what this takes.
      if (message.heartbeat().asked_ns() != 0) {
        AnswerClock(message.heartbeat(), session);
      }
      options_.on_message(id, message);
    } else {
      Refuse(id, "not a message of the protocol");
    }
  }

  // Messages behind each other are one message, by protobuf's encoding.
  void SendTo(Connection& connection,
              const protocol::FromCoordinator& message) const {
    connection.Send(message.SerializeAsString() + term_);
  }

  void AnswerClock(const protocol::Heartbeat& heartbeat,
                   const Session& session) {
    protocol::FromCoordinator message;
    protocol::ClockAnswer* answer = message.mutable_clock();
    answer->set_asked_ns(heartbeat.asked_ns());
    answer->set_received_ns(absl::ToUnixNanos(MonotonicNow()));
    answer->set_answered_ns(answer->received_ns());
    SendTo(*session.connection, message);
  }

  void Refuse(SessionId id, absl::string_view reason) {
    Count(id, reason);
    // A copy: closing erases the session.
    const std::shared_ptr<Connection> connection = sessions_[id].connection;
    connection->Close(absl::CancelledError("not a peer of this job"));
  }

  void Count(SessionId id, absl::string_view reason) {
    if (!strangers_.contains(id)) return;
    if (++num_strangers_ > 1 || !options_.on_stranger) return;
    options_.on_stranger(
        absl::StrCat(sessions_[id].route.there, " (", reason, ")"));
  }

  void CloseStrangers() {
    const auto limit = std::chrono::steady_clock::now() - kProofLimit;
    while (!strangers_.empty() &&
           sessions_[*strangers_.begin()].began < limit) {
      Refuse(*strangers_.begin(), "no proof in time");
    }
  }

  void OnClosed(SessionId id) {
    const bool was_peer = sessions_[id].greeted;
    strangers_.erase(id);
    sessions_.erase(id);
    if (stopping_) {
      if (sessions_.empty()) flush_timer_.cancel();
      return;
    }
    if (was_peer) options_.on_closed(id);
  }

  // Peers look for another coordinator when they hear nothing.
  void Beat() {
    const auto now = std::chrono::steady_clock::now();
    if (options_.term == 0 || now - beat_ < kBeat) return;
    beat_ = now;
    protocol::FromCoordinator message;
    message.mutable_acknowledge();
    for (const auto& [id, session] : sessions_) {
      if (session.greeted) SendTo(*session.connection, message);
    }
  }

  void Tick() {
    timer_.expires_after(absl::ToChronoMilliseconds(options_.tick_interval));
    timer_.async_wait([this](const error_code& error) {
      if (error || stopping_) return;
      CloseStrangers();
      Beat();
      options_.on_tick();
      if (!stopping_) Tick();
    });
  }

  ServerOptions options_;
  std::string term_;  // As the end of a message.
  std::chrono::steady_clock::time_point beat_;
  boost::asio::ssl::context tls_;
  boost::asio::io_context loop_;
  tcp::acceptor acceptor_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer accept_timer_;
  boost::asio::steady_timer flush_timer_;
  std::map<SessionId, Session> sessions_;
  std::set<SessionId> strangers_;  // Sessions without a proof, oldest first.
  int64_t num_strangers_ = 0;      // Turned away.
  uint64_t last_session_ = 0;
  bool stopping_ = false;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Create(ServerOptions options) {
  ASSIGN_OR_RETURN(TlsContext tls,
                   MakeTlsContext(TlsEnd::kCoordinator, options.secret));
  try {
    auto impl = std::make_unique<Impl>(std::move(options), std::move(tls));
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
int64_t Server::num_strangers() const { return impl_->num_strangers(); }
void Server::Post(std::function<void()> work) { impl_->Post(std::move(work)); }

}  // namespace millrace
