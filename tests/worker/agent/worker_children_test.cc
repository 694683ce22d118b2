#include "worker/agent/worker_children.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "absl/time/clock.h"
#include "base/clock.h"

namespace millrace {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

// A child whose first thread has left while another lives on: what a process
// looks like whose exit takes long.
pid_t StartLeavingChild() {
  const pid_t pid = fork();
  if (pid == 0) {
    std::thread([] {
      while (true) pause();
    }).detach();
    syscall(SYS_exit, 3);  // This thread alone.
  }
  return pid;
}

TEST(WorkerChildrenTest, SeesAnExitBegin) {
  const pid_t pid = StartLeavingChild();
  ASSERT_GT(pid, 0);
  const absl::Time deadline = MonotonicNow() + kLong;
  while (!ExitBegun(pid).has_value() && MonotonicNow() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  const std::optional<int> begun = ExitBegun(pid);
  ASSERT_TRUE(begun.has_value());
  EXPECT_EQ(DescribeExit(*begun), "exited with code 3");
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), 0) << "it has not ended yet";
  kill(pid, SIGKILL);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

TEST(WorkerChildrenTest, KnowsHowAnExitBegan) {
  const pid_t pid = fork();
  if (pid == 0) {
    while (true) pause();
  }
  ASSERT_GT(pid, 0);
  EXPECT_FALSE(ExitBegun(pid).has_value());
  kill(pid, SIGKILL);
  siginfo_t info;
  // Leaves the child as it is.
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  const std::optional<int> begun = ExitBegun(pid);
  int wait_status = 0;
  EXPECT_EQ(waitpid(pid, &wait_status, 0), pid);
  ASSERT_TRUE(begun.has_value());
  EXPECT_EQ(*begun, wait_status);
  EXPECT_EQ(DescribeExit(*begun), "killed by signal 9 (Killed)");
  EXPECT_FALSE(ExitBegun(pid).has_value()) << "there is no such process";
}

}  // namespace
}  // namespace millrace
