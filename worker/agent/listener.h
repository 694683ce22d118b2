// The coordinator's listening socket. Agent 0 makes it and hands it to every
// coordinator process it starts, so that the address outlives them, and
// connections made while none runs wait in the socket's queue.

#ifndef MILLRACE_WORKER_AGENT_LISTENER_H_
#define MILLRACE_WORKER_AGENT_LISTENER_H_

#include <string>

#include "absl/status/statusor.h"

namespace millrace {

class Listener {
 public:
  // On a free port: of the loopback address, or, with `for_other_hosts`, of all
  // addresses.
  static absl::StatusOr<Listener> Create(bool for_other_hosts);
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&& other) noexcept;
  ~Listener();

  int fd() const { return fd_; }
  // "127.0.0.1:4711"; with `for_other_hosts` an address of this host that is
  // not the loopback's.
  const std::string& address() const { return address_; }

 private:
  Listener(int fd, std::string address);
  int fd_;
  std::string address_;
};

// The address of this machine from which it reaches `peer` ("10.0.0.1:4711").
absl::StatusOr<std::string> AddressTowards(const std::string& peer);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_LISTENER_H_
