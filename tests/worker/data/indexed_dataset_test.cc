#include "worker/data/indexed_dataset.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/temporary_folder.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Appends `value` as `num_bytes` little-endian bytes: the tests build files
// byte by byte and share no code with the writer.
void Put(std::string* out, int64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) {
    out->push_back(static_cast<char>(value >> (8 * i)));
  }
}

struct IndexFields {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  int64_t version = 1;
  int type = 8;
  std::vector<int64_t> lengths = {2, 0, 3};
  std::vector<int64_t> pointers = {0, 4, 4};
  std::vector<int64_t> documents = {0, 1, 3};
  int64_t num_sequences = 3;
};

std::string IndexBytes(const IndexFields& fields) {
  std::string bytes = fields.magic;
  Put(&bytes, fields.version, 8);
  Put(&bytes, fields.type, 1);
  Put(&bytes, fields.num_sequences, 8);
  Put(&bytes, static_cast<int64_t>(fields.documents.size()), 8);
  for (const int64_t length : fields.lengths) Put(&bytes, length, 4);
  for (const int64_t pointer : fields.pointers) Put(&bytes, pointer, 8);
  for (const int64_t document : fields.documents) Put(&bytes, document, 8);
  return bytes;
}

std::string TokenBytes(const std::vector<int64_t>& ids, int num_bytes) {
  std::string bytes;
  for (const int64_t id : ids) Put(&bytes, id, num_bytes);
  return bytes;
}

std::vector<int32_t> ReadAll(const IndexedDataset& dataset) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.num_tokens()));
  const absl::Status status =
      dataset.Read(0, dataset.num_tokens(), 1 << 30, tokens.data());
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

// Goal: files of other writers are read as they are. Method: a file built byte
// by byte, for every integer type, with a document of two sequences, one of
// them empty.
TEST(IndexedDatasetTest, ReadsEveryIntegerType) {
  const struct {
    int code;
    int num_bytes;
  } kTypes[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
  for (const auto& type : kTypes) {
    SCOPED_TRACE(type.code);
    TemporaryFolder folder;
    IndexFields fields;
    fields.type = type.code;
    fields.pointers = {0, 2 * type.num_bytes, 2 * type.num_bytes};
    folder.Write("d.idx", IndexBytes(fields));
    folder.Write("d.bin", TokenBytes({7, 0, 100, 127, 5}, type.num_bytes));
    for (const char* name : {"d", "d.bin", "d.idx"}) {
      const auto dataset = IndexedDataset::Open(folder / name);
      ASSERT_TRUE(dataset.ok()) << dataset.status();
      EXPECT_EQ(dataset->num_documents(), 2);
      EXPECT_THAT(ReadAll(*dataset), ElementsAre(7, 0, 100, 127, 5));
      EXPECT_EQ(dataset->DocumentBegin(0), 0);
      EXPECT_EQ(dataset->DocumentBegin(1), 2);
      EXPECT_EQ(dataset->DocumentBegin(2), 5);
      EXPECT_EQ(dataset->FindDocument(1), 0);
      EXPECT_EQ(dataset->FindDocument(2), 1);
      EXPECT_EQ(dataset->FindDocument(4), 1);
    }
  }
}

// Goal: the extra byte a sequence of multimodal writers does no harm.
TEST(IndexedDatasetTest, AcceptsSequenceModes) {
  TemporaryFolder folder;
  folder.Write("d.idx", IndexBytes({}) + std::string(3, '\0'));
  folder.Write("d.bin", TokenBytes({1, 2, 3, 4, 5}, 2));
  EXPECT_TRUE(IndexedDataset::Open(folder / "d").ok());
}

// Goal: the writer's bytes are those of the format. Method: compare with the
// bytes built by hand.
TEST(IndexedDatasetTest, WritesTheFormat) {
  TemporaryFolder folder;
  {
    auto writer =
        IndexedDatasetWriter::Create(folder / "w", TokenType::kUint16);
    ASSERT_TRUE(writer.ok()) << writer.status();
    const std::vector<int32_t> first = {1, 65535};
    const std::vector<int32_t> second = {4, 5, 6};
    ASSERT_TRUE(writer->AddDocument(first).ok());
    ASSERT_TRUE(writer->AddDocument({}).ok());
    ASSERT_TRUE(writer->AddDocument(second).ok());
    EXPECT_FALSE(FileExists(folder / "w.bin"));
    ASSERT_TRUE(writer->Finish().ok());
  }
  IndexFields fields;
  fields.documents = {0, 1, 2, 3};
  EXPECT_EQ(*ReadFile(folder / "w.idx"), IndexBytes(fields));
  EXPECT_EQ(*ReadFile(folder / "w.bin"), TokenBytes({1, 65535, 4, 5, 6}, 2));
  const auto dataset = IndexedDataset::Open(folder / "w");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  // The empty document begins where the third does; tokens belong to the third.
  EXPECT_EQ(dataset->FindDocument(2), 2);
}

TEST(IndexedDatasetTest, WriterLeavesNothingUnlessFinished) {
  TemporaryFolder folder;
  {
    auto writer = IndexedDatasetWriter::Create(folder / "w", TokenType::kUint8);
    ASSERT_TRUE(writer.ok());
    const std::vector<int32_t> too_large = {3, 256};
    EXPECT_THAT(std::string(writer->AddDocument(too_large).message()),
                HasSubstr("id 256"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Goal: a damaged or truncated index is refused, with file and offset. Method:
// one fault at a time in a good file, then every possible truncation.
TEST(IndexedDatasetTest, RefusesDamage) {
  const std::string tokens = TokenBytes({1, 2, 3, 4, 5}, 2);
  const auto error_of = [](const IndexFields& fields,
                           const std::string& bin) -> std::string {
    TemporaryFolder folder;
    folder.Write("d.idx", IndexBytes(fields));
    folder.Write("d.bin", bin);
    const auto dataset = IndexedDataset::Open(folder / "d");
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss);
    return std::string(dataset.status().message());
  };
  EXPECT_THAT(error_of({.magic = std::string("TNTIDX\0\0\0", 9)}, tokens),
              HasSubstr("d.idx: byte 0: no MMIDIDX mark"));
  EXPECT_THAT(error_of({.version = 2}, tokens), HasSubstr("byte 9: version 2"));
  for (const int code : {0, 6, 7, 9, 255}) {
    EXPECT_THAT(error_of({.type = code}, tokens),
                HasSubstr("byte 17: type code"));
  }
  EXPECT_THAT(error_of({.num_sequences = -1}, tokens), HasSubstr("byte 18"));
  EXPECT_THAT(error_of({.num_sequences = 2}, tokens), HasSubstr("ask for"));
  EXPECT_THAT(error_of({.lengths = {2, -1, 3}}, tokens),
              HasSubstr("byte 38: sequence 1 has length -1"));
  EXPECT_THAT(error_of({.pointers = {0, 2, 4}}, tokens),
              HasSubstr("byte 54: sequence 1 begins at byte 2"));
  EXPECT_THAT(error_of({.documents = {0, 2, 1, 3}}, tokens),
              HasSubstr("document 2 begins at sequence 1"));
  EXPECT_THAT(error_of({.documents = {1, 2, 3}}, tokens),
              HasSubstr("document 0"));
  EXPECT_THAT(error_of({.documents = {0, 1, 2}}, tokens),
              HasSubstr("the documents end at sequence 2 of 3"));
  EXPECT_THAT(error_of({.documents = {0, 1, 4}}, tokens),
              HasSubstr("document 2 begins at sequence 4"));
  EXPECT_THAT(error_of({}, TokenBytes({1, 2, 3, 4}, 2)),
              HasSubstr("which has 8 bytes"));
  EXPECT_THAT(error_of({}, TokenBytes({1, 2, 3, 4, 5, 6}, 2)),
              HasSubstr("the file has 12 bytes"));

  const std::string index = IndexBytes({});
  for (size_t size = 0; size < index.size(); ++size) {
    TemporaryFolder folder;
    folder.Write("d.idx", index.substr(0, size));
    folder.Write("d.bin", tokens);
    EXPECT_EQ(IndexedDataset::Open(folder / "d").status().code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
}

TEST(IndexedDatasetTest, RefusesAbsentFiles) {
  TemporaryFolder folder;
  EXPECT_EQ(IndexedDataset::Open(folder / "none").status().code(),
            absl::StatusCode::kNotFound);
  folder.Write("d.idx", IndexBytes({}));
  const auto status = IndexedDataset::Open(folder / "d").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("d.bin"));
}

// Goal: a file that is cut short while it is mapped is an error, not SIGBUS;
// one that is replaced under its name lives on. Method: truncate the tokens,
// then the index, to whole pages and to nothing; put another file in place.
TEST(IndexedDatasetTest, NoticesFilesCutShort) {
  for (const char* name : {"d.bin", "d.idx"}) {
    for (const int64_t size : {0, 5}) {
      TemporaryFolder folder;
      folder.Write("d.idx", IndexBytes({}));
      folder.Write("d.bin", TokenBytes({1, 2, 3, 4, 5}, 2));
      const auto dataset = IndexedDataset::Open(folder / "d");
      ASSERT_TRUE(dataset.ok()) << dataset.status();
      std::filesystem::resize_file(folder / name, size);
      int32_t tokens[5];
      const absl::Status status = dataset->Read(0, 5, 100, tokens);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(std::string(name) + " was cut from "));
      EXPECT_EQ(IndexedDataset::Open(folder / "d").status().code(),
                absl::StatusCode::kDataLoss);
    }
  }
  TemporaryFolder folder;
  folder.Write("d.idx", IndexBytes({}));
  folder.Write("d.bin", TokenBytes({1, 2, 3, 4, 5}, 2));
  const auto dataset = IndexedDataset::Open(folder / "d");
  ASSERT_TRUE(WriteFileAtomically(folder / "d.bin", "").ok());
  EXPECT_THAT(ReadAll(*dataset), ElementsAre(1, 2, 3, 4, 5));
}

// Goal: files that are none are refused, and opening never waits. Method: a
// pipe and a folder in the place of the tokens.
TEST(IndexedDatasetTest, RefusesWhatIsNoFile) {
  TemporaryFolder folder;
  folder.Write("d.idx", IndexBytes({}));
  const std::string bin = folder / "d.bin";
  ASSERT_EQ(mkfifo(bin.c_str(), 0600), 0);
  EXPECT_THAT(
      std::string(IndexedDataset::Open(folder / "d").status().message()),
      HasSubstr("d.bin is a pipe"));
  ASSERT_EQ(unlink(bin.c_str()), 0);
  std::filesystem::create_directory(bin);
  EXPECT_THAT(
      std::string(IndexedDataset::Open(folder / "d").status().message()),
      HasSubstr("d.bin is a folder"));
}

// Goal: ids that the model has no row for are refused by file, position, id and
// limit, negative ones too.
TEST(IndexedDatasetTest, RefusesIdsBeyondTheVocabulary) {
  TemporaryFolder folder;
  IndexFields fields;
  fields.type = 4;
  fields.pointers = {0, 8, 8};
  folder.Write("d.idx", IndexBytes(fields));
  folder.Write("d.bin", TokenBytes({1, 50, 3, -4, 99}, 4));
  const auto dataset = IndexedDataset::Open(folder / "d");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  int32_t tokens[5];
  EXPECT_TRUE(dataset->Read(0, 3, 51, tokens).ok());
  EXPECT_THAT(std::string(dataset->Read(0, 3, 50, tokens).message()),
              HasSubstr("d.bin: token 1 has id 50, outside [0, 50)"));
  EXPECT_THAT(std::string(dataset->Read(2, 3, 100, tokens).message()),
              HasSubstr("token 3 has id -4"));
}

}  // namespace
}  // namespace millrace
