// Copies and hashes of the state of a trainer on a GPU while it trains.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/cuda/train/gpu_job.h"
#include "tests/worker/cuda/train/trainer_testing.h"
#include "worker/cuda/train/trainer.h"

namespace millrace {
namespace {

std::vector<std::vector<float>> WaitForSnapshot(const StateSnapshot& snapshot) {
  while (!*snapshot.IsTaken()) std::this_thread::yield();
  std::vector<std::vector<float>> copy;
  for (const StatePiece& piece : snapshot.pieces()) {
    copy.emplace_back(piece.data, piece.data + (piece.end - piece.begin));
  }
  return copy;
}

// Its state has gigabytes, whose download takes longer than a step in bf16.
JobSpec LargeStateJob(int32_t num_heads) {
  JobSpec job = GpuJob();
  job.model.vocab_size = 65536;
  job.model.hidden = 64 * num_heads;
  job.model.num_heads = num_heads;
  return job;
}

// Goal: steps that follow a snapshot change nothing before it is copied.
// Method: a state of gigabytes, whose copy takes longer than steps do, in
// pinned memory; again in the same memory.
TEST_P(CudaTrainerTest, StepsWaitForSnapshots) {
  const JobSpec job = LargeStateJob(/*num_heads=*/16);
  CutBatches batches(job, 0);
  auto trainer = OnGpu(job, GetParam(), batches);
  ASSERT_NE(trainer, nullptr);
  for (int i = 0; i < 2; ++i) {
    Train(*trainer, 3);  // The graph is there.
    const auto state = CopyState(*trainer);
    const auto snapshot = trainer->TakeSnapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_FALSE(*(*snapshot)->IsTaken());
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE(trainer->RunStep({}).ok());
    }
    EXPECT_TRUE(BitEqual(WaitForSnapshot(**snapshot), state));
    ASSERT_TRUE(trainer->LastResult().ok());
    EXPECT_FALSE(BitEqual(CopyState(*trainer), state));
  }
}

// Goal: a snapshot that is staged in part or as a whole holds the state of its
// step, and the step after it does not wait for the download of what is staged.
// Method: a state that is read in two parts (PartOfBuckets); nothing, what ends
// inside a tensor, and all of it staged; the times of the steps after it.
TEST_P(CudaTrainerTest, StepsWaitOnlyForWhatIsNotStaged) {
  const JobSpec job = LargeStateJob(/*num_heads=*/48);
  std::vector<double> after_s;
  for (const int64_t staged_bytes :
       {int64_t{0}, int64_t{3'000'000'004}, int64_t{6} << 30}) {
    CutBatches batches(job, 0);
    auto trainer = OnGpu(job, GetParam(), batches, {}, staged_bytes);
    ASSERT_NE(trainer, nullptr);
    Train(*trainer, 3);  // The graph is there.
    const auto state = CopyState(*trainer);
    const auto snapshot = trainer->TakeSnapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    after_s.push_back(Train(*trainer, 1).back().step_time_s);
    Train(*trainer, 2);
    EXPECT_TRUE(BitEqual(WaitForSnapshot(**snapshot), state));
    EXPECT_FALSE(BitEqual(CopyState(*trainer), state));
    std::printf("%ld bytes staged: %.1f ms for the next step\n", staged_bytes,
                1e3 * after_s.back());
  }
  if (GetParam() != Precision::kBfloat16) return;
  EXPECT_LT(after_s[1], after_s[0]);
  EXPECT_LT(after_s[2], after_s[1]);
}

// Goal: a snapshot is of the newest step that the device was given, done or
// not, and snapshots of steps in a row do not overwrite each other's staged
// parts. Method: beside a trainer that is waited for; all are given to the
// device before one is looked at.
TEST_P(CudaTrainerTest, SnapshotsAreOfTheNewestStep) {
  JobSpec job = GpuJob();
  job.training.deterministic = true;
  for (const int64_t staged_bytes : {int64_t{0}, int64_t{6} << 20}) {
    CutBatches batches(job, 0), same_batches(job, 0);
    auto trainer = OnGpu(job, GetParam(), batches, {}, staged_bytes);
    auto waited_for = OnGpu(job, GetParam(), same_batches);
    ASSERT_NE(trainer, nullptr);
    ASSERT_NE(waited_for, nullptr);
    std::vector<std::shared_ptr<const StateSnapshot>> snapshots;
    for (int step = 0; step < 5; ++step) {
      ASSERT_TRUE(trainer->RunStep({}).ok());
      snapshots.push_back(*trainer->TakeSnapshot());
    }
    ASSERT_TRUE(trainer->RunStep({}).ok());
    for (const auto& snapshot : snapshots) {
      Train(*waited_for, 1);
      EXPECT_TRUE(BitEqual(WaitForSnapshot(*snapshot), CopyState(*waited_for)));
    }
  }
}

// Goal: a hash of replicas is that of the step after which it was begun,
// whatever the device was given since; equal states have equal hashes, loaded
// ones too, and one bit makes another. Method: beside a trainer that is waited
// for; moments of all formats.
TEST_P(CudaTrainerTest, HashesTheStateOfItsStep) {
  JobSpec job = GpuJob();
  job.training.deterministic = true;
  CutBatches batches(job, 0);
  for (const MomentFormat moments :
       {MomentFormat::kFloat32, MomentFormat::kBfloat16,
        MomentFormat::kBlocks8}) {
    Layout layout = LayoutOf(GetParam());
    layout.moments = moments;
    std::unique_ptr<Trainer> trainers[2];
    for (auto& trainer : trainers) {
      auto made = CreateCudaTrainer(
          {.job = job, .layout = layout, .rank = Rank{0}, .batches = &batches},
          0, nullptr);
      ASSERT_TRUE(made.ok()) << made.status();
      trainer = *std::move(made);
    }
    auto& [running, waiting] = trainers;
    const auto hash_now = [](Trainer& trainer) {
      EXPECT_TRUE(*trainer.BeginReplicaHash());
      return *trainer.FinishReplicaHash();
    };
    Train(*waiting, 3);
    const uint64_t expected = hash_now(*waiting);
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(running->RunStep({}).ok());
    }
    ASSERT_TRUE(*running->BeginReplicaHash());
    ASSERT_TRUE(running->RunStep({}).ok());
    EXPECT_EQ(*running->FinishReplicaHash(), expected);
    EXPECT_NE(hash_now(*running), expected);

    Train(*waiting, 1);
    LoadState(*running, CopyState(*waiting), 4);
    EXPECT_EQ(hash_now(*running), hash_now(*waiting));
    const auto pieces = *running->StateInPlace();
    const StatePiece& piece = pieces[pieces.size() / 2];
    auto* const word = reinterpret_cast<uint32_t*>(piece.data);
    uint32_t value;
    ASSERT_EQ(cudaMemcpy(&value, word, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    value ^= 1u << 7;
    ASSERT_EQ(cudaMemcpy(word, &value, 4, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_NE(hash_now(*running), hash_now(*waiting));
  }
}

}  // namespace
}  // namespace millrace
