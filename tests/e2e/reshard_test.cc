#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "fault/checkpoint.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/communicate/in_process_communicator.h"

namespace millrace {
namespace {

constexpr int64_t kStepsBefore = 3;
constexpr int64_t kStepsAfter = 3;
// As between layouts that were never interrupted (equivalence_test.cc).
constexpr double kReshardTolerance = 2e-5;

// One layout of each mesh and ZeRO stage; micro-batches do not shape the state.
std::vector<Layout> Meshes() {
  std::vector<Layout> meshes;
  for (const Layout& layout : SmallLayouts()) {
    if (layout.num_microbatches == 1) meshes.push_back(layout);
  }
  return meshes;
}

// Trains under `layout`, then saves and commits into `directory`.
absl::StatusOr<Tensors> TrainAndSave(const JobSpec& job, const Layout& layout,
                                     const std::string& directory) {
  const CheckpointInfo info = {
      .step = kStepsBefore,
      .generation = Generation{1},
      .seed = job.training.seed,
      .samples_consumed = kStepsBefore * job.training.global_batch,
      .layout = layout};
  InProcessHub hub;
  std::mutex mutex;
  Tensors tensors;
  std::vector<std::string> parts;
  RETURN_IF_ERROR(RunRanks(
      job, layout, [&] { return hub.NewFactory(); },
      [&](Rank rank, Trainer& trainer) -> absl::Status {
        for (int64_t i = 0; i < kStepsBefore; ++i) {
          RETURN_IF_ERROR(trainer.RunStep({}).status());
        }
        ASSIGN_OR_RETURN(const std::vector<StatePiece> pieces,
                         trainer.ReadState());
        ASSIGN_OR_RETURN(std::string part,
                         WriteCheckpointPart(*PosixFileSystem(), directory,
                                             info, rank, pieces));
        std::lock_guard lock(mutex);
        CollectOwned(pieces, &tensors);
        parts.push_back(std::move(part));
        return absl::OkStatus();
      }));
  RETURN_IF_ERROR(
      CommitCheckpoint(*PosixFileSystem(), directory, info, parts, 1));
  return tensors;
}

struct Continued {
  Tensors loaded;  // Before the next step.
  std::vector<double> losses;
};

// Loads the checkpoint under `layout` and goes on.
absl::StatusOr<Continued> LoadAndTrain(const JobSpec& job, const Layout& layout,
                                       const std::string& path) {
  InProcessHub hub;
  std::mutex mutex;
  Continued result;
  RETURN_IF_ERROR(RunRanks(
      job, layout, [&] { return hub.NewFactory(); },
      [&](Rank rank, Trainer& trainer) -> absl::Status {
        ASSIGN_OR_RETURN(const std::vector<StatePiece> pieces,
                         trainer.StateToFill());
        ASSIGN_OR_RETURN(const CheckpointInfo info,
                         LoadCheckpoint(*PosixFileSystem(), path, pieces));
        {
          std::lock_guard lock(mutex);
          CollectOwned(pieces, &result.loaded);
        }
        RETURN_IF_ERROR(trainer.FinishFilling(info.step));
        for (int64_t i = 0; i < kStepsAfter; ++i) {
          ASSIGN_OR_RETURN(const auto step, trainer.RunStep({}));
          if (rank == Rank{0}) result.losses.push_back(step->loss);
        }
        return absl::OkStatus();
      }));
  return result;
}

// Goal: a checkpoint of any layout is the same training under every other one:
// equal tensors, to the bit, and the losses that an uninterrupted run has next.
// Method: every pair of meshes of up to four ranks, on a real file system.
TEST(ReshardTest, EveryLayoutContinuesEveryOther) {
  const JobSpec job = SmallJob();
  const JobResult uninterrupted =
      RunJob(job, Layout{.micro_batch = 8}, kStepsBefore + kStepsAfter);
  ASSERT_TRUE(uninterrupted.status.ok()) << uninterrupted.status;
  const std::string root =
      testing::TempDir() + "/reshard_test." + std::to_string(getpid());
  for (const Layout& from : Meshes()) {
    SCOPED_TRACE("saved under " + LayoutToString(from));
    std::filesystem::remove_all(root);
    const absl::StatusOr<Tensors> saved = TrainAndSave(job, from, root);
    ASSERT_TRUE(saved.ok()) << saved.status();
    const absl::StatusOr<CheckpointEntry> entry =
        FindNewestCheckpoint(*PosixFileSystem(), root, nullptr);
    ASSERT_TRUE(entry.ok()) << entry.status();
    for (const Layout& to : Meshes()) {
      SCOPED_TRACE("loaded under " + LayoutToString(to));
      const absl::StatusOr<Continued> result =
          LoadAndTrain(job, to, entry->path);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(result->loaded == *saved) << "tensors differ";
      ASSERT_EQ(result->losses.size(), static_cast<size_t>(kStepsAfter));
      for (int64_t i = 0; i < kStepsAfter; ++i) {
        const double expected = uninterrupted.losses[kStepsBefore + i];
        EXPECT_LE(std::abs(result->losses[i] - expected),
                  kReshardTolerance * expected)
            << "step " << kStepsBefore + i + 1;
      }
    }
  }
  std::filesystem::remove_all(root);
}

// Goal: parameters of other families, cut over the tensor axis or whole on all
// its ranks, are restored by name as well, and so is a tied embedding that two
// stages hold. Method: each family from two layouts under two others; equal to
// the bit.
TEST(ReshardTest, FamiliesContinueUnderOtherLayouts) {
  const std::string root =
      testing::TempDir() + "/reshard_families." + std::to_string(getpid());
  for (const auto& [family, job] : JobsOfFamilies()) {
    SCOPED_TRACE(family);
    for (const Layout& from :
         {Layout{.data = 2, .tensor = 2, .micro_batch = 4, .zero = 3},
          Layout{.pipeline = 2, .data = 2, .micro_batch = 4, .zero = 1}}) {
      std::filesystem::remove_all(root);
      const absl::StatusOr<Tensors> saved = TrainAndSave(job, from, root);
      ASSERT_TRUE(saved.ok()) << saved.status();
      const absl::StatusOr<CheckpointEntry> entry =
          FindNewestCheckpoint(*PosixFileSystem(), root, nullptr, &job.model);
      ASSERT_TRUE(entry.ok()) << entry.status();
      for (const Layout& to :
           {Layout{.micro_batch = 8},
            Layout{.pipeline = 2, .tensor = 2, .micro_batch = 8}}) {
        const absl::StatusOr<Continued> result =
            LoadAndTrain(job, to, entry->path);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_TRUE(result->loaded == *saved) << LayoutToString(to);
      }
    }
  }
  std::filesystem::remove_all(root);
}

// Goal: moments in fewer bits go through the same files. From the same format
// training continues exactly, under any ZeRO stage; another format goes on near
// there. Method: save under one stage and format, load under others; the losses
// beside those of an uninterrupted run. Moments that are rounded once change
// the next losses by less than a thousandth (measured: below 1e-4).
TEST(ReshardTest, SmallMomentsContinueExactly) {
  const JobSpec job = SmallJob();
  const std::string root =
      testing::TempDir() + "/reshard_moments." + std::to_string(getpid());
  for (const MomentDescriptor& format : MomentFormats()) {
    const Layout from = {
        .data = 2, .micro_batch = 4, .zero = 2, .moments = format.format};
    SCOPED_TRACE("saved under " + LayoutToString(from));
    const JobResult uninterrupted =
        RunJob(job, from, kStepsBefore + kStepsAfter);
    ASSERT_TRUE(uninterrupted.status.ok()) << uninterrupted.status;
    std::filesystem::remove_all(root);
    const absl::StatusOr<Tensors> saved = TrainAndSave(job, from, root);
    ASSERT_TRUE(saved.ok()) << saved.status();
    const absl::StatusOr<CheckpointEntry> entry =
        FindNewestCheckpoint(*PosixFileSystem(), root, nullptr);
    ASSERT_TRUE(entry.ok()) << entry.status();
    for (const MomentDescriptor& other : MomentFormats()) {
      for (const int32_t zero : {0, 3}) {
        Layout to = from;
        to.zero = zero;
        to.moments = other.format;
        SCOPED_TRACE("loaded under " + LayoutToString(to));
        const absl::StatusOr<Continued> result =
            LoadAndTrain(job, to, entry->path);
        ASSERT_TRUE(result.ok()) << result.status();
        ASSERT_EQ(result->losses.size(), static_cast<size_t>(kStepsAfter));
        for (int64_t i = 0; i < kStepsAfter; ++i) {
          const double expected = uninterrupted.losses[kStepsBefore + i];
          if (format.format == other.format) {
            EXPECT_EQ(result->losses[i], expected) << i;
          } else {
            EXPECT_NEAR(result->losses[i], expected, 1e-3 * expected) << i;
          }
        }
      }
    }
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace millrace
