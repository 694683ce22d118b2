#include "coordinator/host_addresses.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace millrace {
namespace {

std::optional<std::string> AddressIn(AddressFamily family,
                                     const HostAddresses& host) {
  if (FamilyOf(host.seen) == family) return host.seen;
  const auto seen = std::find_if(
      host.usable.begin(), host.usable.end(),
      [&](const auto& other) { return other.address() == host.seen; });
  if (seen == host.usable.end()) return std::nullopt;
  for (const protocol::InterfaceAddress& other : host.usable) {
    if (other.interface() == seen->interface() &&
        FamilyOf(other.address()) == family) {
      return other.address();
    }
  }
  return std::nullopt;
}

}  // namespace

AddressFamily FamilyOf(const std::string& address) {
  return absl::StrContains(address, ':') ? AddressFamily::kIpv6
                                         : AddressFamily::kIpv4;
}

std::map<int32_t, std::string> AddressesOfOneFamily(
    const std::map<int32_t, HostAddresses>& hosts,
    std::optional<AddressFamily> family_in_use) {
  std::map<int32_t, std::string> seen;
  for (const auto& [agent_idx, host] : hosts) seen[agent_idx] = host.seen;
  if (family_in_use.has_value()) {
    for (const auto& [agent_idx, host] : hosts) {
      seen[agent_idx] = AddressIn(*family_in_use, host).value_or(host.seen);
    }
    return seen;
  }
  const bool is_one_family =
      std::all_of(seen.begin(), seen.end(), [&](const auto& other) {
        return FamilyOf(other.second) == FamilyOf(seen.begin()->second);
      });
  if (is_one_family) return seen;
  for (const AddressFamily family :
       {AddressFamily::kIpv4, AddressFamily::kIpv6}) {
    std::map<int32_t, std::string> found;
    for (const auto& [agent_idx, host] : hosts) {
      const std::optional<std::string> address = AddressIn(family, host);
      if (address.has_value()) found[agent_idx] = *address;
    }
    if (found.size() == hosts.size()) return found;
  }
  return seen;
}

}  // namespace millrace
