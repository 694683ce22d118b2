// Tests what a crash, a full disk or a failing call at any point of a save
// leaves.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fault/checkpoint.h"
#include "fault/faulty_file_system.h"
#include "tests/fault/state_fixture.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

constexpr char kTornDirectory[] = "run/checkpoints";

// Few and small tensors: every one of a save's operations is a test case.
ModelSpec SmallModel() {
  return {.vocab_size = 6,
          .hidden = 8,
          .num_layers = 1,
          .num_heads = 2,
          .num_kv_heads = 2,
          .head_dim = 4,
          .ffn_hidden = 10,
          .sequence_length = 8};
}

Layout SavedLayout() { return {.data = 2, .num_microbatches = 4, .zero = 1}; }

// One save as an operation sequence: which steps are there before (one salt a
// save, see FillState), and which is then saved.
struct Scenario {
  const char* name;
  std::vector<int64_t> steps_before;
  int64_t step;
  int64_t salt;
  int64_t generation;
  int32_t keep;
};

std::vector<Scenario> Scenarios() {
  return {{.name = "the first checkpoint",
           .steps_before = {},
           .step = 2,
           .salt = 2,
           .generation = 1,
           .keep = 1},
          {.name = "a second one, the first is kept",
           .steps_before = {1},
           .step = 2,
           .salt = 2,
           .generation = 1,
           .keep = 2},
          {.name = "a second one, the first is deleted",
           .steps_before = {1},
           .step = 2,
           .salt = 2,
           .generation = 1,
           .keep = 1},
          {.name = "the same step once more, in a new generation",
           .steps_before = {1, 2},
           .step = 2,
           .salt = 22,
           .generation = 2,
           .keep = 2}};
}

absl::Status SaveStep(FileSystem& files, int64_t step, int64_t salt,
                      int64_t generation, int32_t keep) {
  std::vector<RankState> state = MakeState(SmallModel(), SavedLayout());
  FillState(state, salt);
  return Save(files, kTornDirectory, InfoOf(SavedLayout(), step, generation),
              state, keep);
}

// The file system just before the save in question.
std::unique_ptr<FaultyFileSystem> Before(const Scenario& scenario) {
  auto files = std::make_unique<FaultyFileSystem>();
  for (const int64_t step : scenario.steps_before) {
    EXPECT_TRUE(SaveStep(*files, step, step, 1, 100).ok());
  }
  return files;
}

absl::Status SaveIn(FileSystem& files, const Scenario& scenario) {
  return SaveStep(files, scenario.step, scenario.salt, scenario.generation,
                  scenario.keep);
}

// The salt of the state that FindNewestCheckpoint leads to, loaded under
// another layout and compared in every element; 0 if there is no checkpoint,
// -1 if what is found is neither of the two that may be.
int64_t SaltFound(FileSystem& files, const Scenario& scenario) {
  const auto newest = FindNewestCheckpoint(files, kTornDirectory, nullptr);
  if (absl::IsNotFound(newest.status())) return 0;
  if (!newest.ok()) return -1;
  std::vector<RankState> state = MakeState(SmallModel(), {.tensor = 2});
  for (const RankState& rank : state) {
    if (!LoadCheckpoint(files, newest->path, rank.pieces).ok()) return -1;
  }
  std::vector<int64_t> salts = scenario.steps_before;
  salts.push_back(scenario.salt);
  for (const int64_t salt : salts) {
    if (CountWrong(state, salt) == 0) return salt;
  }
  return -1;
}

// Expects that the next save works on what the fault left, and leaves only
// itself.
void ExpectNextSaveIsClean(FaultyFileSystem& files) {
  const absl::Status status = SaveStep(files, 9, 9, 5, 1);
  ASSERT_TRUE(status.ok()) << status;
  const auto newest = FindNewestCheckpoint(files, kTornDirectory, nullptr);
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ(newest->step, 9);
  EXPECT_EQ(files.List(kTornDirectory)->size(), 1u) << "remains of older saves";
  EXPECT_EQ(files.List(newest->path)->size(), 3u);
}

struct Reboot {
  CrashOutcome outcome;
  uint64_t seed;
};

// Goal: whatever the moment of a crash and whatever of the unsynced bytes and
// folder entries survived it, the newest whole checkpoint is found and loads
// bit by bit: the old one or the new one, the new one if the commit had
// returned. Method: crash before every operation of the save in turn, reboot
// with nothing lost, everything unsynced lost, and random parts lost.
TEST(TornCheckpointTest, EveryCrashPointLeavesAWholeCheckpoint) {
  std::vector<Reboot> reboots = {{CrashOutcome::kNothingLost, 0},
                                 {CrashOutcome::kAllUnsyncedLost, 0}};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    reboots.push_back({CrashOutcome::kRandom, seed});
  }
  for (const Scenario& scenario : Scenarios()) {
    SCOPED_TRACE(scenario.name);
    const std::unique_ptr<FaultyFileSystem> whole = Before(scenario);
    const int64_t first = whole->num_operations() + 1;
    ASSERT_TRUE(SaveIn(*whole, scenario).ok());
    const int64_t last = whole->num_operations();
    ASSERT_GT(last - first, 10);
    const int64_t old_salt =
        scenario.steps_before.empty() ? 0 : scenario.steps_before.back();
    int num_old = 0, num_new = 0;
    // Backwards, so that a sample too has crashes on both sides of the commit.
    for (int64_t crash = last + 1; crash >= first; crash -= SweepStep(7)) {
      for (const Reboot& reboot : reboots) {
        SCOPED_TRACE(testing::Message()
                     << "crash before operation " << crash << " of " << first
                     << " to " << last << ", outcome "
                     << static_cast<int>(reboot.outcome) << ", seed "
                     << reboot.seed);
        const std::unique_ptr<FaultyFileSystem> files = Before(scenario);
        files->CrashAt(crash);
        const bool committed = SaveIn(*files, scenario).ok();
        ASSERT_EQ(files->crashed(), crash <= last);
        files->Restart(reboot.outcome, reboot.seed);
        const int64_t salt = SaltFound(*files, scenario);
        if (committed) {
          ASSERT_EQ(salt, scenario.salt);
        }
        ASSERT_TRUE(salt == old_salt || salt == scenario.salt) << salt;
        ++(salt == scenario.salt ? num_new : num_old);
        ASSERT_NO_FATAL_FAILURE(ExpectNextSaveIsClean(*files));
      }
    }
    // Both sides of the commit have been seen, or nothing was tested.
    EXPECT_GT(num_old, 0);
    EXPECT_GT(num_new, 0);
  }
}

// Goal: a full disk fails the save and harms nothing: the old checkpoint stays
// the newest, and once there is room the next save succeeds. Method: limit the
// space to every amount that a save passes through, in steps that end inside
// headers, data and manifest.
TEST(TornCheckpointTest, FullDiskKeepsTheOldCheckpoint) {
  const Scenario scenario = Scenarios()[2];
  const std::unique_ptr<FaultyFileSystem> whole = Before(scenario);
  const int64_t used = whole->used_bytes();
  Scenario keeping = scenario;
  keeping.keep = 2;
  ASSERT_TRUE(SaveIn(*whole, keeping).ok());
  const int64_t needed = whole->used_bytes() - used;
  for (int64_t room = 0; room < needed; room += 251 * SweepStep(7)) {
    SCOPED_TRACE(room);
    const std::unique_ptr<FaultyFileSystem> files = Before(scenario);
    files->SetCapacity(used + room);
    const absl::Status status = SaveIn(*files, scenario);
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    ASSERT_EQ(SaltFound(*files, scenario), 1);
    ASSERT_EQ(ListCheckpoints(*files, kTornDirectory)->size(), 1u);
    files->SetCapacity(-1);
    ASSERT_NO_FATAL_FAILURE(ExpectNextSaveIsClean(*files));
  }
}

// Goal: a call that fails (a disk error, a quota, a folder gone read-only) is
// reported or, while cleaning up after the commit, made good later; whole
// checkpoints stay whole. Method: fail each operation of the save in turn.
TEST(TornCheckpointTest, EveryFailingCallIsSurvived) {
  for (const Scenario& scenario : Scenarios()) {
    SCOPED_TRACE(scenario.name);
    const std::unique_ptr<FaultyFileSystem> whole = Before(scenario);
    const int64_t first = whole->num_operations() + 1;
    ASSERT_TRUE(SaveIn(*whole, scenario).ok());
    const int64_t last = whole->num_operations();
    const int64_t old_salt =
        scenario.steps_before.empty() ? 0 : scenario.steps_before.back();
    int num_failed = 0;
    for (int64_t operation = first; operation <= last;
         operation += SweepStep(5)) {
      SCOPED_TRACE(operation);
      const std::unique_ptr<FaultyFileSystem> files = Before(scenario);
      files->FailAt(operation, absl::InternalError("input/output error"));
      const absl::Status status = SaveIn(*files, scenario);
      const int64_t salt = SaltFound(*files, scenario);
      if (status.ok()) {
        ASSERT_EQ(salt, scenario.salt);
      } else {
        ++num_failed;
        ASSERT_EQ(status.code(), absl::StatusCode::kInternal);
        ASSERT_TRUE(salt == old_salt || salt == scenario.salt) << salt;
      }
      ASSERT_NO_FATAL_FAILURE(ExpectNextSaveIsClean(*files));
    }
    EXPECT_GT(num_failed, 10);
  }
}

}  // namespace
}  // namespace millrace
