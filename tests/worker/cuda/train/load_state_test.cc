// A trainer on a GPU that gets its state from files.

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fault/checkpoint.h"
#include "fault/faulty_file_system.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/worker/cuda/train/gpu_job.h"
#include "worker/cuda/train/trainer.h"

namespace millrace {
namespace {

JobSpec LoadedJob() {
  JobSpec job = GpuJob();
  job.training.deterministic = true;
  return job;
}

class CudaLoadTest : public testing::TestWithParam<Precision> {
 protected:
  absl::StatusOr<std::unique_ptr<Trainer>> Make(
      std::optional<StateLoader> loader) {
    return CreateCudaTrainer({.job = job_,
                              .layout = layout_,
                              .rank = Rank{0},
                              .batches = &batches_,
                              .loader = std::move(loader)},
                             0, nullptr);
  }

  static void RunSteps(Trainer& trainer, int num_steps) {
    for (int i = 0; i < num_steps; ++i) ASSERT_TRUE(trainer.RunStep({}).ok());
    ASSERT_TRUE(trainer.LastResult().ok());
  }

  static void ExpectSameState(Trainer& a, Trainer& b) {
    const std::vector<StatePiece> of_a = *a.ReadState();
    const std::vector<StatePiece> of_b = *b.ReadState();
    ASSERT_EQ(of_a.size(), of_b.size());
    for (size_t i = 0; i < of_a.size(); ++i) {
      const auto count = static_cast<size_t>(of_a[i].end - of_a[i].begin);
      EXPECT_EQ(std::memcmp(of_a[i].data, of_b[i].data, count * sizeof(float)),
                0)
          << of_a[i].tensor;
    }
  }

  // The folder of a checkpoint of the trainer's state.
  std::string Save(Trainer& trainer, int64_t step) {
    const CheckpointInfo info = {.step = step, .layout = layout_};
    const auto entry = WriteCheckpointPart(files_, "saved", info, Rank{0},
                                           *trainer.ReadState());
    EXPECT_TRUE(CommitCheckpoint(files_, "saved", info, {*entry}, 1).ok());
    return ListCheckpoints(files_, "saved")->front().path;
  }

  const JobSpec job_ = LoadedJob();
  const Layout layout_ = {
      .micro_batch = 2, .num_microbatches = 4, .precision = GetParam()};
  SyntheticBatches batches_{job_.model.vocab_size, job_.model.sequence_length};
  FaultyFileSystem files_;
};

// Goal: a state that is loaded to the device, while the trainer is made or
// later, is the one that was saved, and training goes on from it bit by bit.
// Method: a checkpoint in memory, loaded into two other trainers.
TEST_P(CudaLoadTest, LoadsFilesToTheDevice) {
  auto first = Make(std::nullopt);
  ASSERT_TRUE(first.ok()) << first.status();
  RunSteps(**first, 3);
  const std::string path = Save(**first, 3);
  RunSteps(**first, 2);

  const auto load = [&](const LoadableState& state) -> absl::StatusOr<int64_t> {
    EXPECT_NE(state.target, nullptr);
    const auto info =
        LoadCheckpoint(files_, path, state.pieces, state.target.get());
    if (!info.ok()) return info.status();
    return info->step;
  };
  auto second = Make(StateLoader{.load = load, .end = [] {}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->completed_steps(), 3);
  RunSteps(**second, 2);
  ExpectSameState(**second, **first);

  auto third = Make(std::nullopt);
  ASSERT_TRUE(third.ok()) << third.status();
  {
    const LoadableState state = *(*third)->StateToLoad();
    ASSERT_EQ(*load(state), 3);
  }
  ASSERT_TRUE((*third)->FinishFilling(3).ok());
  RunSteps(**third, 2);
  ExpectSameState(**third, **first);
}

// Goal: no trainer comes of a state that cannot be loaded, and the next one is
// as any other. Method: a load that writes and then fails.
TEST_P(CudaLoadTest, SaysWhyAStateIsMissing) {
  auto first = Make(std::nullopt);
  ASSERT_TRUE(first.ok()) << first.status();
  RunSteps(**first, 1);
  const std::string path = Save(**first, 1);
  bool ended = false;
  const auto failed = Make(StateLoader{
      .load = [&](const LoadableState& state) -> absl::StatusOr<int64_t> {
        EXPECT_TRUE(
            LoadCheckpoint(files_, path, state.pieces, state.target.get())
                .ok());
        return absl::DataLossError("damaged");
      },
      .end = [&] { ended = true; }});
  EXPECT_TRUE(absl::IsDataLoss(failed.status())) << failed.status();
  EXPECT_TRUE(ended);
  auto again = Make(std::nullopt);
  ASSERT_TRUE(again.ok()) << again.status();
  RunSteps(**again, 1);
  ExpectSameState(**again, **first);
}

INSTANTIATE_TEST_SUITE_P(Precisions, CudaLoadTest,
                         testing::Values(Precision::kFloat32,
                                         Precision::kBfloat16));

}  // namespace
}  // namespace millrace
