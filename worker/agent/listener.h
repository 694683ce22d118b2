// The coordinator's listening socket. Agent 0 makes it and hands it to every
// coordinator process it starts, so that the address outlives them, and
// connections made while none runs wait in the socket's queue.

#ifndef MILLRACE_WORKER_AGENT_LISTENER_H_
#define MILLRACE_WORKER_AGENT_LISTENER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/subnet.h"

namespace millrace {

// Which ports may be taken, and who says so.
struct ListenerPorts {
  PortRange range;  // 0 and 0: one of the kernel's choice.
  std::string origin = "any port";
};

class Listener {
 public:
  // On the loopback address.
  static absl::StatusOr<Listener> Create();
  // For other hosts, which are told `addresses`: at the one address if there is
  // only one, else at all of this host. Errors name the ports and who chose
  // them: Unavailable if all are in use, InvalidArgument if the user may not
  // listen there.
  static absl::StatusOr<Listener> Create(
      const std::vector<std::string>& addresses, const ListenerPorts& ports);
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&& other) noexcept;
  ~Listener();

  int fd() const { return fd_; }
  // "127.0.0.1:4711", or several: "10.0.0.1:4711,[fd00::1]:4711".
  const std::string& address() const { return address_; }

 private:
  Listener(int fd, std::string address);
  int fd_;
  std::string address_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_LISTENER_H_
