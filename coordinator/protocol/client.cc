#include "coordinator/protocol/client.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
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
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/protocol/connection.h"
#include "coordinator/protocol/tls.h"

namespace millrace {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr auto kReconnectPause = std::chrono::milliseconds(50);
constexpr auto kFlushLimit = std::chrono::milliseconds(500);

// Between the first tries of one address and the next: the order of addresses
// decides which one is taken if several lead to the coordinator (RFC 8305).
constexpr auto kTryNextAfter = std::chrono::milliseconds(250);
// Until addresses that failed are tried again, while another one is silent.
constexpr auto kTryAgainAfter = std::chrono::milliseconds(500);
// A host that does not answer at all, and one that does not go on.
constexpr auto kConnectLimit = std::chrono::seconds(5);
constexpr auto kProofLimit = std::chrono::seconds(60);
// Exchanges of clocks that count, and heartbeats between later ones: clocks
// drift some microseconds a second.
constexpr int64_t kClockExchanges = 8;
constexpr int64_t kClockInterval = 10;
// A coordinator that may be elsewhere later says something each second.
constexpr absl::Duration kSilenceLimit = absl::Milliseconds(2500);

absl::StatusOr<tcp::endpoint> ParseAddress(absl::string_view text) {
  absl::string_view host = text;
  const size_t colon = text.rfind(':');
  int32_t port = 0;
  error_code error;
  if (colon != absl::string_view::npos &&
      absl::SimpleAtoi(text.substr(colon + 1), &port) && port > 0 &&
      port < 65536) {
    host.remove_suffix(host.size() - colon);
    if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) {
      host = "";
    }
    const auto address =
        boost::asio::ip::make_address(std::string(host), error);
    if (!error) return tcp::endpoint(address, static_cast<uint16_t>(port));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not an address like 10.0.0.1:4711 or [fd00::1]:4711"));
}

absl::StatusOr<std::vector<tcp::endpoint>> ParseAddresses(
    const std::string& addresses) {
  std::vector<tcp::endpoint> endpoints;
  for (const absl::string_view text : absl::StrSplit(addresses, ',')) {
    absl::StatusOr<tcp::endpoint> endpoint = ParseAddress(text);
    if (!endpoint.ok()) return endpoint.status();
    endpoints.push_back(*std::move(endpoint));
  }
  return endpoints;
}

std::string ToText(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return absl::StrCat(endpoint.address().is_v6() ? "[" : "", address,
                      endpoint.address().is_v6() ? "]:" : ":", endpoint.port());
}

}  // namespace

class Client::Impl {
 public:
  Impl(ClientOptions options, std::vector<tcp::endpoint> endpoints,
       TlsContext tls)
      : options_(std::move(options)),
        endpoints_(std::move(endpoints)),
        tls_(tls.release()),
        work_(boost::asio::make_work_guard(loop_)),
        heartbeat_timer_(loop_),
        reconnect_timer_(loop_),
        next_try_timer_(loop_),
        try_again_timer_(loop_),
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
      CloseTries();
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
        const protocol::ToCoordinator& message = entry.second;
        return message.generation() != 0 && message.generation() < generation &&
               !message.has_step_done();
      });
    });
  }

  void SetEndpoints(std::vector<tcp::endpoint> endpoints) {
    boost::asio::post(loop_, [this, endpoints = std::move(endpoints)] {
      next_endpoints_ = endpoints;
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
      return absl::UnavailableError(absl::StrCat(
          "no coordinator for ", absl::FormatDuration(options_.give_up_after),
          " at ", errors_));
    }
    return std::nullopt;
  }

  int event_fd() const { return event_fd_; }

  std::string address() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return address_;
  }

  std::optional<ClockOffset> clock_offset() const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (exchanges_.empty()) return std::nullopt;
    return OffsetOf(exchanges_);
  }

 private:
  // One address being tried: connected to, then asked for a proof. The first
  // that proves to know the secret becomes connection_, the others are closed.
  struct Try {
    explicit Try(boost::asio::io_context& loop) : socket(loop), limit(loop) {}
    tcp::socket socket;  // Until it is connected.
    std::shared_ptr<Connection> connection;
    boost::asio::steady_timer limit;
    std::string error;
    bool ended = false;
  };

  // Tries all addresses, one a little after the other.
  void Connect() {
    if (leaving_) return;
    tries_.clear();
    if (!next_endpoints_.empty()) {
      endpoints_ = std::exchange(next_endpoints_, {});
    }
    TryNext();
  }

  void TryNext() {
    if (leaving_ || connection_ != nullptr ||
        tries_.size() == endpoints_.size()) {
      return;
    }
    tries_.push_back(std::make_shared<Try>(loop_));
    Begin(tries_.back(), endpoints_[tries_.size() - 1]);
    if (tries_.size() == endpoints_.size()) return;
    next_try_timer_.expires_after(kTryNextAfter);
    next_try_timer_.async_wait([this](const error_code& error) {
      if (!error) TryNext();
    });
  }

  void Begin(const std::shared_ptr<Try>& attempt,
             const tcp::endpoint& endpoint) {
    LimitTry(attempt, kConnectLimit, "no answer");
    attempt->socket.async_connect(endpoint,
                                  [this, attempt](const error_code& error) {
                                    if (attempt->ended) return;
                                    if (error) {
                                      EndTry(attempt, error.message());
                                    } else {
                                      AskForProof(attempt);
                                    }
                                  });
  }

  // An address that accepts may say nothing for long: no coordinator has been
  // started behind it yet. The others must not wait for that. After a while,
  // tries those that failed again in their order, round after round.
  void TryFailedAgain() {
    if (tries_again_) return;
    tries_again_ = true;
    next_again_ = 0;
    TryNextAgainAfter(kTryAgainAfter);
  }

  void TryNextAgainAfter(std::chrono::steady_clock::duration pause) {
    try_again_timer_.expires_after(pause);
    try_again_timer_.async_wait([this](const error_code& error) {
      if (!error && tries_again_) TryNextAgain();
    });
  }

  void TryNextAgain() {
    while (next_again_ < tries_.size()) {
      const size_t i = next_again_++;
      if (!tries_[i]->ended) continue;
      tries_[i] = std::make_shared<Try>(loop_);
      TryNextAgainAfter(kTryNextAfter);
      Begin(tries_[i], endpoints_[i]);
      return;
    }
    next_again_ = 0;
    TryNextAgainAfter(kTryAgainAfter);
  }

  void StopTryingAgain() {
    tries_again_ = false;
    try_again_timer_.cancel();
  }

  void LimitTry(const std::shared_ptr<Try>& attempt,
                std::chrono::steady_clock::duration limit, const char* reason) {
    attempt->limit.expires_after(limit);
    attempt->limit.async_wait([this, attempt, reason](const error_code& error) {
      if (!error) EndTry(attempt, reason);
    });
  }

  void AskForProof(const std::shared_ptr<Try>& attempt) {
    LimitTry(attempt, kProofLimit, "it accepts connections but says nothing");
    attempt->connection = std::make_shared<Connection>(
        std::move(attempt->socket), tls_, TlsEnd::kPeer);
    attempt->connection->Start(
        {.on_proven = [this, attempt] { OnProven(attempt); },
         .on_closed =
             [this, attempt](const absl::Status& reason) {
               EndTry(attempt,
                      absl::IsPermissionDenied(reason)
                          ? "the answer is not of this job's coordinator"
                          : reason.message());
             }});
  }

  void OnProven(const std::shared_ptr<Try>& attempt) {
    if (attempt->ended) return;
    const std::shared_ptr<Connection> connection =
        std::exchange(attempt->connection, nullptr);
    for (size_t i = 0; i < tries_.size(); ++i) {
      if (tries_[i] != attempt) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      address_ = ToText(endpoints_[i]);
    }
    CloseTries();
    OnConnected(connection);
  }

  void EndTry(const std::shared_ptr<Try>& attempt, absl::string_view reason) {
    if (attempt->ended) return;
    CloseTry(*attempt);
    attempt->error = std::string(reason);
    // The next address need not wait for its turn.
    if (tries_.size() < endpoints_.size()) {
      next_try_timer_.cancel();
      TryNext();
      TryFailedAgain();
      return;
    }
    const auto has_ended = [](const auto& other) { return other->ended; };
    if (!std::all_of(tries_.begin(), tries_.end(), has_ended) &&
        MonotonicNow() - away_since_ <=
            options_.give_up_after + absl::FromChrono(kProofLimit)) {
      const bool is_last_again =
          tries_again_ && next_again_ > 0 && tries_[next_again_ - 1] == attempt;
      if (is_last_again) {
        TryNextAgain();  // The next one need not wait for its turn either.
      } else {
        TryFailedAgain();
      }
      return;
    }
    StopTryingAgain();
    std::vector<std::string> errors;
    for (size_t i = 0; i < tries_.size(); ++i) {
      errors.push_back(
          absl::StrCat(ToText(endpoints_[i]), " (",
                       tries_[i]->ended ? tries_[i]->error : "no answer", ")"));
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      errors_ = absl::StrJoin(errors, ", ");
    }
    RetryLater();
  }

  static void CloseTry(Try& attempt) {
    attempt.ended = true;
    attempt.limit.cancel();
    error_code ignored;
    attempt.socket.close(ignored);
    if (attempt.connection != nullptr) {
      attempt.connection->Close(absl::CancelledError("not needed"));
    }
  }

  void CloseTries() {
    next_try_timer_.cancel();
    StopTryingAgain();
    const std::vector<std::shared_ptr<Try>> tries = std::move(tries_);
    tries_.clear();
    for (const std::shared_ptr<Try>& attempt : tries) CloseTry(*attempt);
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

  void OnConnected(std::shared_ptr<Connection> connection) {
    connection_ = std::move(connection);
    connection_->Redirect(
        {.on_message = [this](std::string payload) { OnMessage(payload); },
         .on_closed = [this](absl::Status) { OnClosed(); }});
    protocol::ToCoordinator first;
    *first.mutable_hello() = options_.make_hello();
    first.mutable_hello()->set_term(term_);
    heard_ = MonotonicNow();
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
    heard_ = MonotonicNow();
    protocol::FromCoordinator message;
    if (!message.ParseFromString(payload)) {
      connection_->Close(absl::DataLossError("not a message of the protocol"));
      return;
    }
    if (message.term() < term_) {
      connection_->Close(absl::CancelledError("a later coordinator is known"));
      return;
    }
    term_ = message.term();
    // Only an answer counts as presence: a listening socket accepts
    // connections while the coordinator behind it is being restarted.
    greeted_ = true;
    if (message.has_clock()) {
      OnClock(message.clock());
      return;
    }
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
      CloseIfSilent();
      if (connection_ != nullptr) {
        protocol::ToCoordinator message;
        message.mutable_heartbeat();
        if (AsksForClock()) {
          message.mutable_heartbeat()->set_asked_ns(ClockNow());
        }
        if (options_.fill_heartbeat) options_.fill_heartbeat(&message);
        connection_->Send(message.SerializeAsString());
      }
      Heartbeat();
    });
  }

  // A host that is cut off ends no connection.
  void CloseIfSilent() {
    if (connection_ == nullptr || term_ == 0 ||
        MonotonicNow() - heard_ <= kSilenceLimit) {
      return;
    }
    // A copy: closing forgets it.
    const std::shared_ptr<Connection> connection = connection_;
    connection->Close(absl::UnavailableError("the coordinator is silent"));
  }

  int64_t ClockNow() const { return absl::ToUnixNanos(options_.clock()); }

  // Often at first, so that early steps have an offset.
  bool AsksForClock() {
    if (!options_.measures_clock) return false;
    const int64_t heartbeat = num_heartbeats_++;
    return heartbeat < kClockExchanges || heartbeat % kClockInterval == 0;
  }

  void OnClock(const protocol::ClockAnswer& answer) {
    const ClockExchange exchange = {.asked = answer.asked_ns(),
                                    .received = answer.received_ns(),
                                    .answered = answer.answered_ns(),
                                    .arrived = ClockNow()};
    std::lock_guard<std::mutex> lock(mutex_);
    exchanges_.push_back(exchange);
    if (exchanges_.size() > size_t{kClockExchanges}) {
      exchanges_.erase(exchanges_.begin());
    }
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
  std::vector<tcp::endpoint> endpoints_;
  boost::asio::ssl::context tls_;

  // The event loop of the client's thread.
  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type>
      work_;
  boost::asio::steady_timer heartbeat_timer_;
  boost::asio::steady_timer reconnect_timer_;
  boost::asio::steady_timer next_try_timer_;
  boost::asio::steady_timer try_again_timer_;
  std::vector<std::shared_ptr<Try>> tries_;  // By endpoint, as far as tried.
  bool tries_again_ = false;  // Whether failed ones are tried again.
  size_t next_again_ = 0;     // The address that may be tried again next.
  std::shared_ptr<Connection> connection_;
  std::map<uint64_t, protocol::ToCoordinator> unacknowledged_;
  uint64_t last_sequence_ = 0;
  int64_t num_heartbeats_ = 0;
  std::vector<tcp::endpoint> next_endpoints_;  // For the next Connect().
  int64_t term_ = 0;                           // The latest coordinator's.
  absl::Time heard_;                           // Of it, on this connection.
  bool greeted_ = false;
  bool leaving_ = false;
  std::function<void()> on_left_;

  int event_fd_;
  absl::Time away_since_;
  mutable std::mutex mutex_;  // Guards what follows.
  std::string address_;
  std::string errors_;  // Why the last tries failed, by address.
  std::condition_variable arrived_;
  std::deque<protocol::FromCoordinator> inbox_;
  bool gave_up_ = false;
  std::vector<ClockExchange> exchanges_;  // The last few.

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  ASSIGN_OR_RETURN(std::vector<tcp::endpoint> endpoints,
                   ParseAddresses(options.address));
  ASSIGN_OR_RETURN(TlsContext tls,
                   MakeTlsContext(TlsEnd::kPeer, options.secret));
  // Asio throws where file descriptors run out, std::thread where threads do.
  try {
    return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(
        std::move(options), std::move(endpoints), std::move(tls))));
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
absl::Status Client::SetAddress(const std::string& address) {
  ASSIGN_OR_RETURN(std::vector<tcp::endpoint> endpoints,
                   ParseAddresses(address));
  impl_->SetEndpoints(std::move(endpoints));
  return absl::OkStatus();
}
void Client::DropOlderThan(int64_t generation) {
  impl_->DropOlderThan(generation);
}
absl::StatusOr<std::optional<protocol::FromCoordinator>> Client::Receive(
    absl::Duration timeout) {
  return impl_->Receive(timeout);
}
std::optional<ClockOffset> Client::clock_offset() const {
  return impl_->clock_offset();
}
std::string Client::address() const { return impl_->address(); }
int Client::event_fd() const { return impl_->event_fd(); }

}  // namespace millrace
