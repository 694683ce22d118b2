#include "worker/agent/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace millrace {
namespace {

using testing::HasSubstr;

// The addresses of a host with a container bridge first, Ethernet and
// InfiniBand.
std::vector<HostAddress> ExampleAddresses() {
  return {{.interface = "lo", .address = "127.0.0.1", .is_loopback = true},
          {.interface = "docker0", .address = "172.17.0.1"},
          {.interface = "eth0", .address = "10.0.0.5"},
          {.interface = "eth10", .address = "10.1.0.5"},
          {.interface = "ib0", .address = "192.168.7.5"},
          {.interface = "lo",
           .address = "::1",
           .is_ipv6 = true,
           .is_loopback = true},
          {.interface = "eth0", .address = "fd00::5", .is_ipv6 = true}};
}

std::string Usable(const NetworkSpec& network) {
  const auto usable = UsableAddresses(network, ExampleAddresses());
  if (!usable.ok()) return std::string(usable.status().message());
  std::string text;
  for (const HostAddress& address : *usable) text += address.address + " ";
  return text;
}

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("NCCL_SOCKET_IFNAME");
    unsetenv("GLOO_SOCKET_IFNAME");
  }
  void TearDown() override { SetUp(); }
};

// Goal: lists of interfaces mean what they mean to NCCL: beginnings, "=" whole
// names, "^" all but those. Method: one of each, and both together.
TEST_F(NetworkTest, TakesInterfacesAsNcclDoes) {
  EXPECT_TRUE(TakesInterface("eth", "eth10"));
  EXPECT_TRUE(TakesInterface("ib,eth1", "eth10"));
  EXPECT_FALSE(TakesInterface("=eth1", "eth10"));
  EXPECT_TRUE(TakesInterface("=eth1,=eth10", "eth10"));
  EXPECT_FALSE(TakesInterface("^docker,veth", "docker0"));
  EXPECT_TRUE(TakesInterface("^docker,veth", "eth0"));
  EXPECT_TRUE(TakesInterface("^=eth1", "eth10"));
  EXPECT_FALSE(TakesInterface("^=eth10", "eth10"));
}

// Goal: keys narrow down what is offered, the job before the environment, and
// loopback counts only by name. Method: what is left of an example host.
TEST_F(NetworkTest, OffersWhatTheJobAllows) {
  EXPECT_EQ(Usable({}), "172.17.0.1 10.0.0.5 10.1.0.5 192.168.7.5 fd00::5 ");
  EXPECT_EQ(Usable({.interface = "^docker"}),
            "10.0.0.5 10.1.0.5 192.168.7.5 fd00::5 ");
  EXPECT_EQ(Usable({.interface = "=eth0"}), "10.0.0.5 fd00::5 ");
  EXPECT_EQ(Usable({.interface = "lo"}), "127.0.0.1 ::1 ");
  EXPECT_EQ(Usable({.subnet = "10.0.0.0/15"}), "10.0.0.5 10.1.0.5 ");
  EXPECT_EQ(Usable({.interface = "eth", .subnet = "fd00::/16"}), "fd00::5 ");
  setenv("NCCL_SOCKET_IFNAME", "ib", 1);
  EXPECT_EQ(Usable({}), "192.168.7.5 ");
  setenv("GLOO_SOCKET_IFNAME", "=eth10", 1);
  EXPECT_EQ(Usable({}), "10.1.0.5 ");
  EXPECT_EQ(Usable({.interface = "docker"}), "172.17.0.1 ");
}

// Goal: a wish that nothing suits is explained with what there is.
TEST_F(NetworkTest, ExplainsWhatSuitsNothing) {
  const std::string neither =
      Usable({.interface = "ib", .subnet = "10.0.0.0/8"});
  EXPECT_THAT(neither, HasSubstr("network.interface ib and network.subnet"));
  EXPECT_THAT(neither, HasSubstr("eth0 (10.0.0.5)"));
  setenv("GLOO_SOCKET_IFNAME", "wlan", 1);
  EXPECT_THAT(Usable({}), HasSubstr("GLOO_SOCKET_IFNAME wlan"));
}

// Goal: workers listen where the coordinator saw the host, unless the job says
// otherwise. Method: suggestions that suit, that do not, and that are none.
TEST_F(NetworkTest, ChoosesWhereWorkersListen) {
  const auto choose = [](const NetworkSpec& network, const char* suggested) {
    const auto chosen = ChooseAddress(network, ExampleAddresses(), suggested);
    return chosen.ok() ? chosen->address : "none";
  };
  EXPECT_EQ(choose({}, "10.1.0.5"), "10.1.0.5");
  EXPECT_EQ(choose({}, "fd00::5"), "fd00::5");
  EXPECT_EQ(choose({}, "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(choose({.interface = "ib"}, "10.0.0.5"), "192.168.7.5");
  EXPECT_EQ(choose({.interface = "^docker"}, "fd00:9::5"), "fd00::5");
  EXPECT_EQ(choose({.interface = "wlan"}, "10.0.0.5"), "none");
}

}  // namespace
}  // namespace millrace
