#include "worker/records/data_files.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/temporary_folder.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(const TemporaryFolder& folder,
                               const std::vector<std::string>& patterns) {
  std::vector<std::string> full;
  for (const std::string& pattern : patterns) full.push_back(folder / pattern);
  const auto files = FindDataFiles(full, "data.text", 0);
  EXPECT_TRUE(files.ok()) << files.status();
  std::vector<std::string> names;
  if (!files.ok()) return names;
  for (const DataFile& file : files->files) {
    names.push_back(file.path.substr(folder.path().size() + 1));
  }
  return names;
}

// Goal: the documented glob rules. Method: a small tree with a hidden file, a
// hidden folder and a link that makes a circle.
TEST(FindDataFilesTest, Globs) {
  TemporaryFolder folder;
  for (const char* name : {"a.h", "b.txt", "x/c.h", "x/y/d.h", "x/y/e.txt",
                           ".hidden.h", ".git/f.h"}) {
    folder.Write(name, "text");
  }
  std::filesystem::create_directory_symlink(folder / "x", folder / "x/y/loop");
  std::filesystem::create_symlink(folder / "a.h", folder / "link.h");

  EXPECT_THAT(Names(folder, {"a.h"}), ElementsAre("a.h"));
  EXPECT_THAT(Names(folder, {"*.h"}), ElementsAre("a.h", "link.h"));
  EXPECT_THAT(Names(folder, {"?.[a-z]*"}), ElementsAre("a.h", "b.txt"));
  EXPECT_THAT(Names(folder, {"**/*.h"}),
              ElementsAre("a.h", "link.h", "x/c.h", "x/y/d.h"));
  EXPECT_THAT(Names(folder, {"x/**"}),
              ElementsAre("x/c.h", "x/y/d.h", "x/y/e.txt"));
  EXPECT_THAT(Names(folder, {"**/y/*"}), ElementsAre("x/y/d.h", "x/y/e.txt"));
  EXPECT_THAT(Names(folder, {".git/*"}), ElementsAre(".git/f.h"));
  // Pattern by pattern, each file once.
  EXPECT_THAT(Names(folder, {"x/*", "**/*.txt", "**/c.h", "*.h"}),
              ElementsAre("x/c.h", "b.txt", "x/y/e.txt", "a.h", "link.h"));
}

// Goal: a machine need not have all that a list of globs asks for, but some of
// it, and every file that is named. Method: globs without files beside one with
// files and alone; a missing path; a folder.
TEST(FindDataFilesTest, SaysWhichPatternsMatchNothing) {
  TemporaryFolder folder;
  folder.Write("a.h", "text");
  std::filesystem::create_directory(folder / "empty");
  const std::string no_cc = folder / "**/*.cc", no_txt = folder / "doc/*.txt";
  const auto some =
      FindDataFiles({no_cc, folder / "*.h", no_txt}, "data.text", 0);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->files.size(), 1u);
  EXPECT_THAT(some->unmatched, ElementsAre(no_cc, no_txt));
  EXPECT_EQ(DescribeUnmatched(some->unmatched, "data.text"),
            "no file matches " + no_cc + ", " + no_txt + " (of data.text)");
  EXPECT_EQ(DescribeUnmatched({}, "data.text"), "");

  const auto none = FindDataFiles({no_cc, no_txt}, "data.text", 0);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()),
              AllOf(HasSubstr(no_cc), HasSubstr(no_txt),
                    HasSubstr("name data that this machine has")));
  const auto missing =
      FindDataFiles({folder / "*.h", folder / "b.h"}, "data.text", 0);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("there is no file " + (folder / "b.h")));
  const auto is_folder =
      FindDataFiles({folder / "*.h", folder / "empty"}, "data.text", 0);
  EXPECT_THAT(std::string(is_folder.status().message()),
              HasSubstr("is a folder; write"));
  EXPECT_EQ(FindDataFiles({""}, "data.text", 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FindDataFilesTest, StopsAtMaxBytes) {
  TemporaryFolder folder;
  folder.Write("a", std::string(10, 'a'));
  folder.Write("b", std::string(10, 'b'));
  folder.Write("c", std::string(10, 'c'));
  const auto files = FindDataFiles({folder / "*"}, "data.text", 15);
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->files.size(), 2u);
  EXPECT_EQ(files->files[0].size_bytes, 10);
  EXPECT_EQ(files->files[1].size_bytes, 5);
  EXPECT_EQ(FindDataFiles({folder / "*"}, "data.text", 20)->files.size(), 2u);
  // Patterns behind the limit of bytes are not searched.
  const auto full =
      FindDataFiles({folder / "*", folder / "none/*"}, "data.text", 20);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_TRUE(full->unmatched.empty());
}

// Goal: each kind of file that is no text is left out and counted; a character
// cut by max_bytes is dropped, not taken for damage.
TEST(ReadTextTest, SaysWhyAFileIsLeftOut) {
  TemporaryFolder folder;
  const auto read = [&](const std::string& content, int64_t size_bytes,
                        std::string* text) {
    const std::string path = folder.Write("f", content);
    return ReadText({path, size_bytes, 0}, text);
  };
  std::string text;
  EXPECT_EQ(read("hello", 5, &text), TextVerdict::kText);
  EXPECT_EQ(text, "hello");
  EXPECT_EQ(read("", 0, &text), TextVerdict::kEmpty);
  EXPECT_EQ(read(std::string("a\0b", 3), 3, &text), TextVerdict::kBinary);
  EXPECT_TRUE(text.empty());
  EXPECT_EQ(read("caf\xE9", 4, &text), TextVerdict::kInvalidUtf8);
  EXPECT_EQ(read("ab\xE2\x82\xAC", 5, &text), TextVerdict::kText);
  for (const int64_t cut : {3, 4}) {
    EXPECT_EQ(read("ab\xE2\x82\xAC", cut, &text), TextVerdict::kText);
    EXPECT_EQ(text, "ab");
  }
  EXPECT_EQ(read("\xE2\x82\xAC", 2, &text), TextVerdict::kEmpty);
  EXPECT_EQ(ReadText({folder / "absent", 5, 0}, &text),
            TextVerdict::kUnreadable);
}

TEST(TextSkipsTest, Describe) {
  TextSkips skips;
  EXPECT_EQ(DescribeSkips(skips), "");
  CountSkip(TextVerdict::kText, "t", &skips);
  CountSkip(TextVerdict::kInvalidUtf8, "a.h", &skips);
  CountSkip(TextVerdict::kInvalidUtf8, "b.h", &skips);
  CountSkip(TextVerdict::kUnreadable, "c.h", &skips);
  EXPECT_EQ(skips.total(), 3);
  EXPECT_EQ(DescribeSkips(skips),
            "3 files left out: 1 unreadable, 2 not UTF-8 (first: a.h is not "
            "UTF-8)");
}

}  // namespace
}  // namespace millrace
