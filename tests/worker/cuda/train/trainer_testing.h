// Trainers on a GPU and on CPU cores that tests run beside each other, and
// their state as vectors.

#ifndef MILLRACE_TESTS_WORKER_CUDA_TRAIN_TRAINER_TESTING_H_
#define MILLRACE_TESTS_WORKER_CUDA_TRAIN_TRAINER_TESTING_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/trainer.h"
#include "worker/cuda/train/trainer.h"

namespace millrace {

class CudaTrainerTest : public testing::TestWithParam<Precision> {};

inline Layout LayoutOf(Precision precision) {
  return {.micro_batch = 2, .num_microbatches = 4, .precision = precision};
}

// SyntheticBatches, cut into documents of `document` tokens; zero: none.
class CutBatches : public BatchSource {
 public:
  CutBatches(const JobSpec& job, int64_t document)
      : batches_(job.model.vocab_size, job.model.sequence_length),
        length_(job.model.sequence_length),
        document_(document) {}

  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    if (request.step == fails_at) {
      return absl::DataLossError("tokens.bin: token 17 is cut off");
    }
    RETURN_IF_ERROR(batches_.Fill(request, out));
    for (int64_t i = 0; i < request.num_sequences * length_; ++i) {
      const int64_t t = i % length_;
      out.document_starts[i] =
          static_cast<int32_t>(document_ == 0 ? 0 : t / document_ * document_);
    }
    return absl::OkStatus();
  }
  int64_t fails_at = -1;

 private:
  SyntheticBatches batches_;
  const int64_t length_;
  const int64_t document_;
};

inline std::unique_ptr<Trainer> OnGpu(const JobSpec& job, Precision precision,
                                      BatchSource& batches,
                                      const CudaTrainerSettings& settings = {},
                                      int64_t staged_bytes = 0) {
  auto trainer = CreateCudaTrainer({.job = job,
                                    .layout = LayoutOf(precision),
                                    .rank = Rank{0},
                                    .batches = &batches,
                                    .staged_bytes = staged_bytes},
                                   0, nullptr, settings);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return trainer.ok() ? *std::move(trainer) : nullptr;
}

inline std::unique_ptr<Trainer> OnCpu(const JobSpec& job,
                                      BatchSource& batches) {
  InProcessHub hub;
  const auto factory = hub.NewFactory();
  auto trainer = CreateCpuTrainer({.job = job,
                                   .layout = LayoutOf(Precision::kFloat32),
                                   .rank = Rank{0},
                                   .num_threads = 4,
                                   .communicators = factory.get(),
                                   .batches = &batches});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return *std::move(trainer);
}

// Results of the next steps, all of them, in order.
inline std::vector<StepResult> Train(Trainer& trainer, int64_t num_steps,
                                     bool measure = false) {
  std::vector<StepResult> results;
  auto take = [&](absl::StatusOr<std::optional<StepResult>> result) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok() && result->has_value()) results.push_back(**result);
  };
  for (int64_t i = 0; i < num_steps; ++i) {
    take(trainer.RunStep({.measure = measure}));
  }
  take(trainer.LastResult());
  EXPECT_EQ(results.size(), static_cast<size_t>(num_steps));
  return results;
}

inline std::vector<std::vector<float>> CopyState(Trainer& trainer) {
  const auto pieces = trainer.ReadState();
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  std::vector<std::vector<float>> copy;
  for (const StatePiece& piece : *pieces) {
    copy.emplace_back(piece.data, piece.data + (piece.end - piece.begin));
  }
  return copy;
}

inline void LoadState(Trainer& trainer,
                      const std::vector<std::vector<float>>& state,
                      int64_t completed_steps) {
  auto pieces = trainer.StateToFill();
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  ASSERT_EQ(pieces->size(), state.size());
  for (size_t i = 0; i < state.size(); ++i) {
    std::copy(state[i].begin(), state[i].end(), (*pieces)[i].data);
  }
  ASSERT_EQ(trainer.FinishFilling(completed_steps), absl::OkStatus());
}

inline bool BitEqual(const std::vector<std::vector<float>>& a,
                     const std::vector<std::vector<float>>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(),
                    [](const auto& x, const auto& y) {
                      return x.size() == y.size() &&
                             std::memcmp(x.data(), y.data(),
                                         x.size() * sizeof(float)) == 0;
                    });
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_CUDA_TRAIN_TRAINER_TESTING_H_
