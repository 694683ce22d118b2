#include "coordinator/host_addresses.h"

#include <gtest/gtest.h>

#include <utility>

namespace millrace {
namespace {

HostAddresses Host(
    const std::string& seen,
    const std::vector<std::pair<std::string, std::string>>& usable) {
  HostAddresses host = {.seen = seen, .usable = {}};
  for (const auto& [interface, address] : usable) {
    protocol::InterfaceAddress& added = host.usable.emplace_back();
    added.set_interface(interface);
    added.set_address(address);
  }
  return host;
}

HostAddresses HostWithBoth(int number, const std::string& seen) {
  const std::string end = std::to_string(number);
  return Host(seen, {{"bridge", "172.17.0.1"},
                     {"eth0", "10.0.0." + end},
                     {"bridge", "fd01::1"},
                     {"eth0", "fd00::" + end}});
}

using Addresses = std::map<int32_t, std::string>;

// Goal: hosts that were seen by one family are left as they are before workers
// run. Method: IPv4, IPv6, no host.
TEST(HostAddressesTest, LeavesOneFamilyAlone) {
  EXPECT_EQ(AddressesOfOneFamily({}, std::nullopt), Addresses());
  EXPECT_EQ(AddressesOfOneFamily(
                {{0, HostWithBoth(1, "10.0.0.1")}, {2, Host("10.0.0.2", {})}},
                std::nullopt),
            (Addresses{{0, "10.0.0.1"}, {2, "10.0.0.2"}}));
  EXPECT_EQ(AddressesOfOneFamily({{0, HostWithBoth(1, "fd00::1")},
                                  {1, HostWithBoth(2, "fd00::2")}},
                                 std::nullopt),
            (Addresses{{0, "fd00::1"}, {1, "fd00::2"}}));
}

// Goal: where families mix, each host is reached by the interface by which it
// was seen, in the family that the job uses already. Method: a bridge whose
// addresses come first; no preference, and either.
TEST(HostAddressesTest, TakesTheOtherAddressOfTheSameInterface) {
  const std::map<int32_t, HostAddresses> hosts = {
      {0, HostWithBoth(1, "10.0.0.1")}, {1, HostWithBoth(2, "fd00::2")}};
  const Addresses ipv4 = {{0, "10.0.0.1"}, {1, "10.0.0.2"}};
  const Addresses ipv6 = {{0, "fd00::1"}, {1, "fd00::2"}};
  EXPECT_EQ(AddressesOfOneFamily(hosts, std::nullopt), ipv4);
  EXPECT_EQ(AddressesOfOneFamily(hosts, AddressFamily::kIpv4), ipv4);
  EXPECT_EQ(AddressesOfOneFamily(hosts, AddressFamily::kIpv6), ipv6);
}

// Goal: workers that run keep their family, whichever way agents come back, and
// a host that lacks it changes nothing for the others. Method: all come back by
// IPv6 while workers use IPv4; one of them has no IPv4.
TEST(HostAddressesTest, KeepsTheFamilyInUse) {
  EXPECT_EQ(AddressesOfOneFamily({{0, HostWithBoth(1, "fd00::1")},
                                  {1, HostWithBoth(2, "fd00::2")},
                                  {2, Host("fd00::3", {{"eth0", "fd00::3"}})}},
                                 AddressFamily::kIpv4),
            (Addresses{{0, "10.0.0.1"}, {1, "10.0.0.2"}, {2, "fd00::3"}}));
}

// Goal: a family that a host lacks is not taken, and none is if each is lacked
// by one. Method: a host with IPv6 alone; with it one with IPv4 alone.
TEST(HostAddressesTest, KnowsWhatAHostLacks) {
  std::map<int32_t, HostAddresses> hosts = {
      {0, HostWithBoth(1, "10.0.0.1")},
      {1, Host("fd00::2", {{"eth0", "fd00::2"}})}};
  EXPECT_EQ(AddressesOfOneFamily(hosts, std::nullopt),
            (Addresses{{0, "fd00::1"}, {1, "fd00::2"}}));
  hosts[2] = Host("10.0.0.3", {{"eth0", "10.0.0.3"}});
  EXPECT_EQ(AddressesOfOneFamily(hosts, std::nullopt),
            (Addresses{{0, "10.0.0.1"}, {1, "fd00::2"}, {2, "10.0.0.3"}}));
}

}  // namespace
}  // namespace millrace
