#include "worker/doctor/pair_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/clock_offset.h"
#include "base/parallel.h"
#include "base/statistics.h"
#include "base/status_macros.h"
#include "coordinator/protocol/tls.h"
#include "worker/agent/timed_socket.h"

namespace millrace {
namespace {

constexpr absl::Duration kStrangerLimit = absl::Seconds(15);
constexpr absl::Duration kServeLimit = absl::Seconds(10);
constexpr absl::Duration kRailLimit = absl::Seconds(5);
constexpr int kMaxServing = 256;
constexpr int kMaxTries = 32;  // At a time.
constexpr int kPatience = 5;
constexpr int kAcceptPollMs = 50;

constexpr int kNumExchanges = 50;
constexpr int64_t kFirstBytes = 64 << 10;
constexpr int64_t kMostBytes = int64_t{4} << 30;
constexpr size_t kBlockBytes = 256 << 10;
// Long enough for TCP to find its window on most networks.
constexpr double kLongEnough_s = 0.1;

// A client's wish, and how many bytes it is about. Both ends run on machines of
// one byte order: Millrace is for x86-64.
enum class Wish : int64_t { kClock = 1, kTakeBytes = 2, kGiveBytes = 3 };
struct WishMessage {
  Wish wish;
  int64_t num_bytes;
};
struct ClockMessage {
  int64_t received;
  int64_t answered;
};

int64_t WallClock() { return absl::GetCurrentTimeNanos(); }

absl::Status WriteBlocks(TimedSocket& socket, int64_t num_bytes,
                         absl::Time deadline) {
  static const std::vector<char> block(kBlockBytes, 'm');
  while (num_bytes > 0) {
    const size_t size = std::min<size_t>(block.size(), num_bytes);
    RETURN_IF_ERROR(socket.Write(block.data(), size, deadline));
    num_bytes -= static_cast<int64_t>(size);
  }
  return absl::OkStatus();
}

absl::Status ReadBlocks(TimedSocket& socket, int64_t num_bytes,
                        absl::Time deadline) {
  std::vector<char> block(kBlockBytes);
  while (num_bytes > 0) {
    const size_t size = std::min<size_t>(block.size(), num_bytes);
    RETURN_IF_ERROR(socket.Read(block.data(), size, deadline));
    num_bytes -= static_cast<int64_t>(size);
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> GreetServer(TimedSocket& socket,
                                    const std::string& secret,
                                    absl::Time deadline) {
  const absl::StatusOr<std::string> words =
      socket.Greet(TlsEnd::kPeer, secret, "", deadline);
  if (absl::IsPermissionDenied(words.status())) {
    return absl::PermissionDeniedError(
        "the answer is not of this examination's");
  }
  RETURN_IF_ERROR(words.status());
  int32_t agent_idx = 0;
  if (!absl::SimpleAtoi(*words, &agent_idx)) {
    return absl::InternalError("the answer is no agent's number");
  }
  return agent_idx;
}

// Until the client ends the connection, or `stopping`.
absl::Status ServeWishes(TimedSocket& socket,
                         const std::atomic<bool>& stopping) {
  while (!stopping) {
    const absl::Time deadline = MonotonicNow() + kServeLimit;
    WishMessage wish = {};
    RETURN_IF_ERROR(socket.Read(&wish, sizeof(wish), deadline));
    const int64_t received = WallClock();
    if (wish.num_bytes < 0 || wish.num_bytes > kMostBytes) {
      return absl::InvalidArgumentError("not a wish");
    }
    switch (wish.wish) {
      case Wish::kClock:
        break;
      case Wish::kTakeBytes:
        RETURN_IF_ERROR(ReadBlocks(socket, wish.num_bytes, deadline));
        break;
      case Wish::kGiveBytes:
        RETURN_IF_ERROR(WriteBlocks(socket, wish.num_bytes, deadline));
        continue;
      default:
        return absl::InvalidArgumentError("not a wish");
    }
    const ClockMessage answer = {received, WallClock()};
    RETURN_IF_ERROR(socket.Write(&answer, sizeof(answer), deadline));
  }
  return absl::OkStatus();
}

absl::StatusOr<ClockExchange> ExchangeClocks(TimedSocket& socket,
                                             absl::Time deadline) {
  const WishMessage wish = {Wish::kClock, 0};
  ClockExchange exchange = {.asked = WallClock()};
  RETURN_IF_ERROR(socket.Write(&wish, sizeof(wish), deadline));
  ClockMessage answer = {};
  RETURN_IF_ERROR(socket.Read(&answer, sizeof(answer), deadline));
  exchange.arrived = WallClock();
  exchange.received = answer.received;
  exchange.answered = answer.answered;
  return exchange;
}

// Seconds that so many bytes take.
absl::StatusOr<double> TimeBytes(TimedSocket& socket, Wish direction,
                                 int64_t num_bytes, absl::Time deadline) {
  const WishMessage wish = {direction, num_bytes};
  const double start = MonotonicSeconds();
  RETURN_IF_ERROR(socket.Write(&wish, sizeof(wish), deadline));
  if (direction == Wish::kTakeBytes) {
    RETURN_IF_ERROR(WriteBlocks(socket, num_bytes, deadline));
    ClockMessage taken = {};
    RETURN_IF_ERROR(socket.Read(&taken, sizeof(taken), deadline));
  } else {
    RETURN_IF_ERROR(ReadBlocks(socket, num_bytes, deadline));
  }
  return MonotonicSeconds() - start;
}

// Bytes a second, of as many bytes as take long enough to measure.
absl::StatusOr<double> MeasureBytes(TimedSocket& socket, Wish direction,
                                    absl::Time deadline) {
  int64_t num_bytes = kFirstBytes;
  while (true) {
    ASSIGN_OR_RETURN(const double seconds,
                     TimeBytes(socket, direction, num_bytes, deadline));
    if (seconds >= kLongEnough_s || num_bytes * 2 > kMostBytes) {
      return static_cast<double>(num_bytes) / seconds;
    }
    // Up to eight times as many: the first bytes find the window.
    const double factor =
        std::clamp(1.2 * kLongEnough_s / std::max(seconds, 1e-6), 1.5, 8.0);
    num_bytes =
        std::min(kMostBytes,
                 static_cast<int64_t>(static_cast<double>(num_bytes) * factor));
  }
}

absl::Status Measure(const PairTarget& target, const std::string& secret,
                     RailFacts* rail) {
  const absl::Time deadline = MonotonicNow() + kRailLimit;
  ASSIGN_OR_RETURN(
      TimedSocket socket,
      TimedSocket::Connect(target.address.address, target.port, deadline));
  ASSIGN_OR_RETURN(const int32_t answering,
                   GreetServer(socket, secret, deadline));
  if (answering != target.agent_idx) {
    return absl::UnavailableError("another process answered");
  }
  std::vector<ClockExchange> exchanges;
  std::vector<double> round_trips;
  for (int i = 0; i < kNumExchanges; ++i) {
    ASSIGN_OR_RETURN(const ClockExchange exchange,
                     ExchangeClocks(socket, deadline));
    exchanges.push_back(exchange);
    round_trips.push_back(RoundTripOf(exchange));
  }
  rail->round_trip_s = MedianOf(round_trips);
  const ClockOffset clock = OffsetOf(exchanges);
  rail->clock_offset_s = clock.seconds;
  rail->clock_uncertainty_s = clock.uncertainty;
  ASSIGN_OR_RETURN(rail->there_bytes_s,
                   MeasureBytes(socket, Wish::kTakeBytes, deadline));
  ASSIGN_OR_RETURN(rail->back_bytes_s,
                   MeasureBytes(socket, Wish::kGiveBytes, deadline));
  return absl::OkStatus();
}

std::string InterfaceOf(const std::vector<HostAddress>& addresses,
                        const std::string& address) {
  for (const HostAddress& own : addresses) {
    if (own.address == address) return own.interface;
  }
  return address;
}

ReachedAddress Reach(const PairTarget& target, const std::string& secret,
                     const std::vector<HostAddress>& own_addresses,
                     absl::Duration limit) {
  ReachedAddress result = {.to = target.agent_idx,
                           .interface = target.address.interface,
                           .address = target.address.address};
  for (const HostAddress& own : own_addresses) {
    if (own.address != target.address.address) continue;
    // As a container bridge's, which every host has: the kernel would not even
    // look outside.
    result.led_elsewhere = true;
    result.error = "an address of this host too";
    return result;
  }
  absl::StatusOr<TimedSocket> socket = TimedSocket::Connect(
      target.address.address, target.port, MonotonicNow() + limit);
  if (!socket.ok()) {
    result.error =
        absl::IsDeadlineExceeded(socket.status())
            ? absl::StrCat("no answer in ", absl::FormatDuration(limit))
            : std::string(socket.status().message());
    return result;
  }
  result.own_interface = InterfaceOf(own_addresses, socket->OwnAddress());
  // The kernel has answered. The process behind it may be busy with others.
  const absl::Duration patience = kPatience * limit;
  const absl::StatusOr<int32_t> answering =
      GreetServer(*socket, secret, MonotonicNow() + patience);
  if (answering.ok() && *answering != target.agent_idx) {
    result.led_elsewhere = true;
    result.error = absl::StrCat("agent ", *answering, " answered");
  } else if (absl::IsDeadlineExceeded(answering.status())) {
    result.error = absl::StrCat("it accepts connections and says nothing for ",
                                absl::FormatDuration(patience));
  } else {
    result.error = std::string(answering.status().message());
  }
  return result;
}

int32_t PortOfAddress(const std::string& address) {
  int32_t port = 0;
  const bool read =
      absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port);
  return read ? port : 0;
}

}  // namespace

PairServer::PairServer(Listener listener, std::string secret)
    : listener_(std::move(listener)),
      secret_(std::move(secret)),
      port_(PortOfAddress(listener_.address())) {
  // A client may leave between poll() and accept().
  fcntl(listener_.fd(), F_SETFL, fcntl(listener_.fd(), F_GETFL) | O_NONBLOCK);
}

absl::StatusOr<std::unique_ptr<PairServer>> PairServer::Create(
    const std::vector<std::string>& addresses, const std::string& secret) {
  absl::StatusOr<Listener> listener = Listener::Create(addresses, {});
  if (!listener.ok()) return listener.status();
  std::unique_ptr<PairServer> server(
      new PairServer(*std::move(listener), secret));
  server->thread_ = std::thread([own = server.get()] { own->Accept(); });
  return server;
}

PairServer::~PairServer() {
  stopping_ = true;
  thread_.join();
  // Each of them ends within kStrangerLimit and kServeLimit.
  while (num_serving_ > 0) absl::SleepFor(absl::Milliseconds(5));
}

void PairServer::Accept() {
  while (!stopping_) {
    pollfd entry = {.fd = listener_.fd(), .events = POLLIN};
    if (num_serving_ >= kMaxServing) {
      absl::SleepFor(absl::Milliseconds(kAcceptPollMs));
      continue;
    }
    if (poll(&entry, 1, kAcceptPollMs) <= 0) continue;
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      // For example no descriptor is free: others are about to end.
      absl::SleepFor(absl::Milliseconds(kAcceptPollMs));
      continue;
    }
    ++num_serving_;
    try {
      std::thread([this, fd] {
        Serve(fd);
        --num_serving_;
      }).detach();
    } catch (const std::system_error&) {  // No thread is free: others end soon.
      --num_serving_;
      close(fd);
    }
  }
}

void PairServer::Serve(int fd) {
  TimedSocket socket(fd);
  const absl::Time deadline = MonotonicNow() + kStrangerLimit;
  // Why a connection ended is the client's to say.
  absl::Status status = socket
                            .Greet(TlsEnd::kCoordinator, secret_,
                                   absl::StrCat(agent_idx_.load()), deadline)
                            .status();
  if (status.ok()) status = ServeWishes(socket, stopping_);
  static_cast<void>(status);
}

std::vector<ReachedAddress> ReachAll(
    const std::vector<PairTarget>& targets, const std::string& secret,
    const std::vector<HostAddress>& own_addresses, absl::Duration limit) {
  std::vector<ReachedAddress> result(targets.size());
  const absl::Status status = ParallelFor(
      static_cast<int64_t>(targets.size()), kMaxTries, [&](int64_t i) {
        result[i] = Reach(targets[i], secret, own_addresses, limit);
        return absl::OkStatus();
      });
  static_cast<void>(status);  // The work above returns no error.
  return result;
}

RailFacts MeasureRail(const PairTarget& target, const std::string& secret) {
  RailFacts rail = {.to = target.agent_idx,
                    .interface = target.address.interface,
                    .address = target.address.address};
  const absl::Status status = Measure(target, secret, &rail);
  if (!status.ok()) rail.error = std::string(status.message());
  return rail;
}

}  // namespace millrace
