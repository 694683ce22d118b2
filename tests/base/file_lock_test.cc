#include "base/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::string LockPath() {
  return ::testing::TempDir() + "/file_lock_test." + std::to_string(getpid());
}

// Goal: never two holders, and nobody starves. Method: threads that count up
// what would be lost if two read it at one time.
TEST(FileLockTest, LetsOneInAtATime) {
  std::atomic<int> inside = 0;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 5; ++j) {
        const auto lock = FileLock::Acquire(LockPath(), absl::Seconds(60));
        ASSERT_TRUE(lock.ok()) << lock.status();
        EXPECT_EQ(++inside, 1);
        const int seen = count;
        absl::SleepFor(absl::Milliseconds(1));
        count = seen + 1;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 20);
}

// Goal: who waits in vain is told for what; a lock ends with its holder, also
// after a move; a folder that is not there is an error. Method: each in turn.
TEST(FileLockTest, SaysWhatItWaitsFor) {
  std::optional<FileLock> held =
      *FileLock::Acquire(LockPath(), absl::Seconds(1));
  const auto second = FileLock::Acquire(LockPath(), absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(second.status()));
  EXPECT_THAT(second.status().message(), HasSubstr(LockPath()));
  FileLock moved = *std::move(held);
  held.reset();
  EXPECT_FALSE(FileLock::Acquire(LockPath(), absl::Milliseconds(50)).ok());
  { const FileLock ended = std::move(moved); }
  EXPECT_TRUE(FileLock::Acquire(LockPath(), absl::Milliseconds(50)).ok());
  EXPECT_FALSE(FileLock::Acquire("/nowhere/lock", absl::Seconds(1)).ok());
}

}  // namespace
}  // namespace millrace
