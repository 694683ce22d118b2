#include "fault/faulty_file_system.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace millrace {
namespace {

// Writes a file of two appends, with a sync between them if asked.
void Write(FaultyFileSystem& files, const std::string& path, bool sync) {
  auto file = files.Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append("synced", 6).ok());
  if (sync) {
    ASSERT_TRUE((*file)->Sync().ok());
  }
  ASSERT_TRUE((*file)->Append("later", 5).ok());
  ASSERT_TRUE((*file)->Close().ok());
}

// Goal: after a crash exactly the synced bytes and entries are certain. Method:
// one file whose entry is synced, one whose entry is not.
TEST(FaultyFileSystemTest, LosesWhatWasNotSynced) {
  FaultyFileSystem files;
  ASSERT_TRUE(files.MakeDirectories("d").ok());
  ASSERT_TRUE(files.SyncDirectory("/").ok());
  Write(files, "d/kept", true);
  ASSERT_TRUE(files.SyncDirectory("d").ok());
  Write(files, "d/lost", true);
  files.Restart(CrashOutcome::kAllUnsyncedLost, 0);
  EXPECT_EQ(*files.Content("d/kept"), "synced");
  EXPECT_FALSE(files.Exists("d/lost"));
}

// Goal: renames and removals come undone, too, but never half. Method: rename
// over a durable file without syncing, over many random reboots: the name
// always holds one of the two files, and both outcomes occur.
TEST(FaultyFileSystemTest, RenamesAreAtomicAcrossCrashes) {
  std::set<std::string> outcomes;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    FaultyFileSystem files;
    for (const char* name : {"old", "new"}) {
      auto file = files.Create(name);
      ASSERT_TRUE((*file)->Append(name, 3).ok());
      ASSERT_TRUE((*file)->Sync().ok());
    }
    ASSERT_TRUE(files.SyncDirectory("/").ok());
    ASSERT_TRUE(files.Rename("new", "old").ok());
    EXPECT_FALSE(files.Exists("new"));
    files.Restart(CrashOutcome::kRandom, seed);
    ASSERT_TRUE(files.Exists("old"));
    outcomes.insert(*files.Content("old"));
    EXPECT_EQ(files.Exists("new"), *files.Content("old") == "old");
  }
  EXPECT_EQ(outcomes, (std::set<std::string>{"old", "new"}));
}

// Goal: random outcomes keep what is durable, lose different amounts of the
// rest, and replay from their seed. Method: many seeds, each twice.
TEST(FaultyFileSystemTest, RandomOutcomesReplay) {
  std::set<std::string> contents;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::string first;
    for (int round = 0; round < 2; ++round) {
      FaultyFileSystem files;
      Write(files, "f", true);
      ASSERT_TRUE(files.SyncDirectory("/").ok());
      files.Restart(CrashOutcome::kRandom, seed);
      const std::string content = *files.Content("f");
      ASSERT_EQ(content.substr(0, 6), "synced");
      ASSERT_LE(content.size(), 11u);
      if (round == 0) first = content;
      EXPECT_EQ(content, first);
      contents.insert(content);
    }
  }
  EXPECT_GT(contents.size(), 5u);
}

// Goal: from the crash on nothing changes and every call says so, until the
// restart. Method: crash at the second append.
TEST(FaultyFileSystemTest, CrashStopsEverything) {
  FaultyFileSystem files;
  files.CrashAt(3);
  auto file = files.Create("f");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Append("one", 3).ok());
  EXPECT_EQ((*file)->Append("two", 3).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*file)->Sync().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(files.Create("g").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(files.Remove("f").code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(files.crashed());
  files.Restart(CrashOutcome::kNothingLost, 0);
  EXPECT_EQ(*files.Content("f"), "one");
  EXPECT_TRUE(files.Create("g").ok());
}

// Goal: a full disk takes what fits; a planned failure happens once. Method:
// one of each.
TEST(FaultyFileSystemTest, FullAndFailing) {
  FaultyFileSystem files;
  files.SetCapacity(4);
  auto file = files.Create("f");
  EXPECT_EQ((*file)->Append("123456", 6).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*files.Content("f"), "1234");
  files.SetCapacity(-1);
  files.FailAt(files.num_operations() + 1, absl::InternalError("bad sector"));
  EXPECT_EQ((*file)->Sync().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE((*file)->Sync().ok());
}

}  // namespace
}  // namespace millrace
