#include "fault/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "fault/faulty_file_system.h"

namespace millrace {
namespace {

constexpr char kPath[] = "a.safetensors";

std::string FileOf(const std::string& header, int64_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(data_bytes, 'x');
}

absl::StatusOr<SafetensorsHeader> Read(const std::string& content) {
  FaultyFileSystem files;
  EXPECT_TRUE(files.Create(kPath).ok());
  EXPECT_TRUE(files.SetContent(kPath, content).ok());
  const auto file = files.Open(kPath);
  return ReadSafetensorsHeader(**file, kPath);
}

// Goal: what is written is read back: names, shapes, places, metadata, data,
// with empty and scalar tensors among them. Method: write in uneven pieces.
TEST(SafetensorsTest, RoundTrip) {
  FaultyFileSystem files;
  const std::vector<SafetensorsTensor> tensors = {
      {"z \"quoted\"", {2, 3}}, {"empty", {0, 7}}, {"scalar", {}}, {"a", {5}}};
  auto writer = SafetensorsWriter::Create(files, kPath, tensors,
                                          {{"format", "pt"}, {"k", "v"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::vector<float> values(12);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.5f * i;
  ASSERT_TRUE(writer->Append(values.data(), 5).ok());
  EXPECT_EQ(writer->Finish().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(writer->Append(values.data() + 5, 7).ok());
  EXPECT_EQ(writer->Append(values.data(), 1).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(writer->Finish().ok());

  const auto file = files.Open(kPath);
  ASSERT_TRUE(file.ok());
  const auto header = ReadSafetensorsHeader(**file, kPath);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->bytes % 64, 0);
  EXPECT_EQ(header->bytes, static_cast<int64_t>(writer->header().size()));
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->metadata.at("k"), "v");
  ASSERT_EQ(header->entries.size(), tensors.size());
  for (const SafetensorsTensor& tensor : tensors) {
    bool found = false;
    for (const SafetensorsEntry& entry : header->entries) {
      found = found || (entry.tensor.name == tensor.name &&
                        entry.tensor.shape == tensor.shape);
    }
    EXPECT_TRUE(found) << tensor.name;
  }
  std::vector<float> read(12);
  ASSERT_TRUE((*file)->Read(header->bytes, 48, read.data()).ok());
  EXPECT_EQ(read, values);
}

// Goal: elements are rounded to their tensors' types, wherever Append() is cut.
// Method: tensors of three types in one file, appended across their borders;
// the numbers are exact in all of them.
TEST(SafetensorsTest, WritesNarrowTypes) {
  FaultyFileSystem files;
  auto writer = SafetensorsWriter::Create(files, kPath,
                                          {{"a", {3}, ElementType::kBf16},
                                           {"none", {0}, ElementType::kFp16},
                                           {"b", {2}, ElementType::kFp32},
                                           {"c", {2, 2}, ElementType::kFp16}},
                                          {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::vector<float> values = {1, -2, 0.5, 3, 4, 5, 6, 7, 1.5};
  ASSERT_TRUE(writer->Append(values.data(), 2).ok());
  ASSERT_TRUE(writer->Append(values.data() + 2, 5).ok());
  ASSERT_TRUE(writer->Append(values.data() + 7, 2).ok());
  ASSERT_TRUE(writer->Finish().ok());
  const auto file = files.Open(kPath);
  const auto header = ReadSafetensorsHeader(**file, kPath);
  ASSERT_TRUE(header.ok()) << header.status();
  std::vector<float> read;
  for (const SafetensorsEntry& entry : header->entries) {
    std::vector<char> bytes(entry.tensor.num_bytes());
    ASSERT_TRUE((*file)
                    ->Read(entry.offset, entry.tensor.num_bytes(), bytes.data())
                    .ok());
    std::vector<float> wide(entry.tensor.num_elements());
    WidenToFp32(entry.tensor.type, bytes.data(), entry.tensor.num_elements(),
                wide.data());
    read.insert(read.end(), wide.begin(), wide.end());
  }
  EXPECT_EQ(read, values);
  EXPECT_EQ((*file)->size(), header->bytes + 3 * 2 + 2 * 4 + 4 * 2);
}

// Goal: two tensors of one name cannot be written. Method: try.
TEST(SafetensorsTest, RefusesNamesUsedTwice) {
  FaultyFileSystem files;
  EXPECT_EQ(
      SafetensorsWriter::Create(files, kPath, {{"a", {1}}, {"a", {2}}}, {})
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

// Goal: headers that lie are refused with DataLoss, without allocating what
// they claim. Method: one lie at a time around a good file.
TEST(SafetensorsTest, RefusesHeadersThatLie) {
  const std::string good =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ASSERT_TRUE(Read(FileOf(good, 8)).ok());
  const std::vector<std::string> bad = {
      "",
      "1234567",
      std::string(8, '\xff') + good,
      FileOf(good, 7),
      FileOf(good, 9),
      FileOf("[1]", 0),
      FileOf("{", 0),
      FileOf(R"({"a":5})", 8),
      FileOf(R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,8]}})", 8),
      FileOf(R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8),
      FileOf(R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", 8),
      FileOf(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8),
      FileOf(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
             R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
             0),
      FileOf(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
      FileOf(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8),
      FileOf(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
      FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
      FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8),
      FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
      FileOf(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],)"
             R"("data_offsets":[0,0]}})",
             0),
      FileOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
             4),
      FileOf(R"({"__metadata__":{"k":5}})", 0)};
  for (const std::string& content : bad) {
    const auto header = Read(content);
    EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss)
        << content << header.status();
  }
}

// Goal: no change of bytes in a header makes the reader fall over. Method:
// random bytes at random places; it may accept or refuse, and what it accepts
// lies inside the file.
TEST(SafetensorsTest, SurvivesRandomHeaders) {
  const std::string good =
      FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
             R"("b":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]}})",
             14);
  std::mt19937_64 random(11);
  for (int i = 0; i < 20000; ++i) {
    std::string content = good;
    for (int j = 0; j < 1 + i % 3; ++j) {
      content[random() % content.size()] = static_cast<char>(random());
    }
    const auto header = Read(content);
    if (!header.ok()) continue;
    for (const SafetensorsEntry& entry : header->entries) {
      ASSERT_LE(entry.offset + entry.tensor.num_bytes(),
                static_cast<int64_t>(content.size()));
    }
  }
}

}  // namespace
}  // namespace millrace
