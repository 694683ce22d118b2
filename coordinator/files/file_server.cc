#include "coordinator/files/file_server.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/files/served_files.h"
#include "coordinator/protocol/connection.h"
#include "coordinator/protocol/tls.h"
#include "fault/file_system.h"

namespace millrace {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

// Disks that are slow to make a file durable must not hold up other readers.
constexpr size_t kNumDiskThreads = 4;
// The coordinator's server treats strangers alike: peers that have not proven
// to know the secret.
constexpr auto kProofLimit = std::chrono::seconds(20);
constexpr size_t kMaxStrangers = 64;
constexpr auto kAcceptPause = std::chrono::milliseconds(50);

}  // namespace

class FileServer::Impl {
 public:
  explicit Impl(TlsContext tls)
      : tls_(tls.release()),
        acceptor_(loop_),
        accept_timer_(loop_),
        disk_(kNumDiskThreads) {}

  absl::Status Listen(int listen_fd) {
    error_code error;
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    // A descriptor that is no socket is refused below.
    getsockname(listen_fd, reinterpret_cast<sockaddr*>(&address), &size);
    acceptor_.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(),
                     listen_fd, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    if (error) {
      return absl::InternalError(
          absl::StrCat("descriptor ", listen_fd,
                       " is not a listening socket: ", error.message()));
    }
    Accept();
    thread_ = std::thread([this] { loop_.run(); });
    return absl::OkStatus();
  }

  ~Impl() {
    boost::asio::post(loop_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
      const auto sessions = sessions_;  // Closing erases from the table.
      for (const auto& [id, session] : sessions) {
        session->connection->Close(absl::CancelledError("the job has ended"));
      }
      loop_.stop();
    });
    if (thread_.joinable()) thread_.join();
    disk_.join();
  }

  ServedFiles& served() { return served_; }
  int32_t port() const { return port_; }

 private:
  struct Session {
    Session(std::shared_ptr<Connection> of, const ServedFiles& served)
        : connection(std::move(of)), calls(served, *PosixFileSystem()) {}
    std::shared_ptr<Connection> connection;
    FileCalls calls;    // The disk's thread uses it while `busy`.
    bool busy = false;  // A call is under way.
  };

  void Accept() {
    if (strangers_.size() >= kMaxStrangers) {
      AcceptLater();
      return;
    }
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (error == boost::asio::error::operation_aborted) return;
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
      if (!error) Accept();
    });
  }

  void OnAccepted(tcp::socket socket) {
    const uint64_t id = ++last_session_;
    const auto session = std::make_shared<Session>(
        std::make_shared<Connection>(std::move(socket), tls_,
                                     TlsEnd::kCoordinator),
        served_);
    sessions_[id] = session;
    const auto limit = std::make_shared<boost::asio::steady_timer>(loop_);
    strangers_.insert(id);
    session->connection->Start({.on_proven =
                                    [this, id, limit] {
                                      limit->cancel();
                                      strangers_.erase(id);
                                    },
                                .on_message =
                                    [this, session](std::string payload) {
                                      OnMessage(session, payload);
                                    },
                                .on_closed =
                                    [this, id, limit](const absl::Status&) {
                                      limit->cancel();
                                      strangers_.erase(id);
                                      sessions_.erase(id);
                                    }});
    limit->expires_after(kProofLimit);
    limit->async_wait([session](const error_code& error) {
      if (!error) {
        session->connection->Close(absl::CancelledError("no proof in time"));
      }
    });
  }

  void OnMessage(const std::shared_ptr<Session>& session,
                 const std::string& payload) {
    auto request = std::make_shared<protocol::FileRequest>();
    if (session->busy || !request->ParseFromString(payload)) {
      session->connection->Close(absl::DataLossError("not a call on files"));
      return;
    }
    session->busy = true;
    boost::asio::post(disk_, [this, session, request] {
      auto answer = std::make_shared<std::string>(
          session->calls.Answer(*request).SerializeAsString());
      boost::asio::post(loop_, [session, answer] {
        session->busy = false;
        session->connection->Send(*answer);
      });
    });
  }

  ServedFiles served_;
  boost::asio::ssl::context tls_;
  boost::asio::io_context loop_;
  tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  int32_t port_ = 0;
  std::map<uint64_t, std::shared_ptr<Session>> sessions_;
  std::set<uint64_t> strangers_;  // Sessions without a proof.
  uint64_t last_session_ = 0;
  boost::asio::thread_pool disk_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<FileServer>> FileServer::Create(
    int listen_fd, const std::string& secret) {
  ASSIGN_OR_RETURN(TlsContext tls,
                   MakeTlsContext(TlsEnd::kCoordinator, secret));
  try {
    auto impl = std::make_unique<Impl>(std::move(tls));
    RETURN_IF_ERROR(impl->Listen(listen_fd));
    return std::unique_ptr<FileServer>(new FileServer(std::move(impl)));
  } catch (const boost::system::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot serve files: ", error.what()));
  }
}

FileServer::FileServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FileServer::~FileServer() = default;
void FileServer::Serve(const std::string& name, const std::string& path,
                       bool writable) {
  impl_->served().Serve(name, path, writable);
}
void FileServer::KeepLog(
    std::function<protocol::KeepAnswer(const protocol::KeepRequest&)> keep) {
  impl_->served().KeepLog(std::move(keep));
}
void FileServer::RefuseTermsBelow(int64_t term) {
  impl_->served().RefuseTermsBelow(term);
}
int32_t FileServer::port() const { return impl_->port(); }

}  // namespace millrace
