#include "worker/doctor/pair_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr char kProbeSecret[] = "0123456789abcdef";

std::unique_ptr<PairServer> StartServer(int32_t agent_idx) {
  absl::StatusOr<std::unique_ptr<PairServer>> server =
      PairServer::Create({"127.0.0.2"}, kProbeSecret);
  EXPECT_TRUE(server.ok()) << server.status();
  (*server)->set_agent_idx(agent_idx);
  return *std::move(server);
}

PairTarget TargetOf(int32_t agent_idx, int32_t port) {
  return {.agent_idx = agent_idx,
          .port = port,
          .address = {.interface = "lo", .address = "127.0.0.2"}};
}

// A socket that listens and whose owner never answers.
struct DeafPort {
  DeafPort() : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    listen(fd, 1);
    socklen_t size = sizeof(address);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  ~DeafPort() { close(fd); }
  int fd;
  int32_t port = 0;
};

// Goal: a way is measured in both directions, with round trip and clock.
// Method: over loopback, where both clocks are one.
TEST(PairProbeTest, MeasuresAWay) {
  const std::unique_ptr<PairServer> server = StartServer(5);
  const PairTarget target = TargetOf(5, server->port());
  const std::vector<ReachedAddress> reached = ReachAll(
      {target}, kProbeSecret, {{.interface = "lo", .address = "127.0.0.1"}});
  ASSERT_EQ(reached.size(), 1u);
  EXPECT_EQ(reached[0].error, "");
  EXPECT_EQ(reached[0].own_interface, "lo");
  const RailFacts rail = MeasureRail(target, kProbeSecret);
  EXPECT_EQ(rail.error, "");
  EXPECT_GT(rail.there_bytes_s, 1e6);
  EXPECT_GT(rail.back_bytes_s, 1e6);
  EXPECT_GT(rail.round_trip_s, 0);
  EXPECT_LE(std::abs(rail.clock_offset_s), rail.clock_uncertainty_s + 1e-4);
}

// Goal: nothing hangs, whatever is at the other end, and the reason is told.
TEST(PairProbeTest, NamesWhatDoesNotAnswer) {
  const std::unique_ptr<PairServer> server = StartServer(5);
  const DeafPort deaf;
  int32_t closed_port = 0;
  {
    const DeafPort closing;
    closed_port = closing.port;
  }
  const absl::Time start = absl::Now();
  const std::vector<ReachedAddress> reached =
      ReachAll({TargetOf(1, deaf.port), TargetOf(2, closed_port),
                TargetOf(3, server->port())},
               kProbeSecret, {}, absl::Milliseconds(300));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(reached[0].error,
            "it accepts connections and says nothing for 1.5s");
  EXPECT_TRUE(absl::StrContains(reached[1].error, "refused"));
  EXPECT_TRUE(reached[2].led_elsewhere);
  EXPECT_EQ(reached[2].error, "agent 5 answered");
}

// Goal: an address that this host has too is not taken for the other's.
TEST(PairProbeTest, KnowsItsOwnAddresses) {
  const std::unique_ptr<PairServer> server = StartServer(5);
  const std::vector<ReachedAddress> reached = ReachAll(
      {TargetOf(4, server->port())}, kProbeSecret, {{.address = "127.0.0.2"}});
  EXPECT_TRUE(reached[0].led_elsewhere);
  EXPECT_NE(reached[0].error, "");
}

TEST(PairProbeTest, RefusesAnotherSecret) {
  const std::unique_ptr<PairServer> server = StartServer(5);
  const RailFacts rail =
      MeasureRail(TargetOf(5, server->port()), "another secret of yours");
  EXPECT_TRUE(absl::StrContains(rail.error, "not of this examination"))
      << rail.error;
}

}  // namespace
}  // namespace millrace
