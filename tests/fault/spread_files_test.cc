#include "fault/spread_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "fault/checkpoint.h"
#include "fault/faulty_file_system.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void WriteTo(FileSystem& files, const std::string& path) {
  auto file = files.Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append("abc", 3).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Close().ok());
}

// Goal: what is written lies here and on the mirrors, and nowhere else; what
// lies anywhere can be read. Method: three disks in memory.
TEST(SpreadFilesTest, WritesOnMirrorsAndReadsFromAll) {
  FaultyFileSystem here;
  const auto mirror = std::make_shared<FaultyFileSystem>();
  const auto source = std::make_shared<FaultyFileSystem>();
  SpreadFiles files(&here, {mirror}, {source});
  ASSERT_TRUE(files.MakeDirectories("dir").ok());
  ASSERT_TRUE(source->MakeDirectories("dir").ok());
  WriteTo(files, "dir/a");
  WriteTo(*source, "dir/b");
  EXPECT_TRUE(here.Exists("dir/a"));
  EXPECT_TRUE(mirror->Exists("dir/a"));
  EXPECT_FALSE(source->Exists("dir/a"));
  EXPECT_THAT(*files.List("dir"), ElementsAre("a", "b"));
  for (const char* path : {"dir/a", "dir/b"}) {
    EXPECT_TRUE(files.Exists(path));
    EXPECT_EQ((*files.Open(path))->size(), 3);
  }
  ASSERT_TRUE(files.Rename("dir/a", "dir/c").ok());
  ASSERT_TRUE(here.Remove("dir/c").ok());
  EXPECT_EQ((*files.Open("dir/c"))->size(), 3);  // The mirror's.
  ASSERT_TRUE(files.Remove("dir/c").ok());
  const absl::Status missing = files.Open("dir/c").status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no other host"));
}

// Goal: a file that is not on both disks is no success. Method: the mirror
// fails at each of its operations in turn.
TEST(SpreadFilesTest, FailsIfAMirrorDoes) {
  for (int64_t operation = 1; operation <= 3; ++operation) {
    FaultyFileSystem here;
    const auto mirror = std::make_shared<FaultyFileSystem>();
    SpreadFiles files(&here, {mirror}, {});
    mirror->FailAt(operation, absl::ResourceExhaustedError("the disk is full"));
    absl::Status status = absl::OkStatus();
    auto file = files.Create("a");
    status = file.status();
    if (status.ok()) status = (*file)->Append("abc", 3);
    if (status.ok()) status = (*file)->Sync();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << operation << status;
  }
}

}  // namespace
}  // namespace millrace
