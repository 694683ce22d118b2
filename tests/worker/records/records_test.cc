#include "worker/records/records.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sweep.h"
#include "tests/worker/data/temporary_folder.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPackedLines[] = "tests/data/records/lines.jsonl";

DataFile FileAt(const std::string& path) {
  const auto found = FindDataFiles({path}, "data.text", 0);
  EXPECT_TRUE(found.ok()) << found.status();
  return found->files.at(0);
}

// The content of a file's records: a text, or why there is none, by place.
struct Read {
  std::vector<std::string> texts;
  std::vector<std::string> places;
  std::vector<std::string> complaints;  // "PLACE: why".
  absl::Status status;
};

Read ReadAll(const std::string& path, RecordFormat format,
             int64_t part_bytes = 1 << 20) {
  Read read;
  const auto parts = CutIntoParts(FileAt(path), format, part_bytes);
  read.status = parts.status();
  if (!parts.ok()) return read;
  for (const RecordPart& part : *parts) {
    const auto reader = OpenRecords(part, {"text"});
    read.status = reader.status();
    if (!reader.ok()) return read;
    while (true) {
      auto record = (*reader)->Next();
      read.status = record.status();
      if (!record.ok()) return read;
      if (!record->has_value()) break;
      const std::string place = DescribePlace((*record)->place());
      const auto text = (*record)->TakeText("text");
      if (text.ok()) {
        read.texts.push_back(*text);
        read.places.push_back(place);
      } else {
        read.complaints.push_back(place + ": " +
                                  std::string(text.status().message()));
      }
    }
  }
  return read;
}

std::string LineText(int i) {
  std::string text = "Line " + std::to_string(i) + ": ";
  for (int j = 0; j < i % 7; ++j) text += "water runs over the wheel. ";
  return text;
}

// Goal: every line is read once, with its own number, wherever the file is cut.
// Method: cut a file with blank lines, carriage returns and no last line end
// after every count of bytes.
TEST(RecordsTest, ReadsEachLineOnceWhereverItIsCut) {
  TemporaryFolder folder;
  const std::string path =
      folder.Write("a.jsonl",
                   "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\r\n  \n"
                   "{\"id\": 7, \"text\": \"three\\u00e9\"}\n{\"text\": \"\"}");
  for (int64_t part_bytes = 1; part_bytes < 100; ++part_bytes) {
    const Read read = ReadAll(path, RecordFormat::kJsonLines, part_bytes);
    ASSERT_TRUE(read.status.ok()) << read.status;
    EXPECT_THAT(read.texts, ElementsAre("one", "two", "three\u00e9", ""))
        << part_bytes;
    EXPECT_THAT(read.places,
                ElementsAre(path + ":1", path + ":3", path + ":5", path + ":6"))
        << part_bytes;
  }
}

// Goal: packed files read as their plain content. Method: files written by the
// programs gzip and zstd.
TEST(RecordsTest, ReadsPackedLines) {
  for (const char* ending : {".gz", ".zst"}) {
    const std::string path = std::string(kPackedLines) + ending;
    const Read read = ReadAll(path, RecordFormat::kJsonLines);
    ASSERT_TRUE(read.status.ok()) << read.status;
    ASSERT_EQ(read.texts.size(), 300u);
    for (int i = 0; i < 300; ++i) {
      EXPECT_EQ(read.texts[static_cast<size_t>(i)], LineText(i));
    }
    EXPECT_EQ(read.places.back(), path + ":300");
  }
}

// Goal: several packed members one after the other are one file, as `cat` and
// parallel packers write them.
TEST(RecordsTest, ReadsSeveralPackedMembers) {
  TemporaryFolder folder;
  for (const char* ending : {".gz", ".zst"}) {
    const std::string one = *ReadFile(std::string(kPackedLines) + ending);
    const std::string path =
        folder.Write(std::string("two.jsonl") + ending, one + one);
    const Read read = ReadAll(path, RecordFormat::kJsonLines);
    ASSERT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.texts.size(), 600u);
  }
}

// Goal: a packed file that was cut, is empty or is not what its name says is
// refused by name, never read as a shorter one. Method: cut it at many
// places, at all of the first bytes.
TEST(RecordsTest, RefusesDamagedPackedFiles) {
  TemporaryFolder folder;
  for (const std::string ending : {".gz", ".zst"}) {
    const std::string whole = *ReadFile(kPackedLines + ending);
    for (size_t size = 0; size < whole.size();
         size += size < 64 ? 1 : 37 * SweepStep(3)) {
      const std::string path =
          folder.Write("cut.jsonl" + ending, whole.substr(0, size));
      const Read read = ReadAll(path, RecordFormat::kJsonLines);
      EXPECT_THAT(std::string(read.status.message()),
                  AllOf(HasSubstr(path), HasSubstr("copy it again")))
          << size;
    }
    std::string wrong = whole;
    wrong[wrong.size() / 2] ^= 0x55;
    const Read read = ReadAll(folder.Write("wrong.jsonl" + ending, wrong),
                              RecordFormat::kJsonLines);
    EXPECT_FALSE(read.status.ok() && read.complaints.empty());
    EXPECT_THAT(
        std::string(ReadAll(folder.Write("plain.jsonl" + ending, "{}\n"),
                            RecordFormat::kJsonLines)
                        .status.message()),
        HasSubstr("the name promises"));
  }
}

// Goal: each kind of broken record says its place, what was expected and what
// was found, and the records around it are read.
TEST(RecordsTest, SaysWhatIsWrongWithARecord) {
  const std::pair<std::string, std::string> kBroken[] = {
      {"[1, 2]",
       "expected an object such as {\"text\": \"...\"}, found a list"},
      {"\"text\"", "found a text"},
      {"{\"text\": \"a\"", "on one line: not valid JSON"},
      {"{\"text\": \"a\"} {}", "not valid JSON"},
      {"{\"text\": 7}", "expected a text in column `text`, found a number"},
      {"{\"text\": null}", "found null"},
      {"{\"body\": \"a\", \"id\": 1}",
       "expected a column `text`, found body, id; name the one"},
      {"{}", "found none"},
      {"{\"text\": \"\xff\"}", "not UTF-8"},
      {std::string("{\"text\": \"\0\"}", 13), "not valid JSON"},
      {"{\"text\": \"\\ud800\"}", "not valid JSON"},
      {std::string(100, '['), "nested deeper than 64"},
  };
  TemporaryFolder folder;
  for (const auto& [line, message] : kBroken) {
    const std::string path =
        folder.Write("a.jsonl", "{\"text\": \"before\"}\n" + line +
                                    "\n{\"text\": \"after\"}\n");
    const Read read = ReadAll(path, RecordFormat::kJsonLines);
    ASSERT_TRUE(read.status.ok()) << read.status;
    EXPECT_THAT(read.texts, ElementsAre("before", "after"));
    EXPECT_THAT(read.complaints, ElementsAre(AllOf(HasSubstr(path + ":2: "),
                                                   HasSubstr(message))));
  }
}

// Goal: columns keep the order of the line, which chat templates print.
TEST(RecordsTest, KeepsTheOrderOfColumns) {
  Record record = Record::FromLine(
      {.path = "a.jsonl", .format = RecordFormat::kJsonLines},
      R"({"z": 1, "messages": [{"role": "user", "content": "hi"}], "a": 2})");
  const auto columns = record.TakeColumns();
  ASSERT_TRUE(columns.ok()) << columns.status();
  EXPECT_EQ(columns->dump(),
            R"({"z":1,"messages":[{"role":"user","content":"hi"}],"a":2})");
}

TEST(RecordsTest, KnowsFormatsByName) {
  const std::map<std::string, std::optional<RecordFormat>> expected = {
      {"a.jsonl", RecordFormat::kJsonLines},
      {"a.jsonl.gz", RecordFormat::kJsonLines},
      {"a/b.ndjson.zst", RecordFormat::kJsonLines},
      {"a.txt", RecordFormat::kText},
      {"a.parquet", RecordFormat::kParquet},
      {"a.json", std::nullopt},
      {"a.txt.gz", std::nullopt},
      {"a.parquet.gz", std::nullopt},
      {"jsonl", std::nullopt}};
  for (const auto& [path, format] : expected) {
    EXPECT_EQ(FormatByName(path), format) << path;
  }
}

}  // namespace
}  // namespace millrace
