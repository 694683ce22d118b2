#include "worker/cuda/train/trainer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/simulate/timeline.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/kernels/gpu_testing.h"
#include "tests/worker/cuda/train/gpu_job.h"
#include "tests/worker/cuda/train/trainer_testing.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/trainer.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// The weights of one rank in bf16 and in full; those of norms stay fp32.
class RoundedWeights {
 public:
  explicit RoundedWeights(Trainer& trainer) {
    const auto pieces = trainer.ReadState();
    EXPECT_TRUE(pieces.ok()) << pieces.status();
    for (const StatePiece& piece : *pieces) {
      if (piece.tensor.ends_with(".exp_avg")) continue;
      if (piece.tensor.ends_with(".exp_avg_sq")) continue;
      if (piece.tensor.ends_with("norm.weight")) continue;
      pieces_.push_back(piece);
      master_.emplace_back(piece.data, piece.data + (piece.end - piece.begin));
      rounded_.push_back(master_.back());
    }
  }
  // Leaves the rounded ones with the trainer, for a step to compute with.
  void Round() {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      for (size_t k = 0; k < master_[i].size(); ++k) {
        rounded_[i][k] = FromBf16(ToBf16(master_[i][k]));
        pieces_[i].data[k] = rounded_[i][k];
      }
    }
  }
  // Adds to the full ones what the step has added to the rounded ones.
  void Keep() {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      for (size_t k = 0; k < master_[i].size(); ++k) {
        master_[i][k] += pieces_[i].data[k] - rounded_[i][k];
      }
    }
  }

 private:
  std::vector<StatePiece> pieces_;
  std::vector<std::vector<float>> master_, rounded_;
};

// The results of the CPU's kCompared steps, with validation before and after.
// For bf16 it computes with rounded weights.
struct LearntOnCpu {
  double validation_before;
  std::vector<StepResult> results;
  double validation_after;
};
constexpr int64_t kCompared = 20;
LearntOnCpu LearnOnCpu(const JobSpec& job, Precision precision,
                       int64_t document) {
  CutBatches batches(job, document);
  auto cpu = OnCpu(job, batches);
  RoundedWeights weights(*cpu);
  const bool rounds = precision == Precision::kBfloat16;
  LearntOnCpu expected;
  if (rounds) weights.Round();
  expected.validation_before = *cpu->RunValidation(2);
  for (int64_t i = 0; i < kCompared; ++i) {
    if (rounds) weights.Round();
    expected.results.push_back(Train(*cpu, 1).back());
    if (rounds) weights.Keep();
  }
  if (rounds) weights.Round();
  expected.validation_after = *cpu->RunValidation(2);
  return expected;
}

struct Case {
  Precision precision;
  int64_t document;  // Tokens; 0: whole sequences.
  double tolerance;
};

class CudaTrainerCases : public testing::TestWithParam<Case> {};

// Goal: training on a GPU learns what training on a CPU does, from the same
// start, in both precisions, with whole sequences, few documents (offsets) and
// more than there is room for offsets of. Method: losses of 20 steps,
// validation before and after. The tolerances allow for sums in another order
// (seen: 1e-7) and for activations rounded to bf16 (seen: 3e-4).
TEST_P(CudaTrainerCases, LearnsWhatTheCpuDoes) {
  const Case& c = GetParam();
  const JobSpec job = GpuJob();
  const LearntOnCpu expected = LearnOnCpu(job, c.precision, c.document);
  CutBatches batches(job, c.document);
  auto gpu = OnGpu(job, c.precision, batches);
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->allocated_bytes(), gpu->planned_bytes());
  EXPECT_GT(gpu->device_bytes(), gpu->allocated_bytes());

  double worst = 0;
  auto expect_like = [&](double actual, double wanted, std::string what) {
    EXPECT_NEAR(actual, wanted, c.tolerance) << what;
    worst = std::max(worst, std::fabs(actual - wanted));
  };
  expect_like(*gpu->RunValidation(2), expected.validation_before,
              "validation before");
  const std::vector<StepResult> results = Train(*gpu, kCompared);
  for (size_t i = 0; i < results.size(); ++i) {
    const StepResult& wanted = expected.results[i];
    EXPECT_EQ(results[i].step, wanted.step);
    EXPECT_EQ(results[i].learning_rate, wanted.learning_rate);
    EXPECT_FALSE(results[i].timeline.has_value());
    EXPECT_TRUE(results[i].finite);
    EXPECT_GT(results[i].step_time_s, 0);
    EXPECT_NEAR(results[i].gradient_norm, wanted.gradient_norm,
                0.02 * wanted.gradient_norm);
    expect_like(results[i].loss, wanted.loss, absl::StrCat("step ", i + 1));
  }
  EXPECT_LT(results.back().loss, results.front().loss - 0.3);
  expect_like(*gpu->RunValidation(2), expected.validation_after,
              "validation after");
  std::printf("largest difference of a loss: %.2g\n", worst);
}

INSTANTIATE_TEST_SUITE_P(All, CudaTrainerCases,
                         testing::Values(Case{Precision::kFloat32, 0, 1e-5},
                                         Case{Precision::kFloat32, 100, 1e-5},
                                         Case{Precision::kFloat32, 10, 1e-5},
                                         Case{Precision::kBfloat16, 0, 1e-3},
                                         Case{Precision::kBfloat16, 100, 1e-3},
                                         Case{Precision::kBfloat16, 10, 1e-3}),
                         [](const auto& info) {
                           return absl::StrCat(
                               PrecisionName(info.param.precision),
                               "_documents_", info.param.document);
                         });

INSTANTIATE_TEST_SUITE_P(Both, CudaTrainerTest,
                         testing::Values(Precision::kFloat32,
                                         Precision::kBfloat16),
                         [](const auto& info) {
                           return std::string(PrecisionName(info.param));
                         });

// Goal: training starts from the CPU's initial weights. Method: all pieces,
// matched by tensor; rounding may differ by the last bit of one number in 10^8.
TEST_P(CudaTrainerTest, StartsFromTheSameWeights) {
  const JobSpec job = GpuJob();
  CutBatches batches(job, 0);
  auto gpu = OnGpu(job, GetParam(), batches);
  ASSERT_NE(gpu, nullptr);
  auto cpu = OnCpu(job, batches);
  const auto actual = *gpu->ReadState();
  const auto expected = *cpu->ReadState();
  ASSERT_EQ(actual.size(), expected.size());
  int64_t num_unlike = 0;
  for (const StatePiece& piece : actual) {
    const auto match = std::find_if(
        expected.begin(), expected.end(),
        [&](const StatePiece& e) { return e.tensor == piece.tensor; });
    ASSERT_NE(match, expected.end()) << piece.tensor;
    ASSERT_EQ(match->end - match->begin, piece.end - piece.begin);
    for (int64_t i = 0; i < piece.end - piece.begin; ++i) {
      num_unlike += piece.data[i] != match->data[i];
      ASSERT_NEAR(piece.data[i], match->data[i],
                  1e-7 * std::fabs(match->data[i]))
          << piece.tensor << " " << i;
    }
  }
  EXPECT_LE(num_unlike, 10);
}

// Goal: in deterministic mode equal runs give equal bits, from graphs as from
// the streams, measured or not. Method: state and losses after eight steps.
TEST_P(CudaTrainerTest, GraphsAndStreamsGiveEqualBits) {
  JobSpec job = GpuJob();
  job.training.deterministic = true;
  CutBatches batches(job, 100);
  std::vector<std::vector<float>> state;
  std::vector<double> losses;
  for (const bool use_graphs : {true, false, true}) {
    for (const bool measure : {false, true}) {
      auto trainer =
          OnGpu(job, GetParam(), batches, {.use_graphs = use_graphs});
      ASSERT_NE(trainer, nullptr);
      std::vector<double> these;
      for (const StepResult& result : Train(*trainer, 8, measure)) {
        these.push_back(result.loss);
      }
      const auto this_state = CopyState(*trainer);
      if (losses.empty()) {
        losses = these;
        state = this_state;
      }
      EXPECT_EQ(these, losses) << "graphs " << use_graphs;
      EXPECT_TRUE(BitEqual(this_state, state)) << "graphs " << use_graphs;
    }
  }
}

// Goal: a state read and loaded elsewhere goes on as if nothing had happened,
// bit for bit; a validation or a reading in between changes nothing. Method:
// four steps, four more in another trainer, against eight at once.
TEST_P(CudaTrainerTest, GoesOnFromALoadedState) {
  JobSpec job = GpuJob();
  job.training.deterministic = true;
  CutBatches batches(job, 0);
  auto whole = OnGpu(job, GetParam(), batches);
  ASSERT_NE(whole, nullptr);
  Train(*whole, 8);
  const auto expected = CopyState(*whole);
  const double expected_validation = *whole->RunValidation(1);

  auto first = OnGpu(job, GetParam(), batches);
  Train(*first, 2);
  ASSERT_TRUE(first->RunValidation(1).ok());
  Train(*first, 2);
  EXPECT_EQ(first->completed_steps(), 4);
  const auto state = CopyState(*first);
  EXPECT_TRUE(BitEqual(CopyState(*first), state));
  auto second = OnGpu(job, GetParam(), batches);
  Train(*second, 3);  // To be forgotten.
  LoadState(*second, state, 4);
  EXPECT_EQ(second->completed_steps(), 4);
  EXPECT_TRUE(BitEqual(CopyState(*second), state));
  const std::vector<StepResult> results = Train(*second, 4);
  EXPECT_EQ(results.front().step, 5);
  EXPECT_TRUE(BitEqual(CopyState(*second), expected));
  EXPECT_EQ(*second->RunValidation(1), expected_validation);
}

// Goal: results lag by one step, LastResult() catches up, a vote comes back
// with its own step, and results outlast a validation. Method: by hand.
TEST_P(CudaTrainerTest, ResultsLagByOneStep) {
  const JobSpec job = GpuJob();
  CutBatches batches(job, 0);
  auto trainer = OnGpu(job, GetParam(), batches);
  ASSERT_NE(trainer, nullptr);
  EXPECT_FALSE(trainer->LastResult()->has_value());
  EXPECT_FALSE(trainer->RunStep({})->has_value());
  EXPECT_EQ(trainer->completed_steps(), 1);
  const auto first = *trainer->RunStep({.vote_to_stop = true});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->step, 1);
  EXPECT_FALSE(first->stop);
  ASSERT_TRUE(trainer->RunValidation(1).ok());
  const auto second = *trainer->LastResult();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->step, 2);
  EXPECT_TRUE(second->stop);
  EXPECT_FALSE(trainer->LastResult()->has_value());
  EXPECT_FALSE(trainer->RunStep({})->has_value());
  EXPECT_EQ((*trainer->LastResult())->step, 3);
}

// Goal: a measured step's timeline has every instruction, fits into the step
// and says where its time went. Method: three measured steps, the last looked
// at.
TEST_P(CudaTrainerTest, MeasuresStepsOnDemand) {
  const JobSpec job = GpuJob();
  CutBatches batches(job, 0);
  auto trainer = OnGpu(job, GetParam(), batches);
  ASSERT_NE(trainer, nullptr);
  Train(*trainer, 3);
  for (const StepResult& result : Train(*trainer, 3, true)) {
    ASSERT_TRUE(result.timeline.has_value());
    EXPECT_EQ(result.timeline->events.size(),
              trainer->program().instructions.size());
    double end = 0, busy = 0;
    for (const TimelineEvent& event : result.timeline->events) {
      EXPECT_GE(event.start_s, 0);
      end = std::max(end, event.end_s);
      busy += event.end_s - event.start_s;
    }
    EXPECT_LE(end, result.step_time_s * 1.01);
    EXPECT_GT(busy, 0.3 * end);
    const TimeBreakdown parts =
        BreakDown(trainer->program(), *result.timeline, result.step_time_s);
    EXPECT_GT(parts.compute_s, 0.3 * result.step_time_s);
  }
  EXPECT_FALSE(Train(*trainer, 2).back().timeline.has_value());
}

// Goal: steps allocate nothing on the device once all they do has been done.
// Method: free memory before and after.
TEST_P(CudaTrainerTest, StepsAllocateNothing) {
  const JobSpec job = GpuJob();
  CutBatches batches(job, 100);
  auto trainer = OnGpu(job, GetParam(), batches);
  ASSERT_NE(trainer, nullptr);
  Train(*trainer, 4);
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  Train(*trainer, 20);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(before, after);
}

// Goal: a step whose loss is not a number reports it and leaves the state
// alone. Method: poison one weight of the head, compare all before and after.
TEST_P(CudaTrainerTest, NonFiniteStepLeavesStateAlone) {
  const JobSpec job = GpuJob();
  CutBatches batches(job, 0);
  auto trainer = OnGpu(job, GetParam(), batches);
  ASSERT_NE(trainer, nullptr);
  Train(*trainer, 2);
  auto state = CopyState(*trainer);
  const auto pieces = *trainer->ReadState();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].tensor != "lm_head.weight") continue;
    state[i][0] = std::numeric_limits<float>::quiet_NaN();
  }
  LoadState(*trainer, state, 2);
  EXPECT_FALSE(Train(*trainer, 1).back().finite);
  EXPECT_TRUE(BitEqual(CopyState(*trainer), state));
}

// Goal: a bad batch is reported with rank, step and cause, and ends the
// training of this trainer. Method: step 3 fails; it is read ahead while step 2
// runs.
TEST_P(CudaTrainerTest, BatchErrorsComeThrough) {
  const JobSpec job = GpuJob();
  CutBatches batches(job, 0);
  batches.fails_at = 3;
  auto trainer = OnGpu(job, GetParam(), batches);
  ASSERT_NE(trainer, nullptr);
  ASSERT_TRUE(trainer->RunStep({}).ok());
  ASSERT_TRUE(trainer->RunStep({}).ok());
  const absl::Status status = trainer->RunStep({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0, step 3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 17"));
  EXPECT_EQ(trainer->RunStep({}).status(), status);
}

// Goal: Abort() refuses what comes after it, at once. Method: from another
// thread.
TEST_P(CudaTrainerTest, AbortEndsTheTraining) {
  const JobSpec job = GpuJob();
  CutBatches batches(job, 0);
  auto trainer = OnGpu(job, GetParam(), batches);
  ASSERT_NE(trainer, nullptr);
  Train(*trainer, 3);
  std::thread([&] { trainer->Abort(); }).join();
  EXPECT_TRUE(absl::IsAborted(trainer->RunStep({}).status()));
  EXPECT_TRUE(absl::IsAborted(trainer->ReadState().status()));
}

// Goal: a plan that does not fit is refused with the sizes. Method: a model of
// terabytes.
TEST(CudaTrainerRefusalTest, SaysWhatDoesNotFit) {
  JobSpec job = GpuJob();
  job.model.hidden = 65536;
  job.model.ffn_hidden = 262144;
  CutBatches batches(job, 0);
  const auto trainer =
      CreateCudaTrainer({.job = job,
                         .layout = LayoutOf(Precision::kBfloat16),
                         .rank = Rank{0},
                         .batches = &batches},
                        0, nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(trainer.status())) << trainer.status();
  EXPECT_THAT(std::string(trainer.status().message()), HasSubstr("free"));
}

}  // namespace
}  // namespace millrace
