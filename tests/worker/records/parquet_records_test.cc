// Parquet files written by two independent programs, beside the rows that a
// third one reads in them: tests/data/records/parquet/make_parquet.mjs.

#include "worker/records/parquet_records.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sweep.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/records/records.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

using Rows = std::vector<nlohmann::ordered_json>;

std::string ParquetPath(const std::string& name) {
  return absl::StrCat("tests/data/records/parquet/", name);
}

struct ParquetRead {
  Rows rows;
  std::vector<std::string> places;
  absl::Status status;
};

ParquetRead ReadParquet(const std::string& path,
                        const std::vector<std::string>& columns,
                        int64_t part_bytes = 1) {
  ParquetRead read;
  const auto parts =
      CutIntoParts({.path = path}, RecordFormat::kParquet, part_bytes);
  read.status = parts.status();
  if (!parts.ok()) return read;
  for (const RecordPart& part : *parts) {
    const auto reader = OpenRecords(part, columns);
    read.status = reader.status();
    if (!reader.ok()) return read;
    while (true) {
      auto record = (*reader)->Next();
      read.status = record.status();
      if (!record.ok()) return read;
      if (!record->has_value()) break;
      auto row = (*record)->TakeColumns();
      read.places.push_back(DescribePlace((*record)->place()));
      if (row.ok()) {
        read.rows.push_back(*std::move(row));
      } else {
        read.rows.emplace_back(std::string(row.status().message()));
      }
    }
  }
  return read;
}

Rows ExpectedRows(const std::string& name) {
  Rows rows;
  const std::string text = *ReadFile(ParquetPath(name));
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    rows.push_back(*ParseOrderedJson(line));
  }
  return rows;
}

// Goal: pages of both versions, with and without dictionaries, in each
// compression, give the rows that another reader finds, in one part or several.
TEST(ParquetRecordsTest, ReadsWhatAnotherReaderReads) {
  const Rows expected = ExpectedRows("rows.jsonl");
  ASSERT_EQ(expected.size(), 200u);
  for (const char* name : {"snappy_v1", "zstd_v2", "gzip_plain", "plain_v2"}) {
    const std::string path = ParquetPath(absl::StrCat(name, ".parquet"));
    for (const int64_t part_bytes : {1, 1 << 20}) {
      const ParquetRead read = ReadParquet(path, {}, part_bytes);
      ASSERT_TRUE(read.status.ok()) << name << ": " << read.status;
      ASSERT_EQ(read.rows.size(), expected.size()) << name;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(read.rows[i], expected[i]) << name << " row " << i + 1;
        ASSERT_EQ(read.places[i], absl::StrCat(path, ", row ", i + 1));
      }
    }
  }
}

// Goal: only the columns that are asked for are read; absent ones do no harm
// while another is there.
TEST(ParquetRecordsTest, ReadsSomeColumns) {
  const Rows expected = ExpectedRows("rows.jsonl");
  const ParquetRead read = ReadParquet(ParquetPath("zstd_v2.parquet"),
                                       {"prompt", "messages", "maybe"});
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.rows.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(read.rows[i].size(), 2u);
    EXPECT_EQ(read.rows[i]["maybe"], expected[i]["maybe"]);
    EXPECT_EQ(read.rows[i]["messages"], expected[i]["messages"]);
  }
}

// Goal: the same of a file by another writer; a column of times is left out
// where all are asked for.
TEST(ParquetRecordsTest, ReadsAnotherWriter) {
  Rows expected = ExpectedRows("javascript_rows.jsonl");
  for (auto& row : expected) row.erase("time");
  const ParquetRead read = ReadParquet(ParquetPath("javascript.parquet"), {});
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.rows, expected);
}

// Goal: what is not read is refused by name, with what to do.
TEST(ParquetRecordsTest, RefusesByName) {
  const auto message_of = [](const std::string& path, const char* column) {
    const ParquetRead read = ReadParquet(path, {column});
    EXPECT_FALSE(read.status.ok());
    EXPECT_THAT(std::string(read.status.message()), HasSubstr(path));
    return std::string(read.status.message());
  };
  EXPECT_THAT(message_of(ParquetPath("delta.parquet"), "text"),
              AllOf(HasSubstr("column `text` has the encoding "
                              "DELTA_BYTE_ARRAY, which is not read"),
                    HasSubstr("write the file with pyarrow's defaults")));
  EXPECT_TRUE(ReadParquet(ParquetPath("delta.parquet"), {"id"}).status.ok());
  EXPECT_THAT(message_of(ParquetPath("brotli.parquet"), "messages"),
              HasSubstr("column `messages.list.item.role` has the compression "
                        "brotli"));
  EXPECT_THAT(message_of(ParquetPath("javascript.parquet"), "time"),
              HasSubstr("column `time`: expected text or numbers"));
  EXPECT_THAT(message_of(ParquetPath("snappy_v1.parquet"), "body"),
              HasSubstr("expected a column `body`, found text, id, score"));

  TemporaryFolder folder;
  EXPECT_THAT(message_of(folder.Write("a.parquet", ""), "text"),
              HasSubstr("this is no Parquet file, it is empty"));
  EXPECT_THAT(
      message_of(folder.Write("a.parquet", "{\"text\": \"\"}\n"), "text"),
      HasSubstr("this is no Parquet file"));
  EXPECT_THAT(message_of(folder.Write("a.parquet",
                                      "PAR1 and so on, but encrypted   PARE"),
                         "text"),
              HasSubstr("is encrypted"));
}

// Goal: a text that is not UTF-8 breaks its row alone. Method: overwrite a
// letter of an unpacked page.
TEST(ParquetRecordsTest, FindsInvalidUtf8) {
  std::string bytes = *ReadFile(ParquetPath("plain_v2.parquet"));
  const size_t at = bytes.find("Row 17: ");
  ASSERT_NE(at, std::string::npos);
  bytes[at] = '\xFF';
  TemporaryFolder folder;
  const ParquetRead read =
      ReadParquet(folder.Write("a.parquet", bytes), {"text"});
  ASSERT_TRUE(read.status.ok()) << read.status;
  Rows expected = ExpectedRows("rows.jsonl");
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i == 17) {
      EXPECT_EQ(read.rows[i],
                "expected text in UTF-8 in column `text`, found bytes that are "
                "not UTF-8");
    } else {
      EXPECT_EQ(read.rows[i]["text"], expected[i]["text"]);
    }
  }
}

// Goal: a cut file is refused by name. Method: cut it at many places.
TEST(ParquetRecordsTest, RefusesCutFiles) {
  TemporaryFolder folder;
  const std::string whole = *ReadFile(ParquetPath("snappy_v1.parquet"));
  for (size_t size = 0; size < whole.size(); size += 97) {
    const std::string path = folder.Write("cut.parquet", whole.substr(0, size));
    const ParquetRead read = ReadParquet(path, {});
    EXPECT_THAT(std::string(read.status.message()),
                AllOf(HasSubstr(path), HasSubstr("copy it again")))
        << size;
  }
}

// Goal: wrong bytes anywhere end in an error or in other rows, never in a crash
// or in memory that the file could not fill. Method: change single bytes, all
// of the footer's and many of the pages'; the sanitizers watch.
TEST(ParquetRecordsTest, SurvivesWrongBytes) {
  TemporaryFolder folder;
  uint64_t random = 1;
  for (const char* name : {"snappy_v1", "zstd_v2", "plain_v2"}) {
    const std::string whole =
        *ReadFile(ParquetPath(absl::StrCat(name, ".parquet")));
    for (int round = 0; round < 300; round += SweepStep(3)) {
      random = random * 6364136223846793005 + 1442695040888963407;
      std::string wrong = whole;
      // Every second change is in the last quarter, where the footer is.
      const size_t begin = round % 2 == 0 ? 0 : whole.size() / 4 * 3;
      const size_t at = begin + (random >> 33) % (whole.size() - begin);
      wrong[at] = static_cast<char>(random >> 20);
      const ParquetRead read =
          ReadParquet(folder.Write("wrong.parquet", wrong), {});
      if (!read.status.ok()) {
        EXPECT_THAT(read.status.code(),
                    AnyOf(Eq(absl::StatusCode::kDataLoss),
                          Eq(absl::StatusCode::kInvalidArgument)));
      }
    }
  }
}

}  // namespace
}  // namespace millrace
