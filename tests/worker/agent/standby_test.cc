#include "worker/agent/standby.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace millrace {
namespace {

StandbySocket Sockets() {
  const absl::StatusOr<StandbySocket> socket = MakeStandbySocket();
  EXPECT_TRUE(socket.ok()) << socket.status();
  return *socket;
}

// Goal: an order arrives as it was sent, with descriptors that are the
// receiver's own. Method: pipes; what is written into one end is read from the
// end that came, after the sender has closed its own.
TEST(StandbyTest, OrdersCarryDescriptors) {
  const StandbySocket socket = Sockets();
  int first[2], second[2];
  ASSERT_EQ(pipe(first), 0);
  ASSERT_EQ(pipe(second), 0);
  ASSERT_TRUE(SendOrder(socket.agent_fd,
                        {.coordinator_address = "10.0.0.1:70,[fd00::1]:71",
                         .incarnation = 12,
                         .predecessor_fds = {first[0], second[0]}})
                  .ok());
  close(first[0]);
  close(second[0]);
  const auto order = ReceiveOrder(socket.standby_fd);
  ASSERT_TRUE(order.ok()) << order.status();
  ASSERT_TRUE(order->has_value());
  EXPECT_EQ((*order)->coordinator_address, "10.0.0.1:70,[fd00::1]:71");
  EXPECT_EQ((*order)->incarnation, 12);
  ASSERT_EQ((*order)->predecessor_fds.size(), 2u);
  ASSERT_EQ(write(second[1], "x", 1), 1);
  char byte = 0;
  ASSERT_EQ(read((*order)->predecessor_fds[1], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  for (const int fd : (*order)->predecessor_fds) {
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
  }
  for (const int fd :
       {first[1], second[1], socket.agent_fd, socket.standby_fd}) {
    close(fd);
  }
}

// Goal: an order without descriptors is one too; each end sees that the other
// is gone. Method: close the one, then the other.
TEST(StandbyTest, SeesThatTheOtherEndIsGone) {
  const StandbySocket socket = Sockets();
  ASSERT_TRUE(SendOrder(socket.agent_fd, {"host:1", 3, {}}).ok());
  const auto order = ReceiveOrder(socket.standby_fd);
  ASSERT_TRUE(order.ok() && order->has_value()) << order.status();
  EXPECT_TRUE((*order)->predecessor_fds.empty());
  close(socket.agent_fd);
  const auto none = ReceiveOrder(socket.standby_fd);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
  close(socket.standby_fd);

  const StandbySocket other = Sockets();
  close(other.standby_fd);
  EXPECT_TRUE(
      absl::IsUnavailable(SendOrder(other.agent_fd, {"host:1", 3, {}})));
  close(other.agent_fd);
}

// Goal: what is no order is refused. Method: packets of another program.
TEST(StandbyTest, RefusesWhatIsNoOrder) {
  const StandbySocket socket = Sockets();
  for (const std::string text : {"12", "12 ", "x host:1", " host:1"}) {
    ASSERT_GT(send(socket.agent_fd, text.data(), text.size(), 0), 0);
    EXPECT_FALSE(ReceiveOrder(socket.standby_fd).ok()) << text;
  }
  close(socket.agent_fd);
  close(socket.standby_fd);
}

}  // namespace
}  // namespace millrace
