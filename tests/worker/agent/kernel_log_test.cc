#include "worker/agent/kernel_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace millrace {
namespace {

// Goal: records are read as far as there are any, also behind one that is no
// message of a GPU. Method: a socket that keeps records apart, as the kernel's
// file does.
TEST(KernelLogTest, TakesWhatIsNew) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
  ASSERT_EQ(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
  KernelLog log(fds[0]);
  EXPECT_TRUE(log.Take().empty());
  for (const std::string record :
       {"6,1,10,-;eth0: link up\n SUBSYSTEM=net\n",
        "4,2,20,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=7, GPU has fallen off\n",
        "4,3,30,-;NVRM: Xid (PCI:0000:1c:00): 48, pid=8\n"}) {
    ASSERT_EQ(write(fds[1], record.data(), record.size()),
              static_cast<ssize_t>(record.size()));
  }
  const std::vector<Xid> xids = log.Take();
  ASSERT_EQ(xids.size(), 2u);
  EXPECT_EQ(xids[0].number, 79);
  EXPECT_EQ(xids[0].gpu.bus, 0x1bu);
  EXPECT_EQ(xids[1].number, 48);
  EXPECT_TRUE(log.Take().empty());
  close(fds[1]);
  EXPECT_TRUE(log.Take().empty()) << "its end is no error";
}

// Goal: on any host, allowed or not, the log opens and a call ends.
TEST(KernelLogTest, OpensThisHostsLogIfItMay) {
  KernelLog log;
  log.Take();
}

}  // namespace
}  // namespace millrace
