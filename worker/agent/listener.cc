#include "worker/agent/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr int kBacklog = 1024;

// The socket address of `address` and port, of IPv6 if either end may need it.
// An empty address is that of all interfaces.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

SocketAddress MakeSocketAddress(const std::string& address, bool is_ipv6,
                                int32_t port) {
  SocketAddress result;
  if (is_ipv6) {
    auto* six = reinterpret_cast<sockaddr_in6*>(&result.storage);
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(static_cast<uint16_t>(port));
    if (!address.empty()) inet_pton(AF_INET6, address.c_str(), &six->sin6_addr);
    result.size = sizeof(*six);
  } else {
    auto* four = reinterpret_cast<sockaddr_in*>(&result.storage);
    four->sin_family = AF_INET;
    four->sin_port = htons(static_cast<uint16_t>(port));
    if (!address.empty()) inet_pton(AF_INET, address.c_str(), &four->sin_addr);
    result.size = sizeof(*four);
  }
  return result;
}

bool IsIpv6(const std::string& address) {
  return absl::StrContains(address, ':');
}

// "10.0.0.1:4711" or "[fd00::1]:4711".
std::string WithPort(const std::string& address, int32_t port) {
  return absl::StrCat(IsIpv6(address) ? "[" : "", address,
                      IsIpv6(address) ? "]:" : ":", port);
}

// 0 for a port of the kernel's choice. The caller closes the socket.
absl::StatusOr<int> Listen(const std::string& address, bool is_ipv6,
                           int32_t port) {
  const int fd =
      socket(is_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return absl::InternalError(
        absl::StrCat("cannot make a socket: ", strerror(errno)));
  }
  if (is_ipv6 && address.empty()) {
    const int off = 0;  // IPv4 too.
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (port != 0) {
    const int on = 1;  // A port of a job that just ended is free.
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  const SocketAddress own = MakeSocketAddress(address, is_ipv6, port);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&own.storage), own.size) ==
          0 &&
      listen(fd, kBacklog) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  const std::string message = absl::StrCat(
      "cannot listen at ",
      address.empty() ? absl::StrCat("port ", port) : WithPort(address, port),
      ": ", strerror(error));
  if (error == EADDRINUSE) return absl::UnavailableError(message);
  if (error == EACCES) {
    return absl::InvalidArgumentError(absl::StrCat(
        message, "; ports below 1024 are for root: choose a higher one"));
  }
  if (error == EADDRNOTAVAIL) {
    return absl::InvalidArgumentError(
        absl::StrCat(message, "; this host does not have the address"));
  }
  return absl::InternalError(message);
}

// The first free port of the range.
absl::StatusOr<int> ListenInRange(const std::string& address, bool is_ipv6,
                                  const ListenerPorts& ports) {
  const auto [first, last] = ports.range;
  for (int32_t port = first; port <= last; ++port) {
    absl::StatusOr<int> fd = Listen(address, is_ipv6, port);
    if (fd.ok()) return fd;
    if (absl::IsUnavailable(fd.status())) continue;
    return absl::Status(
        fd.status().code(),
        absl::StrCat(ports.origin, ": ", fd.status().message()));
  }
  return absl::UnavailableError(
      first == last ? absl::StrCat("port ", first, " (", ports.origin,
                                   ") is in use on this host")
                    : absl::StrCat("all ports from ", first, " to ", last, " (",
                                   ports.origin, ") are in use on this host"));
}

int32_t PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  // The port lies at the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

Listener::Listener(int fd, std::string address)
    : fd_(fd), address_(std::move(address)) {}
Listener::Listener(Listener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), address_(std::move(other.address_)) {}
Listener& Listener::operator=(Listener&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(address_, other.address_);
  return *this;
}
Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<Listener> Listener::Create() {
  return Create({"127.0.0.1"}, ListenerPorts());
}

absl::StatusOr<Listener> Listener::Create(
    const std::vector<std::string>& addresses, const ListenerPorts& ports) {
  bool needs_ipv6 = false;
  for (const std::string& address : addresses) {
    needs_ipv6 = needs_ipv6 || IsIpv6(address);
  }
  const std::string bound = addresses.size() == 1 ? addresses[0] : "";
  int fd = -1;
  ASSIGN_OR_RETURN(fd, ListenInRange(bound, needs_ipv6, ports));
  const int32_t port = PortOf(fd);
  const auto with_port = [port](std::string* out, const std::string& address) {
    absl::StrAppend(out, WithPort(address, port));
  };
  return Listener(fd, absl::StrJoin(addresses, ",", with_port));
}

}  // namespace millrace
