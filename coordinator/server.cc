#include "coordinator/server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/protocol/connection.h"
#include "coordinator/protocol/secret.h"

namespace millrace {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

// How long Stop() waits for peers that do not read.
constexpr auto kFlushLimit = std::chrono::seconds(2);

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
    acceptor_.assign(tcp::v4(), options_.listen_fd, error);
    if (error) {
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

  void Post(std::function<void()> work) {
    boost::asio::post(loop_, std::move(work));
  }

 private:
  struct Session {
    std::shared_ptr<Connection> connection;
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
    auto connection = std::make_shared<Connection>(std::move(socket));
    sessions_[id] = {.connection = connection};
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
    const bool welcome =
        message.ParseFromString(payload) &&
        (session.authenticated ||
         (message.has_hello() &&
          SecretsEqual(message.hello().token(), options_.secret)));
    if (!welcome) {
      // A copy: closing erases the session.
      const std::shared_ptr<Connection> connection = session.connection;
      connection->Close(absl::PermissionDeniedError("not a peer of this job"));
      return;
    }
    session.authenticated = true;
    options_.on_message(id, message);
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
void Server::Post(std::function<void()> work) { impl_->Post(std::move(work)); }

}  // namespace millrace
