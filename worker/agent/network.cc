#include "worker/agent/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "planner/job/subnet.h"

namespace millrace {
namespace {

struct InterfaceList {
  std::string origin;  // Empty: nobody names any.
  std::string names;
};

InterfaceList NamedInterfaces(const NetworkSpec& network) {
  if (!network.interface.empty()) {
    return {"network.interface", network.interface};
  }
  for (const char* variable : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return {variable, value};
  }
  return {};
}

std::string Describe(const std::vector<HostAddress>& addresses) {
  if (addresses.empty()) return "none";
  return absl::StrJoin(
      addresses, ", ", [](std::string* out, const HostAddress& address) {
        absl::StrAppend(out, address.interface, " (", address.address, ")");
      });
}

std::string AddressText(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(family, address, text, sizeof(text));
  return text;
}

}  // namespace

absl::StatusOr<std::vector<HostAddress>> HostAddresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot list network interfaces: ", strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first,
                                                               freeifaddrs);
  std::vector<HostAddress> result;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    HostAddress entry = {.interface = i->ifa_name,
                         .is_loopback = (i->ifa_flags & IFF_LOOPBACK) != 0};
    if (i->ifa_addr->sa_family == AF_INET) {
      entry.address = AddressText(
          AF_INET,
          &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr);
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& address =
          reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      entry.address = AddressText(AF_INET6, &address);
      entry.is_ipv6 = true;
    } else {
      continue;
    }
    result.push_back(std::move(entry));
  }
  std::stable_partition(result.begin(), result.end(),
                        [](const HostAddress& a) { return !a.is_ipv6; });
  return result;
}

absl::StatusOr<std::string> ResolveAddress(const std::string& host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  std::string host = host_and_port.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  const std::string port =
      colon == std::string::npos ? "" : host_and_port.substr(colon + 1);
  const std::optional<PortRange> number = ParsePorts(port);
  if (host.empty() || port.empty() || !number.has_value() ||
      number->first != number->last) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", host_and_port,
                     "' is not HOST:PORT, such as node1:4711, 10.0.0.1:4711 "
                     "or [fd00::1]:4711"));
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &first);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("no address of host ", host, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(first,
                                                                 freeaddrinfo);
  std::vector<std::string> result;
  for (const addrinfo* i = first; i != nullptr; i = i->ai_next) {
    if (i->ai_family == AF_INET) {
      const auto* four = reinterpret_cast<const sockaddr_in*>(i->ai_addr);
      result.push_back(
          absl::StrCat(AddressText(AF_INET, &four->sin_addr), ":", port));
    } else if (i->ai_family == AF_INET6) {
      const auto* six = reinterpret_cast<const sockaddr_in6*>(i->ai_addr);
      result.push_back(absl::StrCat("[", AddressText(AF_INET6, &six->sin6_addr),
                                    "]:", port));
    }
  }
  return absl::StrJoin(result, ",");
}

bool TakesInterface(absl::string_view list, absl::string_view interface) {
  const bool excludes = absl::ConsumePrefix(&list, "^");
  for (absl::string_view name : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    const bool whole = absl::ConsumePrefix(&name, "=");
    if (whole ? interface == name : absl::StartsWith(interface, name)) {
      return !excludes;
    }
  }
  return excludes;
}

absl::StatusOr<std::vector<HostAddress>> UsableAddresses(
    const NetworkSpec& network, const std::vector<HostAddress>& addresses) {
  const InterfaceList named = NamedInterfaces(network);
  const bool names_some =
      !named.names.empty() && !absl::StartsWith(named.names, "^");
  std::optional<Subnet> subnet;
  if (!network.subnet.empty()) {
    subnet = ParseSubnet(network.subnet);
    if (!subnet.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("network.subnet ", network.subnet, " is not a subnet"));
    }
  }
  std::vector<HostAddress> result;
  for (const HostAddress& address : addresses) {
    if (address.is_loopback && !names_some) continue;
    if (!named.names.empty() &&
        !TakesInterface(named.names, address.interface)) {
      continue;
    }
    if (subnet.has_value() && !subnet->Contains(address.address)) continue;
    result.push_back(address);
  }
  if (!result.empty()) return result;
  std::vector<std::string> wishes;
  if (!named.names.empty()) {
    wishes.push_back(absl::StrCat(named.origin, " ", named.names));
  }
  if (subnet.has_value()) {
    wishes.push_back(absl::StrCat("network.subnet ", network.subnet));
  }
  if (wishes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this host has no address that other hosts could reach; "
                     "its addresses: ",
                     Describe(addresses)));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no address of this host suits ", absl::StrJoin(wishes, " and "),
      "; its addresses: ", Describe(addresses)));
}

absl::StatusOr<HostAddress> ChooseAddress(
    const NetworkSpec& network, const std::vector<HostAddress>& addresses,
    const std::string& suggested) {
  const auto known = std::find_if(
      addresses.begin(), addresses.end(),
      [&](const HostAddress& a) { return a.address == suggested; });
  // A job on one host.
  if (known != addresses.end() && known->is_loopback) return *known;
  ASSIGN_OR_RETURN(const std::vector<HostAddress> usable,
                   UsableAddresses(network, addresses));
  const bool wants_ipv6 = absl::StrContains(suggested, ':');
  for (const HostAddress& address : usable) {
    if (address.address == suggested) return address;
  }
  for (const HostAddress& address : usable) {
    if (address.is_ipv6 == wants_ipv6) return address;
  }
  return usable.front();
}

}  // namespace millrace
