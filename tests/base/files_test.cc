#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/file_piece.h"

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

// Goal: a piece of a file is what lies there, and nothing beyond its end; a
// folder is refused. Method: offsets on both sides of the end.
TEST_F(FilesTest, ReadsPieces) {
  const std::string path = Path("log");
  ASSERT_TRUE(WriteFileAtomically(path, "0123456789").ok());
  EXPECT_EQ(ReadPiece(path, 0, 4).value_or("error"), "0123");
  EXPECT_EQ(ReadPiece(path, 8, 4).value_or("error"), "89");
  EXPECT_EQ(ReadPiece(path, 10, 4).value_or("error"), "");
  EXPECT_EQ(ReadPiece(path, 99, 4).value_or("error"), "");
  EXPECT_EQ(ReadPiece(path, -5, 2).value_or("error"), "01");
  EXPECT_FALSE(ReadPiece(directory_, 0, 4).ok());
}

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

// Goal: the end of a file comes without its beginning, all of a shorter one,
// and an error where there is none. Method: limits around the file's size.
TEST_F(FilesTest, ReadsTheEndAlone) {
  const std::string path = Path("log");
  ASSERT_TRUE(WriteFileAtomically(path, "first\nlast\n").ok());
  for (const auto& [max_bytes, expected] :
       {std::pair<int64_t, std::string>{0, ""},
        {5, "last\n"},
        {11, "first\nlast\n"},
        {100, "first\nlast\n"}}) {
    const auto end = ReadEndOfFile(path, max_bytes);
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(*end, expected);
  }
  EXPECT_TRUE(absl::IsNotFound(ReadEndOfFile(Path("none"), 5).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadEndOfFile(directory_, 5).status()));
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

// Goal: only regular files are read, and reading never waits. Method: a pipe
// that nobody writes to, an endless device, a folder, links in a circle.
TEST_F(FilesTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("circle", Path("circle"));
  for (const auto& [path, what] :
       {std::pair{Path("pipe"), "is a pipe, a regular file was expected"},
        {std::string("/dev/zero"), "is a device, a regular"},
        {directory_.string(), "is a folder, a regular"},
        {Path("circle"), "Too many levels of symbolic links"}}) {
    const absl::Status status = ReadFile(path).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_FALSE(OpenRegularFile(path).ok());
  }
}

// Goal: a file's size is bounded before memory is asked for. Method: files of
// exactly the bound, one byte above it, and 8 TiB of holes.
TEST_F(FilesTest, RefusesWhatIsTooLarge) {
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "12345").ok());
  EXPECT_EQ(ReadFile(Path("file"), 5).value(), "12345");
  const absl::Status above = ReadFile(Path("file"), 4).status();
  EXPECT_TRUE(absl::IsInvalidArgument(above)) << above;
  EXPECT_THAT(std::string(above.message()), HasSubstr("at most 4"));
  std::filesystem::resize_file(Path("file"), int64_t{8} << 40);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFile(Path("file")).status()));
}

// Goal: files whose size is not known beforehand are read wholly. Method: one
// of /proc, which says that it is empty.
TEST_F(FilesTest, ReadsFilesThatSayTheyAreEmpty) {
  const auto status = ReadFile("/proc/self/status");
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(*status, HasSubstr("Pid:"));
}

mode_t ModeOf(const std::string& path) {
  struct stat facts {};
  EXPECT_EQ(stat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 0777;
}

// Goal: private means the user's alone, for as long as it was asked for, and
// never more open than the user's own umask. Method: files and folders made
// before, during and after, under two umasks.
TEST_F(FilesTest, PrivateFilesAreTheUsersAlone) {
  const mode_t before = umask(022);
  {
    const PrivateFiles private_files;
    ASSERT_TRUE(MakeDirectories(Path("run/logs")).ok());
    ASSERT_TRUE(WriteFileAtomically(Path("run/job"), "x").ok());
    std::ofstream(Path("run/log")) << "y";
  }
  EXPECT_EQ(ModeOf(Path("run")), 0700);
  EXPECT_EQ(ModeOf(Path("run/logs")), 0700);
  EXPECT_EQ(ModeOf(Path("run/job")), 0600);
  EXPECT_EQ(ModeOf(Path("run/log")), 0600);
  ASSERT_TRUE(WriteFileAtomically(Path("asked"), "x").ok());
  EXPECT_EQ(ModeOf(Path("asked")), 0644);
  umask(0277);
  {
    const PrivateFiles private_files;
    ASSERT_TRUE(WriteFileAtomically(Path("strict"), "x").ok());
  }
  umask(before);
  EXPECT_EQ(ModeOf(Path("strict")), 0400);
}

// Goal: replacing a file leaves it as open as it was. Method: one that others
// may read, replaced while new files are private.
TEST_F(FilesTest, ReplacedFilesKeepTheirMode) {
  ASSERT_TRUE(WriteFileAtomically(Path("profile"), "old").ok());
  ASSERT_EQ(chmod(Path("profile").c_str(), 0640), 0);
  const PrivateFiles private_files;
  ASSERT_TRUE(WriteFileAtomically(Path("profile"), "new").ok());
  EXPECT_EQ(ModeOf(Path("profile")), 0640);
  EXPECT_EQ(ReadFile(Path("profile")).value(), "new");
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
