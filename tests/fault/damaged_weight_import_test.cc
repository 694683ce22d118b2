#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fault/checkpoint_files.h"
#include "fault/faulty_file_system.h"
#include "fault/weight_export.h"
#include "fault/weight_import.h"
#include "tests/fault/torch_files.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kDamagedSource[] = "checkpoint";

// A good checkpoint of two ranks to lie in.
class HostileTest : public ::testing::Test {
 protected:
  HostileTest()
      : tensors_(HuggingFaceTensors(model_, ElementType::kBf16, {2, 1})) {}

  std::string Error() {
    FaultyFileSystem files;
    WriteTorchCheckpoint(files, kDamagedSource, tensors_, 2);
    if (damage_ != nullptr) damage_(files);
    return ImportError(files, kDamagedSource, model_);
  }

  // Replaces the first `from` in a file by text of the same length.
  std::string ErrorWith(const std::string& file, const std::string& from,
                        const std::string& to) {
    damage_ = [=](FaultyFileSystem& files) {
      const std::string path = JoinPath(kDamagedSource, file);
      std::string content = *files.Content(path);
      const size_t at = content.find(from);
      ASSERT_NE(at, std::string::npos);
      content.replace(at, from.size(), to);
      ASSERT_TRUE(files.SetContent(path, content).ok());
    };
    return Error();
  }

  const ModelSpec model_ = GroupedModel();
  std::vector<TorchTestTensor> tensors_;
  std::function<void(FaultyFileSystem&)> damage_;
};

// Goal: shards that overlap, leave gaps or lie outside are refused by tensor.
// Method: one such box each.
TEST_F(HostileTest, RefusesBoxesThatLie) {
  EXPECT_EQ(Error(), "no error");
  const std::vector<TorchBox> good = tensors_[0].boxes;
  tensors_[0].boxes[1] = {{21, 0}, {23, 24}};
  EXPECT_THAT(Error(), AllOf(HasSubstr("checkpoint/.metadata: "),
                             HasSubstr("model.embed_tokens.weight"),
                             HasSubstr("twice")));
  tensors_[0].boxes[1] = {{23, 0}, {21, 24}};
  EXPECT_THAT(Error(), HasSubstr("model.embed_tokens.weight"));
  tensors_[0].boxes = {good[0]};
  EXPECT_THAT(Error(), HasSubstr("model.embed_tokens.weight"));
  tensors_[0].boxes = {good[0], good[1], good[1]};
  EXPECT_THAT(Error(), HasSubstr("two parts at [22, 0]"));
  // Named in .metadata, beyond the tensor.
  tensors_[0].boxes = good;
  const std::string size = PickledSize(good[1].offsets);
  const std::string beyond = PickledSize({int64_t{1} << 62, 0});
  EXPECT_THAT(ErrorWith(".metadata", size, beyond),
              HasSubstr("a part of [22, 24] at [4611686018427387904, 0] of a "
                        "tensor of [44, 24]"));
  EXPECT_THAT(ErrorWith(".metadata", size, PickledSize({-22, 0})),
              HasSubstr("a part without place or sizes"));
  EXPECT_THAT(ErrorWith(".metadata", size,
                        PickledSize({std::numeric_limits<int64_t>::min(), 0})),
              HasSubstr("a part without place or sizes"));
  // A shape whose elements overflow.
  EXPECT_THAT(ErrorWith(".metadata", PickledSize({44, 24}),
                        PickledSize({int64_t{1} << 62, int64_t{1} << 62})),
              HasSubstr("of another shape"));
}

// Goal: files that are missing, cut short or elsewhere are refused by name and
// place. Method: one each, and places that .metadata gives wrongly.
TEST_F(HostileTest, RefusesFilesThatLie) {
  damage_ = [](FaultyFileSystem& files) {
    ASSERT_TRUE(files.Remove("checkpoint/__1_0.distcp").ok());
  };
  EXPECT_THAT(Error(), AllOf(HasSubstr("checkpoint/__1_0.distcp"),
                             HasSubstr(".metadata names it")));
  damage_ = [](FaultyFileSystem& files) {
    const std::string path = "checkpoint/__1_0.distcp";
    const std::string content = *files.Content(path);
    ASSERT_TRUE(
        files.SetContent(path, content.substr(0, content.size() - 1)).ok());
  };
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("checkpoint/__1_0.distcp: lm_head.weight: "),
                    HasSubstr(".metadata says")));
  const std::string name = PickledText("__0_0.distcp");
  for (const char* other : {"../0_0.distcp", "/etc/passwd", "", ".", "a/b"}) {
    EXPECT_THAT(ErrorWith(".metadata", name, PickledText(other)),
                HasSubstr("is not the name of a file in this folder"));
  }
  const std::string offset = PickledText("offset") + PickledInt(0);
  for (const int64_t wrong : {int64_t{-1}, int64_t{1}, int64_t{1} << 40,
                              std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(ErrorWith(".metadata", offset,
                          PickledText("offset") + PickledInt(wrong)),
                HasSubstr("checkpoint/__0_0.distcp: "));
  }
  // One more byte than eight.
  EXPECT_THAT(ErrorWith(".metadata", offset,
                        PickledText("offset") +
                            std::string("\x8a\x09\0\0\0\0\0\0\0\0\x01", 11)),
              HasSubstr("an integer of 9 bytes"));
}

// Goal: archives that are not what torch.save writes of that part are refused
// by file and byte. Method: one lie each in the first archive.
TEST_F(HostileTest, RefusesArchivesThatLie) {
  const char* file = "__0_0.distcp";
  EXPECT_THAT(ErrorWith(file, PickledGlobal("torch", "BFloat16Storage"),
                        PickledGlobal("posix", "systemXStorage1")),
              AllOf(HasSubstr("data.pkl at byte "), HasSubstr("'posix")));
  EXPECT_THAT(ErrorWith(file, "little", "bigend"),
              HasSubstr("not little-endian"));
  EXPECT_THAT(ErrorWith(file, "archive/data/0", "archive/data/1"),
              HasSubstr("a member with two names"));
  EXPECT_THAT(ErrorWith(file, "PK\x03\x04", "PK\x03\x05"),
              HasSubstr("checkpoint/__0_0.distcp: byte 0: the header of a"));
  const std::string dims = PickledTuple({PickledInt(22), PickledInt(24)});
  EXPECT_THAT(
      ErrorWith(file, dims, PickledTuple({PickledInt(24), PickledInt(22)})),
      HasSubstr("the archive's tensor is [24, 22], and .metadata says "
                "[22, 24]"));
  EXPECT_THAT(ErrorWith(file, PickledTuple({PickledInt(24), PickledInt(1)}),
                        PickledTuple({PickledInt(1), PickledInt(22)})),
              HasSubstr("its elements lie apart (strides [1, 22])"));
  EXPECT_THAT(ErrorWith(file, PickledInt(22 * 24), PickledInt(22 * 24 - 1)),
              HasSubstr("fewer than the 528 elements"));
  EXPECT_THAT(ErrorWith(file, PickledInt(22 * 24),
                        PickledInt(std::numeric_limits<int64_t>::max())),
              HasSubstr("fewer than the 528 elements"));
  // The entry of the directory: its method, then its size.
  const std::string entry("PK\x01\x02\0\0\0\0\x08\x08\0\0", 12);
  std::string packed = entry;
  packed[10] = 8;
  EXPECT_THAT(ErrorWith(file, entry, packed),
              HasSubstr("compressed or encrypted (method 8"));
  packed = entry;
  packed[8] = 9;
  EXPECT_THAT(ErrorWith(file, entry, packed),
              HasSubstr("compressed or encrypted"));
}

// Goal: no bytes crash the readers or pass as other shapes. Method: random
// damage, seeded, in .metadata and in a file of parts; the sanitizers watch.
TEST_F(HostileTest, SurvivesAnyBytes) {
  std::mt19937_64 random(3);
  FaultyFileSystem files;
  WriteTorchCheckpoint(files, kDamagedSource, tensors_, 2);
  int num_refused = 0;
  for (const char* name : {".metadata", "__0_0.distcp"}) {
    const std::string path = JoinPath(kDamagedSource, name);
    const std::string good = *files.Content(path);
    for (int i = 0; i < 150; ++i) {
      std::string damaged = good;
      for (int j = 0; j < 8; ++j) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      ASSERT_TRUE(files.SetContent(path, damaged).ok());
      num_refused += !WeightImport::Open(files, kDamagedSource, model_).ok();
    }
    ASSERT_TRUE(files.SetContent(path, good).ok());
  }
  EXPECT_GT(num_refused, 100);
}

// Goal: a full disk leaves no folder. Method: a file system that fills up.
TEST_F(HostileTest, FullDiskLeavesNothing) {
  FaultyFileSystem files;
  WriteTorchCheckpoint(files, kDamagedSource, tensors_, 2);
  const auto import = WeightImport::Open(files, kDamagedSource, model_);
  ASSERT_TRUE(import.ok()) << import.status();
  files.SetCapacity(files.used_bytes() + 1000);
  EXPECT_EQ(import->Write(files, {}, kMaxShardBytes, "out").code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(files.Exists("out"));
  EXPECT_FALSE(files.Exists("out.partial"));
}

}  // namespace
}  // namespace millrace
