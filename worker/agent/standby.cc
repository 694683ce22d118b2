#include "worker/agent/standby.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace millrace {
namespace {

// Addresses of all keepers of a coordinator are far shorter.
constexpr size_t kMostBytes = 64 << 10;

struct alignas(cmsghdr) Control {
  std::array<char, CMSG_SPACE(kMostPredecessors * sizeof(int))> bytes = {};
};

std::vector<int> DescriptorsOf(msghdr& message) {
  std::vector<int> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    fds.resize((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(part), fds.size() * sizeof(int));
  }
  return fds;
}

}  // namespace

absl::StatusOr<StandbySocket> MakeStandbySocket() {
  int fds[2] = {-1, -1};
  // Packets, so that an order comes as a whole or not at all.
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot make a socket: ", strerror(errno)));
  }
  return StandbySocket{.agent_fd = fds[0], .standby_fd = fds[1]};
}

absl::Status SendOrder(int agent_fd, const StandbyOrder& order) {
  CHECK(order.predecessor_fds.size() <= kMostPredecessors);
  std::string text =
      absl::StrCat(order.incarnation, " ", order.coordinator_address);
  iovec data = {.iov_base = text.data(), .iov_len = text.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  Control control;
  if (const size_t num_bytes = order.predecessor_fds.size() * sizeof(int);
      num_bytes > 0) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(num_bytes);
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(num_bytes);
    std::memcpy(CMSG_DATA(part), order.predecessor_fds.data(), num_bytes);
  }
  if (sendmsg(agent_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    return absl::UnavailableError(
        absl::StrCat("the standby process took no order: ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<StandbyOrder>> ReceiveOrder(int standby_fd) {
  std::string text(kMostBytes, '\0');
  iovec data = {.iov_base = text.data(), .iov_len = text.size()};
  Control control;
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  ssize_t count = 0;
  do {
    count = recvmsg(standby_fd, &message, MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count == 0) return std::nullopt;
  if (count < 0) {
    return absl::UnavailableError(
        absl::StrCat("waiting for an order of the agent: ", strerror(errno)));
  }
  text.resize(static_cast<size_t>(count));
  StandbyOrder order = {.predecessor_fds = DescriptorsOf(message)};
  const std::pair<absl::string_view, absl::string_view> words =
      absl::StrSplit(text, absl::MaxSplits(' ', 1));
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      !absl::SimpleAtoi(words.first, &order.incarnation) ||
      words.second.empty()) {
    return absl::InternalError("the agent's order is cut off");
  }
  order.coordinator_address = std::string(words.second);
  return order;
}

}  // namespace millrace
