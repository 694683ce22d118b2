#include "coordinator/checkpoint_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace millrace {
namespace {

// Goal: one job at a time; the next may have the folder when the first is
// gone; a job whose folder was taken over by other means commits no more.
TEST(CheckpointLockTest, KeepsOthersOut) {
  const std::string folder =
      testing::TempDir() + "/millrace-lock-" + std::to_string(getpid());
  {
    auto first = CheckpointLock::Take(folder + "/saved", "the job of a");
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE((*first)->CheckHeld().ok());
    const auto second = CheckpointLock::Take(folder + "/saved", "the job of b");
    EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
    EXPECT_NE(second.status().message().find("in use by the job of a"),
              std::string::npos)
        << second.status();
    EXPECT_TRUE((*first)->CheckHeld().ok());
    // Where the folder knows no locks.
    std::ofstream(folder + "/saved/.owner") << "the job of c";
    const absl::Status held = (*first)->CheckHeld();
    EXPECT_TRUE(absl::IsAborted(held));
    EXPECT_NE(held.message().find("the job of c"), std::string::npos);
  }
  auto next = CheckpointLock::Take(folder + "/saved", "b");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE((*next)->CheckHeld().ok());
  std::filesystem::remove_all(folder);
}

// Goal: a place where no folder can be is said with its path.
TEST(CheckpointLockTest, SaysWhatCannotBeWritten) {
  const std::string file =
      testing::TempDir() + "/millrace-file-" + std::to_string(getpid());
  std::ofstream(file) << "a file";
  const auto lock = CheckpointLock::Take(file + "/saved", "a");
  EXPECT_FALSE(lock.ok());
  EXPECT_NE(lock.status().message().find(file), std::string::npos)
      << lock.status();
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace millrace
