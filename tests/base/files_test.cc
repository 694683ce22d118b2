#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace millrace {
namespace {

using ::testing::HasSubstr;

class FilesTest : public ::testing::Test {
 protected:
  FilesTest()
      : directory_(std::filesystem::path(::testing::TempDir()) /
                   ("files_test." + std::to_string(getpid()))) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~FilesTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) { return directory_ / name; }

  std::filesystem::path directory_;
};

// Goal: what is written is read back, byte for byte, and replaces what was
// there. Method: contents with zeros, no newline, and none at all.
TEST_F(FilesTest, WritesAndReadsAnyBytes) {
  const std::string path = Path("content");
  for (const std::string& content : {std::string("a\0b\r\n\xff", 6),
                                     std::string(), std::string(100000, 'x')}) {
    ASSERT_TRUE(WriteFileAtomically(path, content).ok());
    const auto read = ReadFile(path);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, content);
  }
}

// Goal: a write leaves nothing but its file. Method: list the folder after a
// write that works and one whose target is a folder and cannot be replaced.
TEST_F(FilesTest, LeavesNoTemporaryFiles) {
  ASSERT_TRUE(WriteFileAtomically(Path("kept"), "old").ok());
  ASSERT_TRUE(MakeDirectories(Path("folder/inner")).ok());
  EXPECT_FALSE(WriteFileAtomically(Path("folder"), "new").ok());
  int num_entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr(".tmp.")));
    ++num_entries;
  }
  EXPECT_EQ(num_entries, 2);
}

// Goal: errors have the right code and name the path. Method: a missing file, a
// folder, a missing parent, a file where a folder should be.
TEST_F(FilesTest, ErrorsNameThePath) {
  const absl::Status missing = ReadFile(Path("absent")).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr(Path("absent")));

  const absl::Status folder = ReadFile(directory_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(folder)) << folder;

  const absl::Status parent = WriteFileAtomically(Path("none/file"), "x");
  EXPECT_TRUE(absl::IsNotFound(parent)) << parent;
  EXPECT_THAT(std::string(parent.message()), HasSubstr(Path("none/file")));

  ASSERT_TRUE(WriteFileAtomically(Path("file"), "x").ok());
  const absl::Status not_folder = MakeDirectories(Path("file/inner"));
  EXPECT_FALSE(not_folder.ok());
  EXPECT_THAT(std::string(not_folder.message()), HasSubstr(Path("file/inner")));
}

// Goal: folders are made with their parents, twice without complaint.
TEST_F(FilesTest, MakesNestedFolders) {
  ASSERT_TRUE(MakeDirectories(Path("a/b/c")).ok());
  ASSERT_TRUE(MakeDirectories(Path("a/b/c")).ok());
  EXPECT_TRUE(FileExists(Path("a/b/c")));
  EXPECT_FALSE(FileExists(Path("a/b/d")));
}

}  // namespace
}  // namespace millrace
