#include "worker/agent/timed_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

struct PeerAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

absl::StatusOr<PeerAddress> PeerAddressOf(const std::string& address,
                                          int32_t port) {
  PeerAddress result;
  auto* four = reinterpret_cast<sockaddr_in*>(&result.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&result.storage);
  if (inet_pton(AF_INET, address.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(static_cast<uint16_t>(port));
    result.size = sizeof(*four);
  } else if (inet_pton(AF_INET6, address.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(static_cast<uint16_t>(port));
    result.size = sizeof(*six);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is no address of IPv4 or IPv6"));
  }
  return result;
}

absl::Status SocketError(int error) {
  return absl::UnavailableError(strerror(error));
}

}  // namespace

TimedSocket::TimedSocket(int fd) : fd_(fd) {
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  const int on = 1;  // Round trips are measured.
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}
TimedSocket::TimedSocket(TimedSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}
TimedSocket& TimedSocket::operator=(TimedSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
TimedSocket::~TimedSocket() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<TimedSocket> TimedSocket::Connect(const std::string& address,
                                                 int32_t port,
                                                 absl::Time deadline) {
  ASSIGN_OR_RETURN(const PeerAddress peer, PeerAddressOf(address, port));
  const int fd = socket(peer.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SocketError(errno);
  TimedSocket connection(fd);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&peer.storage),
              peer.size) == 0) {
    return connection;
  }
  if (errno != EINPROGRESS) return SocketError(errno);
  RETURN_IF_ERROR(connection.Wait(POLLOUT, deadline));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return SocketError(error);
  return connection;
}

absl::Status TimedSocket::Wait(short events, absl::Time deadline) const {
  while (true) {
    const int64_t left_ms =
        absl::ToInt64Milliseconds(deadline - MonotonicNow());
    pollfd entry = {.fd = fd_, .events = events};
    const int ready =
        poll(&entry, 1, static_cast<int>(std::max<int64_t>(left_ms, 0)));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return absl::DeadlineExceededError("no answer");
    if (errno != EINTR) return SocketError(errno);
  }
}

absl::Status TimedSocket::Read(void* bytes, size_t size, absl::Time deadline) {
  auto* next = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t count = recv(fd_, next, size, 0);
    if (count > 0) {
      next += count;
      size -= static_cast<size_t>(count);
    } else if (count == 0) {
      return absl::UnavailableError("the other end closed the connection");
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(Wait(POLLIN, deadline));
    } else if (errno != EINTR) {
      return SocketError(errno);
    }
  }
  return absl::OkStatus();
}

absl::Status TimedSocket::Write(const void* bytes, size_t size,
                                absl::Time deadline) {
  const auto* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t count = send(fd_, next, size, MSG_NOSIGNAL);
    if (count > 0) {
      next += count;
      size -= static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(Wait(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return SocketError(errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TimedSocket::Greet(TlsEnd end,
                                               absl::string_view secret,
                                               const std::string& words,
                                               absl::Time deadline) {
  ASSIGN_OR_RETURN(const TlsContext context, MakeTlsContext(end, secret));
  return Shake(end, context.get(),
               {.read =
                    [&](std::string* bytes) {
                      return Read(bytes->data(), bytes->size(), deadline);
                    },
                .write =
                    [&](absl::string_view bytes) {
                      return Write(bytes.data(), bytes.size(), deadline);
                    }},
               words);
}

void TimedSocket::ShutDown() { shutdown(fd_, SHUT_RDWR); }

std::string TimedSocket::OwnAddress() const {
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return "";
  }
  char text[INET6_ADDRSTRLEN] = {};
  const void* address =
      own.ss_family == AF_INET
          ? static_cast<const void*>(
                &reinterpret_cast<const sockaddr_in*>(&own)->sin_addr)
          : &reinterpret_cast<const sockaddr_in6*>(&own)->sin6_addr;
  inet_ntop(own.ss_family, address, text, sizeof(text));
  return text;
}

}  // namespace millrace
