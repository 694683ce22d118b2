#include "coordinator/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "fault/checkpoint.h"
#include "fault/checkpoint_files.h"
#include "fault/faulty_file_system.h"
#include "tests/fault/state_fixture.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDirectory[] = "checkpoints";
constexpr int64_t kAnyStep = std::numeric_limits<int64_t>::max();

std::string StepPath(int64_t step) {
  return absl::StrCat(kDirectory, "/step-0000000", step);
}

class UnreadableFileSystem : public FaultyFileSystem {
 public:
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override {
    return absl::PermissionDeniedError("no entry");
  }
  bool Exists(const std::string&) override { return true; }
};

// Checkpoints of steps 1 to 3, the first of another job.
class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t step : {1, 2, 3}) {
      std::vector<RankState> state = MakeState(TinyModel(), Layout{});
      FillState(state, step);
      CheckpointInfo info = InfoOf(Layout{}, step);
      info.job_yaml = step == 1 ? "name: other\n" : "name: this\n";
      ASSERT_TRUE(Save(files_, kDirectory, info, state, 3).ok());
    }
  }
  void Damage(int64_t step) {
    ASSERT_TRUE(files_.SetContent(ManifestPath(StepPath(step)), "{").ok());
  }

  FaultyFileSystem files_;
};

// Goal: training begins from the seed only where nothing was ever saved.
// Method: a folder that does not exist.
TEST_F(ResumeTest, NothingSavedIsNoError) {
  const auto choice = ChooseResume(files_, "elsewhere");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->path, "");
  EXPECT_EQ(choice->step, -1);
  EXPECT_THAT(choice->skipped, IsEmpty());
}

// Goal: the newest whole checkpoint is resumed, and damaged ones are named.
// Method: damage one after the other; with the last one gone the answer is an
// error that says what is wrong and what to do, never "from the seed".
TEST_F(ResumeTest, DamageIsNeverSilent) {
  EXPECT_EQ(ChooseResume(files_, kDirectory)->path, StepPath(3));
  Damage(3);
  auto choice = ChooseResume(files_, kDirectory);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->path, StepPath(2));
  EXPECT_EQ(choice->step, 2);
  EXPECT_THAT(choice->skipped, ElementsAre(HasSubstr(StepPath(3))));
  Damage(2);
  Damage(1);
  choice = ChooseResume(files_, kDirectory);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kDataLoss);
  const std::string message(choice.status().message());
  for (const int64_t step : {1, 2, 3}) {
    EXPECT_THAT(message, HasSubstr(StepPath(step)));
  }
  EXPECT_THAT(message, HasSubstr("checkpoint.resume: none"));
}

// Goal: a checkpoint of another model is passed over before it is read, and
// said; where no other is left, training does not begin from the seed. Method:
// ask for the saved model, then for one that is wider.
TEST_F(ResumeTest, AnotherModelsAreNotRestored) {
  ModelSpec model = TinyModel();
  EXPECT_EQ(ChooseResume(files_, kDirectory, &model)->path, StepPath(3));
  model.vocab_size *= 2;
  const auto choice = ChooseResume(files_, kDirectory, &model);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(choice.status().message()),
              HasSubstr("Resume with the model that wrote the checkpoint"));
}

// Goal: a folder that cannot be read is an error, not an empty one. Method: the
// file system lists nothing.
TEST_F(ResumeTest, UnreadableFolderIsAnError) {
  UnreadableFileSystem unreadable;
  const auto choice = ChooseResume(unreadable, kDirectory);
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kPermissionDenied)
      << choice.status();
}

// Goal: the checkpoint that was to be restored is kept if it is whole after
// all, though the folder holds a later one. Method: damage nothing.
TEST_F(ResumeTest, WholeCheckpointIsRestored) {
  const auto choice = ChooseRestore(
      files_, {.path = StepPath(2), .directory = kDirectory, .newest_step = 2});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->path, StepPath(2));
  EXPECT_THAT(choice->skipped, IsEmpty());
}

// Goal: an earlier checkpoint takes a damaged one's place; a later one, which
// belongs to a history that was rolled back, does not. Method: damage the
// middle one.
TEST_F(ResumeTest, EarlierTakesItsPlace) {
  Damage(2);
  const auto choice = ChooseRestore(
      files_, {.path = StepPath(2), .directory = kDirectory, .newest_step = 2});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->path, StepPath(1));
  EXPECT_EQ(choice->step, 1);
  EXPECT_THAT(choice->skipped, ElementsAre(HasSubstr(StepPath(2))));
}

// Goal: a job that was told not to resume what the folder held before does not
// restore it after a failure either. Method: only the other job's is whole.
TEST_F(ResumeTest, AnotherJobsCheckpointDoesNot) {
  Damage(2);
  Damage(3);
  const auto choice = ChooseRestore(files_, {.path = StepPath(3),
                                             .directory = kDirectory,
                                             .newest_step = 3,
                                             .job_yaml = "name: this\n"});
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(choice.status().message()),
              HasSubstr("written by another job"));
}

// Goal: what the user named is not exchanged for anything. Method: no folder to
// look in; the message names the damaged one.
TEST_F(ResumeTest, NamedCheckpointIsNotExchanged) {
  Damage(3);
  const auto choice = ChooseRestore(
      files_, {.path = StepPath(3), .directory = "", .newest_step = kAnyStep});
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(choice.status().message()), HasSubstr(StepPath(3)));
}

// Goal: a generation that restores nothing goes on restoring nothing, whatever
// the folder holds. Method: no path.
TEST_F(ResumeTest, SeedStaysSeed) {
  const auto choice = ChooseRestore(
      files_, {.path = "", .directory = kDirectory, .newest_step = kAnyStep});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->path, "");
}

}  // namespace
}  // namespace millrace
