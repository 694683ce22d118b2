#include "fault/spread_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fault/checkpoint.h"
#include "fault/checkpoint_files.h"
#include "fault/faulty_file_system.h"
#include "fault/moved_files.h"
#include "tests/fault/state_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  SpreadFiles files({BorrowedFiles(&here), "node1"}, {{mirror, "node2"}},
                    {{source, "node3"}});
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
    SpreadFiles files({BorrowedFiles(&here), "node1"}, {{mirror, "node2"}}, {});
    mirror->FailAt(operation, absl::ResourceExhaustedError("the disk is full"));
    absl::Status status = absl::OkStatus();
    auto file = files.Create("a");
    status = file.status();
    if (status.ok()) status = (*file)->Append("abc", 3);
    if (status.ok()) status = (*file)->Sync();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << operation << status;
  }
}

// A checkpoint whose two parts and manifest lie on two disks each.
class SpreadCheckpointTest : public ::testing::Test {
 protected:
  SpreadCheckpointTest()
      : files_({BorrowedFiles(&here_), "node1"}, {{mirror_, "node2"}}, {}) {}

  void SetUp() override {
    std::vector<RankState> state = MakeState(TinyModel(), kLayout);
    FillState(state, kSalt);
    ASSERT_TRUE(Save(files_, "ckpt", InfoOf(kLayout, 7), state, 2).ok());
    ASSERT_EQ(here_.List(kStep)->size(), 3u);
  }

  // Flips a bit in the middle of the file, which is data of parts.
  static void Damage(FaultyFileSystem& disk, const std::string& name) {
    const std::string path = JoinPath(kStep, name);
    std::string content = *disk.Content(path);
    content[content.size() / 2] ^= 1;
    ASSERT_TRUE(disk.SetContent(path, content).ok());
  }

  // What a single rank that owns everything reads.
  int64_t CountWrongAfterLoading() {
    std::vector<RankState> state = MakeState(TinyModel(), Layout{});
    const auto info = LoadCheckpoint(files_, kStep, state.front().pieces);
    EXPECT_TRUE(info.ok()) << info.status();
    return CountWrong(state, kSalt);
  }

  static constexpr char kStep[] = "ckpt/step-00000007";
  static constexpr char kPart[] = "rank-00000.g1.safetensors";
  static constexpr int64_t kSalt = 3;
  const Layout kLayout = {.data = 2, .num_microbatches = 4, .zero = 1};
  FaultyFileSystem here_;
  const std::shared_ptr<FaultyFileSystem> mirror_ =
      std::make_shared<FaultyFileSystem>();
  SpreadFiles files_;
};

// Goal: a copy that is damaged in any way is passed over for the other, which
// is told once, with both hosts. Method: flip a bit, cut, lengthen and empty
// each file on this host; verify and load.
TEST_F(SpreadCheckpointTest, ReadsTheOtherCopyOfADamagedFile) {
  EXPECT_TRUE(VerifyCheckpoint(files_, kStep).ok());
  EXPECT_THAT(files_.TakeDamagedCopies(), IsEmpty());
  const std::vector<std::string> names = *here_.List(kStep);
  for (const std::string& name : names) {
    const std::string path = JoinPath(kStep, name);
    const std::string whole = *here_.Content(path);
    std::string flipped = whole;
    flipped[flipped.size() / 2] ^= 1;
    for (const std::string& damaged :
         {flipped, whole.substr(0, whole.size() - 1), whole + "x",
          std::string()}) {
      SCOPED_TRACE(absl::StrCat(name, " with ", damaged.size(), " bytes"));
      SpreadFiles files({BorrowedFiles(&here_), "node1"}, {},
                        {{mirror_, "node2"}});
      ASSERT_TRUE(here_.SetContent(path, damaged).ok());
      const absl::Status verified = VerifyCheckpoint(files, kStep);
      EXPECT_TRUE(verified.ok()) << verified;
      EXPECT_THAT(
          files.TakeDamagedCopies(),
          ElementsAre(AllOf(
              HasSubstr(absl::StrCat("step-00000007/", name,
                                     " on node1 is damaged, and node2's copy "
                                     "was read instead: ")),
              HasSubstr(path))));
      EXPECT_EQ(CountWrongAfterLoading(), 0);
      EXPECT_TRUE(VerifyCheckpoint(files, kStep).ok());
      EXPECT_THAT(files.TakeDamagedCopies(), IsEmpty());
    }
    ASSERT_TRUE(here_.SetContent(path, whole).ok());
  }
}

// Goal: copies that are damaged in different places still make a whole; where
// both are in one place, nothing does. Method: damage the first and the last
// bytes of a part, then a middle one of both.
TEST_F(SpreadCheckpointTest, RefusesWhatIsDamagedOnBothDisks) {
  const std::string path = JoinPath(kStep, kPart);
  std::string first = *here_.Content(path), last = first;
  first.front() ^= 1;
  last.back() ^= 1;
  ASSERT_TRUE(here_.SetContent(path, first).ok());
  ASSERT_TRUE(mirror_->SetContent(path, last).ok());
  EXPECT_TRUE(VerifyCheckpoint(files_, kStep).ok());
  EXPECT_THAT(files_.TakeDamagedCopies(), ElementsAre(HasSubstr("on node1")));
  EXPECT_TRUE(VerifyCopies(files_, kStep).ok());
  EXPECT_THAT(files_.TakeDamagedCopies(), ElementsAre(HasSubstr("on node2")));
  EXPECT_EQ(CountWrongAfterLoading(), 0);
  Damage(here_, kPart);
  Damage(*mirror_, kPart);
  const absl::Status refused = VerifyCheckpoint(files_, kStep);
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(kPart), HasSubstr("None of its 2 copies")));
  std::vector<RankState> state = MakeState(TinyModel(), Layout{});
  EXPECT_TRUE(absl::IsDataLoss(
      LoadCheckpoint(files_, kStep, state.front().pieces).status()));
}

// Goal: verifying all copies finds those that no reader needs. Method: damage
// the part of the disk that is read last.
TEST_F(SpreadCheckpointTest, VerifiesEveryCopy) {
  Damage(*mirror_, kPart);
  EXPECT_TRUE(VerifyCheckpoint(files_, kStep).ok());
  EXPECT_THAT(files_.TakeDamagedCopies(), IsEmpty());
  EXPECT_TRUE(VerifyCopies(files_, kStep).ok());
  EXPECT_THAT(files_.TakeDamagedCopies(),
              ElementsAre(HasSubstr("on node2 is damaged")));
}

// Goal: a host whose devices are idle keeps the manifest too. Method: a disk on
// which no rank has written.
TEST_F(SpreadCheckpointTest, CommitsOnAHostWithoutRanks) {
  const auto idle = std::make_shared<FaultyFileSystem>();
  ASSERT_TRUE(idle->MakeDirectories("ckpt").ok());
  SpreadFiles all({BorrowedFiles(&here_), "node1"},
                  {{mirror_, "node2"}, {idle, "node3"}}, {});
  std::vector<RankState> state = MakeState(TinyModel(), kLayout);
  std::vector<std::string> entries;
  const CheckpointInfo info = InfoOf(kLayout, 8);
  for (const RankState& rank : state) {
    const absl::StatusOr<std::string> entry =
        WriteCheckpointPart(files_, "ckpt", info, rank.rank, rank.pieces,
                            {.hosts = {"node1", "node2"}});
    ASSERT_TRUE(entry.ok()) << entry.status();
    entries.push_back(*entry);
  }
  const absl::Status committed = CommitCheckpoint(
      all, "ckpt", info, entries, 2, [] { return absl::OkStatus(); });
  EXPECT_TRUE(committed.ok()) << committed;
  EXPECT_TRUE(idle->Exists("ckpt/step-00000008/manifest.json"));
}

// Goal: old checkpoints go from all disks at once, also those that a host which
// was away does not have, or it alone has. Method: two old steps are gone from
// the mirror, and another is gone from this host.
TEST_F(SpreadCheckpointTest, RemovesOldStepsThatSomeHostsLack) {
  std::vector<RankState> state = MakeState(TinyModel(), kLayout);
  for (const int64_t step : {10, 20, 30, 40}) {
    ASSERT_TRUE(Save(files_, "ckpt", InfoOf(kLayout, step), state, 9).ok());
  }
  ASSERT_TRUE(mirror_->Remove("ckpt/step-00000020").ok());
  ASSERT_TRUE(mirror_->Remove("ckpt/step-00000030").ok());
  ASSERT_TRUE(here_.Remove("ckpt/step-00000010").ok());
  ASSERT_TRUE(Save(files_, "ckpt", InfoOf(kLayout, 50), state, 2).ok());
  EXPECT_THAT(*files_.List("ckpt"),
              ElementsAre("step-00000040", "step-00000050"));
}

// Goal: what commits that failed have left goes, and nothing else. Method:
// parts of three steps on both sides of the bounds, and a committed step.
TEST_F(SpreadCheckpointTest, RemovesUncommittedStepsBetweenTwo) {
  std::vector<RankState> state = MakeState(TinyModel(), kLayout);
  for (const int64_t step : {20, 30, 40}) {
    ASSERT_TRUE(WriteCheckpointPart(files_, "ckpt", InfoOf(kLayout, step),
                                    Rank{0}, state[0].pieces)
                    .ok());
  }
  ASSERT_TRUE(Save(files_, "ckpt", InfoOf(kLayout, 35), state, 9).ok());
  ASSERT_TRUE(WriteCheckpointPart(files_, "ckpt", InfoOf(kLayout, 30), Rank{0},
                                  state[0].pieces)
                  .ok());
  ASSERT_TRUE(RemoveUncommitted(files_, "ckpt", 20, 40).ok());
  EXPECT_FALSE(files_.Exists("ckpt/step-00000030"));
  EXPECT_TRUE(files_.Exists("ckpt/step-00000035"));
  EXPECT_TRUE(files_.Exists("ckpt/step-00000040"));
}

// Goal: a folder that stands for another one is read under its name, changed
// never, and hides nothing that lies elsewhere. Method: a folder on disk.
TEST(MovedFilesTest, ReadsUnderTheOtherName) {
  const std::string folder = ::testing::TempDir() + "/moved_files_test";
  std::filesystem::remove_all(folder);
  FileSystem& disk = *PosixFileSystem();
  ASSERT_TRUE(disk.MakeDirectories(folder + "/step").ok());
  WriteTo(disk, folder + "/step/a");
  MovedFiles files("/ckpt", folder);
  EXPECT_TRUE(files.Exists("/ckpt/step/a"));
  EXPECT_FALSE(files.Exists("/ckpt2/step/a"));
  EXPECT_FALSE(files.Exists(folder + "/step/a"));
  EXPECT_THAT(*files.List("/ckpt"), ElementsAre("step"));
  EXPECT_EQ((*files.Open("/ckpt/step/a"))->size(), 3);
  EXPECT_TRUE(absl::IsNotFound(files.Open("/other/a").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(files.Create("/ckpt/b").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(files.Remove("/ckpt/step")));
  EXPECT_TRUE(disk.Exists(folder + "/step/a"));
}

}  // namespace
}  // namespace millrace
