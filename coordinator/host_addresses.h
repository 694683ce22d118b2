// Which of a host's addresses the other hosts of a job use. Pure.
//
// The coordinator sees each host by the address from which its agent came. A
// host that was cut off may come back over IPv6 where it came over IPv4 before,
// whichever answers first, and workers cannot mix the two.

#ifndef MILLRACE_COORDINATOR_HOST_ADDRESSES_H_
#define MILLRACE_COORDINATOR_HOST_ADDRESSES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/protocol/millrace.pb.h"

namespace millrace {

enum class AddressFamily { kIpv4, kIpv6 };
AddressFamily FamilyOf(const std::string& address);

struct HostAddresses {
  std::string seen;  // By the coordinator.
  // All that the job may use, as the host's agent says.
  std::vector<protocol::InterfaceAddress> usable;
};

// Returns an address of each host, by the agent's index. `family_in_use` is the
// family of the workers that run; nothing before the first of them is started.
//
// A host that was seen by another family than the one in use is given its
// address of that family at the same interface, or keeps the one that was seen
// if it has none. While no family is in use, hosts that were seen by one family
// keep what was seen. Otherwise all are given IPv4, or else IPv6, if every host
// has it at its interface.
std::map<int32_t, std::string> AddressesOfOneFamily(
    const std::map<int32_t, HostAddresses>& hosts,
    std::optional<AddressFamily> family_in_use);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_HOST_ADDRESSES_H_
