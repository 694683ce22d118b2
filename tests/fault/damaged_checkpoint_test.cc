// Tests that damage on disk is noticed, and what is done without the damaged
// checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "fault/checkpoint.h"
#include "fault/checkpoint_files.h"
#include "fault/faulty_file_system.h"
#include "fault/manifest.h"
#include "fault/weight_export.h"
#include "tests/fault/state_fixture.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr char kDamagedDirectory[] = "checkpoints";
constexpr char kNewest[] = "checkpoints/step-00000002";

class DamagedCheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Layout layout = {.data = 2, .num_microbatches = 4, .zero = 1};
    for (const int64_t step : {1, 2}) {
      std::vector<RankState> state = MakeState(TinyModel(), layout);
      FillState(state, step);
      ASSERT_TRUE(
          Save(files_, kDamagedDirectory, InfoOf(layout, step), state, 2).ok());
    }
    names_ = *files_.List(kNewest);
    ASSERT_EQ(names_.size(), 3u);
  }

  std::string PathOf(const std::string& name) const {
    return JoinPath(kNewest, name);
  }

  FaultyFileSystem files_;
  std::vector<std::string> names_;  // Files of the newest checkpoint.
};

// Puts a checksum that fits behind a changed manifest.
std::string Sign(const std::string& manifest) {
  const std::string body =
      manifest.substr(0, manifest.rfind(",\"checksum\":\""));
  const uint64_t checksum = Checksum(body.data(), body.size());
  return absl::StrCat(body, ",\"checksum\":\"",
                      absl::Hex(checksum, absl::kZeroPad16), "\"}\n");
}

// Goal: any flipped bit in any file is found, by verifying and by loading.
// Method: flip one bit at 600 random places of each file in turn; the first and
// last bytes always.
TEST_F(DamagedCheckpointTest, EveryFlippedBitIsFound) {
  const std::vector<RankState> state = MakeState(TinyModel(), Layout{});
  for (const std::string& name : names_) {
    const std::string content = *files_.Content(PathOf(name));
    std::mt19937_64 random(content.size());
    for (int i = 0; i < 600; i += SweepStep(7)) {
      const size_t byte = i == 0   ? 0
                          : i == 1 ? content.size() - 1
                                   : random() % content.size();
      const int bit = static_cast<int>(random() % 8);
      SCOPED_TRACE(absl::StrCat(name, " byte ", byte, " bit ", bit));
      std::string flipped = content;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      ASSERT_TRUE(files_.SetContent(PathOf(name), flipped).ok());
      const absl::Status status = VerifyCheckpoint(files_, kNewest);
      ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      ASSERT_THAT(std::string(status.message()), HasSubstr(name));
      ASSERT_EQ(
          LoadCheckpoint(files_, kNewest, state.front().pieces).status().code(),
          absl::StatusCode::kDataLoss);
    }
    ASSERT_TRUE(files_.SetContent(PathOf(name), content).ok());
    ASSERT_TRUE(VerifyCheckpoint(files_, kNewest).ok());
  }
}

// Goal: files cut short, grown, emptied or gone are found. Method: each of them
// on each file; the search then gives the older checkpoint and says why.
TEST_F(DamagedCheckpointTest, WrongLengthsFallBackToTheOlder) {
  for (const std::string& name : names_) {
    const std::string content = *files_.Content(PathOf(name));
    for (const std::string& damaged :
         {std::string(), content.substr(0, 7), content.substr(0, 40),
          content.substr(0, content.size() / 2),
          content.substr(0, content.size() - 1), content + '\0'}) {
      SCOPED_TRACE(absl::StrCat(name, " with ", damaged.size(), " bytes"));
      ASSERT_TRUE(files_.SetContent(PathOf(name), damaged).ok());
      std::vector<std::string> skipped;
      const auto newest =
          FindNewestCheckpoint(files_, kDamagedDirectory, &skipped);
      ASSERT_TRUE(newest.ok()) << newest.status();
      EXPECT_EQ(newest->step, 1);
      ASSERT_EQ(skipped.size(), 1u);
      EXPECT_THAT(skipped.front(), HasSubstr(name));
    }
    ASSERT_TRUE(files_.SetContent(PathOf(name), content).ok());
  }
  ASSERT_TRUE(files_.Remove(PathOf("rank-00001.g1.safetensors")).ok());
  const absl::Status status = VerifyCheckpoint(files_, kNewest);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is missing"));
}

// Goal: when every checkpoint is damaged the search says so instead of giving
// one. Method: empty both manifests.
TEST_F(DamagedCheckpointTest, NoneLeft) {
  for (const char* step : {"checkpoints/step-00000001", kNewest}) {
    ASSERT_TRUE(files_.SetContent(ManifestPath(step), "").ok());
  }
  std::vector<std::string> skipped;
  EXPECT_EQ(
      FindNewestCheckpoint(files_, kDamagedDirectory, &skipped).status().code(),
      absl::StatusCode::kNotFound);
  EXPECT_EQ(skipped.size(), 2u);
}

// Goal: a manifest that is consistent with its checksum but wrong in itself is
// refused before anything is read by it. Method: change one thing at a time in
// a good manifest and sign it again.
TEST_F(DamagedCheckpointTest, ForgedManifestsAreRefused) {
  const std::string good = *files_.Content(ManifestPath(kNewest));
  ASSERT_EQ(Sign(good), good);
  const std::string deep =
      absl::StrCat("\"files\":[", std::string(100'000, '['));
  const std::vector<std::pair<const char*, const char*>> changes = {
      {"rank-00000.g1.safetensors", "../rank.safetensors"},
      {"rank-00000.g1.safetensors", "rank-00001.g1.safetensors"},
      {"\"rank\":0", "\"rank\":\"zero\""},
      {"\"rank\":0", "\"rank\":99999999999"},
      {"\"step\":2", "\"step\":3"},
      {"\"step\":2", "\"step\":18446744073709551615"},
      {"\"header_bytes\":", "\"header_bytes\":-"},
      {"\"header_bytes\":", "\"header_bytes\":9"},
      {"\"bytes\":", "\"bytes\":1"},
      {"\"elements\":[0,", "\"elements\":[1,"},
      {"\"elements\":[0,", "\"elements\":[-1,"},
      {"\"rows\":[0,", "\"rows\":[1,"},
      {"\"cols\":[0,", "\"cols\":[-5,"},
      {"\"checksums\":[\"", "\"checksums\":[\"0123456789abcdef\",\""},
      {"\"checksums\":[\"", "\"checksums\":[\"xyz"},
      {"[44,24]", "[44,25]"},
      {"[44,24]", "[4611686018427387904,4611686018427387904]"},
      {"[44,24]", "[-44,-24]"},
      {"[44,24]", "[44,24,1]"},
      {"[44,24]", "[]"},
      {"\"format\":\"millrace", "\"format\":\"mill"},
      {"\"files\":[", "\"files\":[[],"},
      {"\"files\":[", "\"files\":[[[[[[[[["},
      {"\"seed\":", "\"seeds\":"},
      {"\"layout\":{", "\"layout\":7,\"l\":{"},
      {"\"header_bytes\":", "\"header_bytes\":9000000000"},
      {"\"micro_batch\":1", "\"micro_batch\":0"},
      {"\"micro_batch\":1", "\"micro_batch\":2147483647"},
      {"\"micro_batch\":1", "\"extra_microbatches\":-1,\"micro_batch\":1"},
      {"\"micro_batch\":1", "\"extra_microbatches\":2,\"micro_batch\":1"},
      {"\"pipeline\":1", "\"pipeline\":-1"},
      {"\"data\":2", "\"data\":2000000000"},
      {"\"zero\":1", "\"zero\":9"},
      {"\"files\":[", deep.c_str()}};
  for (const auto& [from, to] : changes) {
    SCOPED_TRACE(absl::StrCat(from, " -> ", to));
    ASSERT_NE(good.find(from), std::string::npos);
    std::string forged = good;
    forged.replace(forged.find(from), std::string(from).size(), to);
    ASSERT_TRUE(files_.SetContent(ManifestPath(kNewest), Sign(forged)).ok());
    const absl::Status status = VerifyCheckpoint(files_, kNewest);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  }
}

// The same on the machine's own file system, where a name may stand for more
// than a file.
class HostileFolderTest : public ::testing::Test {
 protected:
  HostileFolderTest()
      : directory_(
            absl::StrCat(::testing::TempDir(), "/hostile_folder.", getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~HostileFolderTest() override { std::filesystem::remove_all(directory_); }

  void SetUp() override {
    for (const int64_t step : {1, 2}) {
      std::vector<RankState> state = MakeState(TinyModel(), Layout{});
      FillState(state, step);
      ASSERT_TRUE(
          Save(files_, directory_, InfoOf(Layout{}, step), state, 2).ok());
    }
    newest_ = absl::StrCat(directory_, "/step-00000002");
    part_ = absl::StrCat(newest_, "/rank-00000.g1.safetensors");
  }

  // The older checkpoint takes the newest one's place; the reason for it.
  std::string WhyOlder() {
    std::vector<std::string> skipped;
    const ModelSpec model = TinyModel();
    const auto found =
        FindNewestCheckpoint(files_, directory_, &skipped, &model);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok()) return "";
    EXPECT_EQ(found->step, 1);
    return skipped.empty() ? "" : skipped.front();
  }

  FileSystem& files_ = *PosixFileSystem();
  const std::string directory_;
  std::string newest_;
  std::string part_;
};

// Goal: whatever stands in a file's place in a job's folder, the older
// checkpoint is taken, at once and with a reason. Method: in place of the
// manifest, then of a part: a pipe that nobody writes to, a folder, a link in a
// circle, 8 TiB of holes, nothing.
TEST_F(HostileFolderTest, OlderCheckpointIsTaken) {
  for (const std::string& path : {ManifestPath(newest_), part_}) {
    const bool is_manifest = path != part_;
    std::filesystem::rename(path, directory_ + "/kept");
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_THAT(WhyOlder(), HasSubstr("is a pipe"));
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    EXPECT_THAT(WhyOlder(), HasSubstr("is a folder"));
    std::filesystem::remove(path);
    if (!is_manifest) {
      std::filesystem::create_symlink(path, path);
      EXPECT_THAT(WhyOlder(), HasSubstr("symbolic links"));
      std::filesystem::remove(path);
      EXPECT_THAT(WhyOlder(), HasSubstr("is missing"));
    }
    std::filesystem::copy(directory_ + "/kept", path);
    std::filesystem::resize_file(path, int64_t{8} << 40);
    EXPECT_THAT(WhyOlder(),
                HasSubstr(is_manifest ? "a manifest has" : "bytes, the manif"));
    std::filesystem::remove(path);
    std::filesystem::rename(directory_ + "/kept", path);
  }
  const auto whole = FindNewestCheckpoint(files_, directory_, nullptr);
  EXPECT_EQ(whole->step, 2) << "all is back in its place";
}

// A checkpoint of one tensor of 2 TiB of zeros whose every checksum is right;
// its file is all hole. True to the format, and false to any job.
std::string ForgedTerabytes(const std::string& path) {
  constexpr int64_t kRows = int64_t{1} << 20, kCols = int64_t{1} << 19;
  constexpr int64_t kHeaderBytes = 64;
  const std::vector<char> zeros(kChunkBytes);
  ManifestFile file = {
      .name = std::filesystem::path(path).filename().string(),
      .rank = Rank{0},
      .step = 2,
      .generation = Generation{1},
      .bytes = kHeaderBytes + kRows * kCols * 4,
      .header_bytes = kHeaderBytes,
      .header_checksum = Checksum(zeros.data(), kHeaderBytes),
      .shapes = {{"huge", {kRows, kCols, false}}},
      .pieces = {{.tensor = "huge",
                  .run = {{0, kRows, 0, kCols}, 0, kRows * kCols},
                  .offset = kHeaderBytes}}};
  file.pieces[0].checksums.assign(
      static_cast<size_t>(kRows * kCols * 4 / kChunkBytes),
      Checksum(zeros.data(), kChunkBytes));
  std::filesystem::resize_file(path, file.bytes);
  return EncodeManifest(*JoinParts(InfoOf(Layout{}, 2), {file}));
}

// Goal: terabytes that a manifest promises are not read before it is known that
// the job can use them. Method: forge them; reading them would take half an
// hour.
TEST_F(HostileFolderTest, TerabytesOfAnotherModelAreNotRead) {
  std::filesystem::remove(part_);
  ASSERT_TRUE(WriteFileAtomically(part_, "").ok());
  ASSERT_TRUE(
      WriteFileAtomically(ManifestPath(newest_), ForgedTerabytes(part_)).ok());
  ASSERT_TRUE(ReadCheckpointInfo(files_, newest_).ok());
  EXPECT_THAT(WhyOlder(), HasSubstr("It is a checkpoint of another model"));
}

// Goal: a checkpoint that holds more than the job's model is another model's
// too. Method: ask for the model with one layer fewer.
TEST_F(HostileFolderTest, MoreTensorsAreAnotherModels) {
  ModelSpec model = TinyModel();
  ASSERT_TRUE(CheckIsOfModel(files_, newest_, model).ok());
  --model.num_layers;
  const absl::Status status = CheckIsOfModel(files_, newest_, model);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensors, this job's"));
}

// Goal: a checkpoint is the user's alone where the writing process asked for
// that, and an exported file follows the user's umask. Method: modes of what a
// save and an export leave.
TEST_F(HostileFolderTest, CheckpointsArePrivateExportsAreNot) {
  const mode_t before = umask(022);
  {
    const PrivateFiles private_files;
    std::vector<RankState> state = MakeState(TinyModel(), Layout{});
    ASSERT_TRUE(Save(files_, directory_, InfoOf(Layout{}, 3), state, 2).ok());
  }
  const std::string saved = absl::StrCat(directory_, "/step-00000003");
  EXPECT_EQ(std::filesystem::status(saved).permissions(),
            std::filesystem::perms{0700});
  for (const auto& entry : std::filesystem::directory_iterator(saved)) {
    EXPECT_EQ(entry.status().permissions(), std::filesystem::perms{0600})
        << entry.path();
  }
  const std::string output = directory_ + "/model.safetensors";
  EXPECT_TRUE(
      ExportWeightFile(
          files_, {.checkpoint = saved, .type = ElementType::kFp32}, output)
          .ok());
  EXPECT_EQ(std::filesystem::status(output).permissions(),
            std::filesystem::perms{0644});
  umask(before);
}

// Goal: a checkpoint of another format version is not called damaged but names
// the version. Method: raise the version and sign.
TEST_F(DamagedCheckpointTest, AnotherVersionIsNamed) {
  const std::string good = *files_.Content(ManifestPath(kNewest));
  const std::string other =
      Sign(absl::StrReplaceAll(good, {{"\"version\":1", "\"version\":2"}}));
  ASSERT_TRUE(files_.SetContent(ManifestPath(kNewest), other).ok());
  const absl::Status status = ReadCheckpointInfo(files_, kNewest).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2"));
}

// Goal: bytes that were never a manifest are refused. Method: random bytes,
// random JSON-like text, signed so that the parser sees them.
TEST_F(DamagedCheckpointTest, GarbageIsRefused) {
  std::mt19937_64 random(5);
  const std::string alphabet = "{}[]\",:0123456789-eE.truefalsn \\u";
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    const size_t length = random() % 200;
    for (size_t j = 0; j < length; ++j) {
      text += i % 2 == 0 ? static_cast<char>(random())
                         : alphabet[random() % alphabet.size()];
    }
    EXPECT_EQ(ParseManifest(text, "m").status().code(),
              absl::StatusCode::kDataLoss);
    EXPECT_EQ(ParseManifest(Sign(text), "m").status().code(),
              absl::StatusCode::kDataLoss);
    EXPECT_EQ(ParsePart(text).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace
