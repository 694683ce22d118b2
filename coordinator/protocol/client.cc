#include "coordinator/protocol/client.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "coordinator/protocol/connection.h"

namespace millrace {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr auto kReconnectPause = std::chrono::milliseconds(50);
constexpr auto kFlushLimit = std::chrono::milliseconds(500);

absl::StatusOr<tcp::endpoint> ParseAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int32_t port = 0;
  error_code error;
  if (colon != std::string::npos &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 &&
      port < 65536) {
    const auto host =
        boost::asio::ip::make_address(address.substr(0, colon), error);
    if (!error) return tcp::endpoint(host, static_cast<uint16_t>(port));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", address, "' is not an address like 10.0.0.1:4711"));
}

}  // namespace

class Client::Impl {
 public:
  Impl(ClientOptions options, tcp::endpoint endpoint)
      : options_(std::move(options)),
        endpoint_(std::move(endpoint)),
        work_(boost::asio::make_work_guard(loop_)),
        heartbeat_timer_(loop_),
        reconnect_timer_(loop_),
        event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        away_since_(MonotonicNow()) {
    CHECK(event_fd_ >= 0);
    boost::asio::post(loop_, [this] {
      Connect();
      Heartbeat();
    });
    thread_ = std::thread([this] { loop_.run(); });
  }

  ~Impl() {
    std::promise<void> flushed;
    std::future<void> done = flushed.get_future();
    boost::asio::post(loop_, [this, &flushed] {
      leaving_ = true;
      heartbeat_timer_.cancel();
      reconnect_timer_.cancel();
      on_left_ = [&flushed] { flushed.set_value(); };
      if (connection_ != nullptr) {
        connection_->CloseAfterWriting();
      } else {
        std::exchange(on_left_, nullptr)();
      }
    });
    done.wait_for(kFlushLimit);
    loop_.stop();
    thread_.join();
    close(event_fd_);
  }

  void SendReliably(protocol::ToCoordinator message) {
    boost::asio::post(loop_, [this, message = std::move(message)]() mutable {
      message.set_sequence(++last_sequence_);
      if (connection_ != nullptr) {
        connection_->Send(message.SerializeAsString());
      }
      unacknowledged_.emplace(last_sequence_, std::move(message));
    });
  }

  void Send(protocol::ToCoordinator message) {
    boost::asio::post(loop_, [this, message = std::move(message)] {
      if (connection_ != nullptr) {
        connection_->Send(message.SerializeAsString());
      }
    });
  }

  void DropOlderThan(int64_t generation) {
    boost::asio::post(loop_, [this, generation] {
      std::erase_if(unacknowledged_, [&](const auto& entry) {
        const int64_t own = entry.second.generation();
        return own != 0 && own < generation;
      });
    });
  }

  absl::StatusOr<std::optional<protocol::FromCoordinator>> Receive(
      absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                      [this] { return !inbox_.empty() || gave_up_; });
    if (!inbox_.empty()) {
      protocol::FromCoordinator message = std::move(inbox_.front());
      inbox_.pop_front();
      if (inbox_.empty() && !gave_up_) {
        uint64_t count;  // Reading resets the event to unreadable.
        const ssize_t bytes_read = read(event_fd_, &count, sizeof(count));
        static_cast<void>(bytes_read);
      }
      return message;
    }
    if (gave_up_) {
      return absl::UnavailableError(
          absl::StrCat("no coordinator at ", options_.address, " for ",
                       absl::FormatDuration(options_.give_up_after)));
    }
    return std::nullopt;
  }

  int event_fd() const { return event_fd_; }

 private:
  void Connect() {
    if (leaving_) return;
    auto socket = std::make_shared<tcp::socket>(loop_);
    socket->async_connect(endpoint_, [this, socket](const error_code& error) {
      if (leaving_) return;
      if (error) {
        RetryLater();
      } else {
        OnConnected(std::move(*socket));
      }
    });
  }

  void RetryLater() {
    if (MonotonicNow() - away_since_ > options_.give_up_after) {
      std::lock_guard<std::mutex> lock(mutex_);
      gave_up_ = true;
      Wake();
      return;
    }
    reconnect_timer_.expires_after(kReconnectPause);
    reconnect_timer_.async_wait([this](const error_code& error) {
      if (!error) Connect();
    });
  }

  void OnConnected(tcp::socket socket) {
    connection_ = std::make_shared<Connection>(std::move(socket));
    connection_->Start(
        {.on_message = [this](std::string payload) { OnMessage(payload); },
         .on_closed = [this](absl::Status) { OnClosed(); }});
    protocol::ToCoordinator first;
    *first.mutable_hello() = options_.make_hello();
    first.mutable_hello()->set_token(options_.secret);
    connection_->Send(first.SerializeAsString());
    for (const auto& [sequence, message] : unacknowledged_) {
      connection_->Send(message.SerializeAsString());
    }
  }

  void OnClosed() {
    connection_ = nullptr;
    if (leaving_) {
      if (on_left_) std::exchange(on_left_, nullptr)();
      return;
    }
    if (greeted_) away_since_ = MonotonicNow();
    greeted_ = false;
    RetryLater();
  }

  void OnMessage(const std::string& payload) {
    protocol::FromCoordinator message;
    if (!message.ParseFromString(payload)) {
      connection_->Close(absl::DataLossError("not a message of the protocol"));
      return;
    }
    // Only an answer counts as presence: a listening socket accepts
    // connections while the coordinator behind it is being restarted.
    greeted_ = true;
    if (message.has_acknowledge()) {
      for (uint64_t sequence : message.acknowledge().sequences()) {
        unacknowledged_.erase(sequence);
      }
      return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    inbox_.push_back(std::move(message));
    Wake();
  }

  void Heartbeat() {
    heartbeat_timer_.expires_after(
        absl::ToChronoMilliseconds(options_.heartbeat_interval));
    heartbeat_timer_.async_wait([this](const error_code& error) {
      if (error || leaving_) return;
      if (connection_ != nullptr) {
        protocol::ToCoordinator message;
        message.mutable_heartbeat();
        connection_->Send(message.SerializeAsString());
      }
      Heartbeat();
    });
  }

  // mutex_ held.
  void Wake() {
    const uint64_t one = 1;
    // Fails only if the counter is about to overflow, and then it is readable.
    const ssize_t written = write(event_fd_, &one, sizeof(one));
    static_cast<void>(written);
    arrived_.notify_all();
  }

  const ClientOptions options_;
  const tcp::endpoint endpoint_;

  // The event loop of the client's thread.
  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type>
      work_;
  boost::asio::steady_timer heartbeat_timer_;
  boost::asio::steady_timer reconnect_timer_;
  std::shared_ptr<Connection> connection_;
  std::map<uint64_t, protocol::ToCoordinator> unacknowledged_;
  uint64_t last_sequence_ = 0;
  bool greeted_ = false;
  bool leaving_ = false;
  std::function<void()> on_left_;

  int event_fd_;
  absl::Time away_since_;
  std::mutex mutex_;  // Guards what follows.
  std::condition_variable arrived_;
  std::deque<protocol::FromCoordinator> inbox_;
  bool gave_up_ = false;

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  absl::StatusOr<tcp::endpoint> endpoint = ParseAddress(options.address);
  if (!endpoint.ok()) return endpoint.status();
  // Asio throws where file descriptors run out, std::thread where threads do.
  try {
    return std::unique_ptr<Client>(new Client(
        std::make_unique<Impl>(std::move(options), *std::move(endpoint))));
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot talk to the coordinator: ", error.what()));
  }
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

void Client::SendReliably(protocol::ToCoordinator message) {
  impl_->SendReliably(std::move(message));
}
void Client::Send(protocol::ToCoordinator message) {
  impl_->Send(std::move(message));
}
void Client::DropOlderThan(int64_t generation) {
  impl_->DropOlderThan(generation);
}
absl::StatusOr<std::optional<protocol::FromCoordinator>> Client::Receive(
    absl::Duration timeout) {
  return impl_->Receive(timeout);
}
int Client::event_fd() const { return impl_->event_fd(); }

}  // namespace millrace
