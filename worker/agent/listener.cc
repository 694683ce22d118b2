#include "worker/agent/listener.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr int kBacklog = 1024;

absl::Status SocketError(const char* what) {
  return absl::InternalError(absl::StrCat(what, ": ", strerror(errno)));
}

std::string ToText(const in_addr& address) {
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &address, text, sizeof(text));
  return text;
}

// The first address that other hosts could reach.
std::string OutwardAddress() {
  ifaddrs* interfaces = nullptr;
  std::string result = "127.0.0.1";
  if (getifaddrs(&interfaces) != 0) return result;
  for (const ifaddrs* i = interfaces; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET ||
        (i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    result =
        ToText(reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr);
    break;
  }
  freeifaddrs(interfaces);
  return result;
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

absl::StatusOr<Listener> Listener::Create(bool for_other_hosts) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SocketError("cannot make a socket");
  Listener listener(fd, "");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr =
      htonl(for_other_hosts ? INADDR_ANY : INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd, kBacklog) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return SocketError("cannot listen");
  }
  listener.address_ =
      absl::StrCat(for_other_hosts ? OutwardAddress() : "127.0.0.1", ":",
                   ntohs(address.sin_port));
  return listener;
}

absl::StatusOr<std::string> AddressTowards(const std::string& peer) {
  const size_t colon = peer.rfind(':');
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  int32_t port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(peer.substr(colon + 1), &port) ||
      inet_pton(AF_INET, peer.substr(0, colon).c_str(), &address.sin_addr) !=
          1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", peer, "' is not an address like 10.0.0.1:4711"));
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  // Connecting a datagram socket sends nothing; it only picks the route.
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SocketError("cannot make a socket");
  socklen_t size = sizeof(address);
  const bool ok =
      connect(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(fd);
  if (!ok) return SocketError("no route to the coordinator");
  return ToText(address.sin_addr);
}

}  // namespace millrace
