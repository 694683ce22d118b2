// Which of this host's addresses other hosts of the job are offered: the job's
// `network` keys say, else the environment variables that users of Gloo and
// NCCL know, else every interface that is up counts.

#ifndef MILLRACE_WORKER_AGENT_NETWORK_H_
#define MILLRACE_WORKER_AGENT_NETWORK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/job/job.h"

namespace millrace {

struct HostAddress {
  std::string interface;  // "eth0".
  std::string address;    // "10.0.0.1" or "fd00::1".
  bool is_ipv6 = false;
  bool is_loopback = false;
};

// All addresses of interfaces that are up, in the kernel's order, IPv4 first.
// Link-local ones are left out: they mean nothing on another host.
absl::StatusOr<std::vector<HostAddress>> HostAddresses();

// The addresses of "node1:4711", "10.0.0.1:4711" or "[fd00::1]:4711", as a
// client takes them. InvalidArgument if it is not of that form, Unavailable if
// the name is not known.
absl::StatusOr<std::string> ResolveAddress(const std::string& host_and_port);

// Whether a list as in NCCL_SOCKET_IFNAME takes an interface: names separated
// by commas, each the beginning of a name, or a whole one behind "=". A "^"
// before the list takes all interfaces but those.
bool TakesInterface(absl::string_view list, absl::string_view interface);

// Those of `addresses` that a job may use, in their order. The interfaces come
// from network.interface, else GLOO_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME.
// The loopback interface must be named. InvalidArgument, with what there is, if
// no address is left.
absl::StatusOr<std::vector<HostAddress>> UsableAddresses(
    const NetworkSpec& network, const std::vector<HostAddress>& addresses);

// The address at which this host's workers listen: `suggested`, which the
// coordinator saw, if the job may use it; else one of the same family, else the
// first that it may use.
absl::StatusOr<HostAddress> ChooseAddress(
    const NetworkSpec& network, const std::vector<HostAddress>& addresses,
    const std::string& suggested);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_NETWORK_H_
