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

// Returns an address of each host, by the agent's index: the one that was seen,
// if all are of one family. Otherwise hosts that were seen by the other family
// take the address of the same interface: of the family `preferred`, else of
// IPv4, else of IPv6, whichever all hosts have. Those that were seen if none
// is.
std::map<int32_t, std::string> AddressesOfOneFamily(
    const std::map<int32_t, HostAddresses>& hosts,
    std::optional<AddressFamily> preferred);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_HOST_ADDRESSES_H_
