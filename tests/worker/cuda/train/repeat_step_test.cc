// Steps whose loss or gradient is not a number, on one GPU.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/worker/cuda/train/gpu_job.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/trainer.h"
#include "worker/cuda/train/trainer.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using Weights = std::vector<std::vector<float>>;

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kTooLarge = 3e38f;  // Finite, in bf16 as well.
constexpr const char* kUpProjection = "model.layers.1.mlp.up_proj.weight";

// What differs between trainers of the same job.
struct Kind {
  Precision precision = Precision::kFloat32;
  GemmFormat format = GemmFormat::kAsStored;
};

Layout LayoutOfKind(const Kind& kind) {
  Layout layout = {
      .micro_batch = 2, .num_microbatches = 4, .precision = kind.precision};
  layout.gemm_format = kind.format;
  return layout;
}

std::unique_ptr<Trainer> MakeGpuTrainer(
    const JobSpec& job, const Kind& kind, BatchSource& batches,
    const CudaTrainerSettings& settings = {}) {
  auto trainer = CreateCudaTrainer({.job = job,
                                    .layout = LayoutOfKind(kind),
                                    .rank = Rank{0},
                                    .batches = &batches},
                                   0, nullptr, settings);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return trainer.ok() ? *std::move(trainer) : nullptr;
}

// In fp32, but for products in 8 bits.
std::unique_ptr<Trainer> MakeCpuTrainer(const JobSpec& job, Kind kind,
                                        BatchSource& batches) {
  kind.precision = Precision::kFloat32;
  InProcessHub hub;
  const auto factory = hub.NewFactory();
  auto trainer = CreateCpuTrainer({.job = job,
                                   .layout = LayoutOfKind(kind),
                                   .rank = Rank{0},
                                   .num_threads = 2,
                                   .communicators = factory.get(),
                                   .batches = &batches});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return trainer.ok() ? *std::move(trainer) : nullptr;
}

Weights AllState(Trainer& trainer) {
  const auto pieces = trainer.ReadState();
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  Weights copy;
  for (const StatePiece& piece : *pieces) {
    copy.emplace_back(piece.data, piece.data + (piece.end - piece.begin));
  }
  return copy;
}

bool HaveSameBits(const Weights& a, const Weights& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) !=
            0) {
      return false;
    }
  }
  return true;
}

// Overwrites a tensor of the state where the trainer keeps it, on either kind
// of device, and returns what it held. `values`: all elements, a first few, or
// none.
std::vector<float> Overwrite(Trainer& trainer, const std::string& tensor,
                             const std::vector<float>& values) {
  const auto pieces = trainer.StateInPlace();
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  std::vector<float> before;
  for (const StatePiece& piece : *pieces) {
    if (piece.tensor != tensor) continue;
    before.resize(static_cast<size_t>(piece.end - piece.begin));
    EXPECT_EQ(cudaMemcpy(before.data(), piece.data,
                         before.size() * sizeof(float), cudaMemcpyDefault),
              cudaSuccess);
    if (values.empty()) continue;
    EXPECT_EQ(cudaMemcpy(piece.data, values.data(),
                         values.size() * sizeof(float), cudaMemcpyDefault),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  EXPECT_FALSE(before.empty()) << tensor;
  EXPECT_EQ(trainer.TakeChanges(), absl::OkStatus());
  return before;
}

std::vector<float> Fill(Trainer& trainer, const std::string& tensor,
                        float value) {
  const std::vector<float> before = Overwrite(trainer, tensor, {});
  return Overwrite(trainer, tensor, std::vector<float>(before.size(), value));
}

StepResult NextResult(Trainer& trainer, const StepRequest& request = {}) {
  const auto first = trainer.RunStep(request);
  EXPECT_TRUE(first.ok()) << first.status();
  if (first.ok() && first->has_value()) return **first;  // A CPU.
  const auto last = trainer.LastResult();
  EXPECT_TRUE(last.ok() && last->has_value()) << last.status();
  return last.ok() && last->has_value() ? **last : StepResult{};
}

class CudaRepeatTest
    : public testing::TestWithParam<std::tuple<Precision, bool>> {
 protected:
  CudaRepeatTest() { job_.training.deterministic = true; }
  std::unique_ptr<Trainer> Make() {
    return MakeGpuTrainer(job_, {.precision = std::get<0>(GetParam())},
                          batches_, {.use_graphs = std::get<1>(GetParam())});
  }

  JobSpec job_ = GpuJob();
  SyntheticBatches batches_{job_.model.vocab_size, job_.model.sequence_length};
};
INSTANTIATE_TEST_SUITE_P(
    All, CudaRepeatTest,
    testing::Combine(testing::Values(Precision::kFloat32, Precision::kBfloat16),
                     testing::Bool()),
    [](const auto& info) {
      return absl::StrCat(PrecisionName(std::get<0>(info.param)),
                          std::get<1>(info.param) ? "_graphs" : "_streams");
    });

// Goal: a GPU names the op that a CPU names; a bad step and the one that was
// given out after it change nothing; then training goes on like a CPU's.
// Method: weights so large that a product overflows, in one tensor; one element
// that is no number and a vocabulary whose embedding is infinite, where no op
// is to blame. The bad step is found behind the next one and alone. bf16
// differs from the CPU's fp32 by rounding.
TEST_P(CudaRepeatTest, NamesTheOpAndChangesNothing) {
  const double tolerance =
      std::get<0>(GetParam()) == Precision::kFloat32 ? 1e-5 : 2e-2;
  auto cpu = MakeCpuTrainer(job_, {}, batches_);
  auto gpu = Make();
  ASSERT_NE(cpu, nullptr);
  ASSERT_NE(gpu, nullptr);
  int64_t step = 0;
  const auto expect_alike = [&](const StepResult& on_gpu,
                                const StepResult& on_cpu) {
    EXPECT_EQ(on_gpu.step, on_cpu.step);
    EXPECT_TRUE(on_gpu.finite);
    EXPECT_NEAR(on_gpu.loss, on_cpu.loss, tolerance);
    EXPECT_EQ(on_gpu.learning_rate, on_cpu.learning_rate);
  };
  for (; step < 3; ++step) expect_alike(NextResult(*gpu), NextResult(*cpu));
  struct Damage {
    std::string tensor;
    float value;
    bool is_one_element;
  };
  for (const Damage& damage :
       {Damage{kUpProjection, kTooLarge, false},
        Damage{"lm_head.weight", kNoNumber, true},
        Damage{"model.embed_tokens.weight", kInfinite, false}}) {
    for (const bool next_is_under_way : {true, false}) {
      SCOPED_TRACE(absl::StrCat(damage.tensor, next_is_under_way));
      std::string origins[2];
      for (Trainer* const trainer : {cpu.get(), gpu.get()}) {
        const bool is_gpu = trainer == gpu.get();
        const auto right =
            damage.is_one_element
                ? Overwrite(*trainer, damage.tensor, {damage.value})
                : Fill(*trainer, damage.tensor, damage.value);
        const Weights before = AllState(*trainer);
        StepResult bad;
        if (is_gpu && next_is_under_way) {
          EXPECT_FALSE(trainer->RunStep({})->has_value());
          const auto result = trainer->RunStep({.vote_to_stop = true});
          ASSERT_TRUE(result.ok() && result->has_value()) << result.status();
          bad = **result;
        } else {
          bad = NextResult(*trainer);
        }
        EXPECT_FALSE(bad.finite);
        EXPECT_EQ(bad.step, step + 1);
        EXPECT_EQ(trainer->completed_steps(), step + 1);
        const auto again = trainer->RepeatStep({.measure = true});
        ASSERT_TRUE(again.ok()) << again.status();
        EXPECT_FALSE(again->result.finite);
        EXPECT_FALSE(again->result.stop);
        EXPECT_EQ(again->result.step, step + 1);
        EXPECT_EQ(trainer->completed_steps(), step + 1);
        origins[is_gpu] = again->origin;
        EXPECT_TRUE(HaveSameBits(AllState(*trainer), before));
        Overwrite(*trainer, damage.tensor, right);
      }
      EXPECT_EQ(origins[1], origins[0]);
      EXPECT_EQ(origins[1].empty(), !std::isfinite(damage.value));
      ++step;
      for (int i = 0; i < 3; ++i, ++step) {
        expect_alike(NextResult(*gpu), NextResult(*cpu));
      }
    }
  }
}

// Goal: a step that was bad once counts when it is run again, with its batch,
// and leaves the state that it would have left; so do the steps behind it. A
// vote in it is heard. Method: beside a trainer that never sees it, a weight
// that is no number during the first run only. It is found behind the next
// step, measured or not, and alone.
TEST_P(CudaRepeatTest, BadOnceCounts) {
  constexpr int64_t kLastStep = 7;
  auto undisturbed = Make();
  ASSERT_NE(undisturbed, nullptr);
  std::vector<double> losses;
  for (int64_t step = 1; step <= kLastStep; ++step) {
    losses.push_back(NextResult(*undisturbed).loss);
  }
  const Weights expected = AllState(*undisturbed);
  for (const bool next_is_under_way : {true, false}) {
    for (const bool measures : {false, true}) {
      SCOPED_TRACE(absl::StrCat(next_is_under_way, measures));
      const StepRequest request = {.measure = measures};
      auto trainer = Make();
      ASSERT_NE(trainer, nullptr);
      for (int i = 0; i < 3; ++i) NextResult(*trainer);
      const auto right = Overwrite(*trainer, "lm_head.weight", {kNoNumber});
      std::optional<StepResult> bad;
      if (next_is_under_way) {
        EXPECT_FALSE(trainer->RunStep(request)->has_value());
        bad = *trainer->RunStep(request);
      } else {
        bad = NextResult(*trainer, request);
      }
      ASSERT_TRUE(bad.has_value());
      EXPECT_FALSE(bad->finite);
      EXPECT_EQ(trainer->completed_steps(), 4);
      Overwrite(*trainer, "lm_head.weight", right);
      const auto again = trainer->RepeatStep({.vote_to_stop = true});
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_TRUE(again->result.finite);
      EXPECT_TRUE(again->result.stop);
      EXPECT_EQ(again->result.step, 4);
      EXPECT_EQ(again->result.loss, losses[3]);
      EXPECT_EQ(again->origin, "");
      EXPECT_FALSE(trainer->LastResult()->has_value());
      for (int64_t step = 5; step <= kLastStep; ++step) {
        const StepResult result = NextResult(*trainer, request);
        EXPECT_EQ(result.step, step);
        EXPECT_EQ(result.loss, losses[step - 1]);
        EXPECT_FALSE(result.stop);
      }
      EXPECT_TRUE(HaveSameBits(AllState(*trainer), expected));
    }
  }
}

// Goal: a snapshot of a bad step holds the state that it left, and training
// goes on where nobody runs the step again, as after a state was loaded.
// Method: a snapshot while the bad step is under way; the weight is mended; the
// steps behind it must change the weights.
TEST_P(CudaRepeatTest, SkippedStepsHoldNothingUp) {
  auto trainer = Make();
  ASSERT_NE(trainer, nullptr);
  for (int i = 0; i < 3; ++i) NextResult(*trainer);
  const auto right = Overwrite(*trainer, "lm_head.weight", {kNoNumber});
  Weights before = AllState(*trainer);
  ASSERT_TRUE(trainer->RunStep({}).ok());
  const auto snapshot = trainer->TakeSnapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  const auto bad = trainer->RunStep({});
  ASSERT_TRUE(bad.ok() && bad->has_value()) << bad.status();
  EXPECT_FALSE((*bad)->finite);
  while (!*(*snapshot)->IsTaken()) std::this_thread::yield();
  Weights taken;
  for (const StatePiece& piece : (*snapshot)->pieces()) {
    taken.emplace_back(piece.data, piece.data + (piece.end - piece.begin));
  }
  EXPECT_TRUE(HaveSameBits(taken, before));
  const auto expect_steps_that_count = [&](int64_t next_step) {
    before = AllState(*trainer);
    const StepResult result = NextResult(*trainer);
    EXPECT_TRUE(result.finite);
    EXPECT_EQ(result.step, next_step);
    EXPECT_FALSE(HaveSameBits(AllState(*trainer), before));
  };
  Overwrite(*trainer, "lm_head.weight", right);
  expect_steps_that_count(5);
  expect_steps_that_count(6);

  // The result of step 7 is never asked for.
  const Weights good = AllState(*trainer);
  Overwrite(*trainer, "lm_head.weight", {kNoNumber});
  ASSERT_TRUE(trainer->RunStep({}).ok());
  const auto pieces = trainer->StateToFill();
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  for (size_t i = 0; i < pieces->size(); ++i) {
    std::copy(good[i].begin(), good[i].end(), (*pieces)[i].data);
  }
  ASSERT_EQ(trainer->FinishFilling(6), absl::OkStatus());
  expect_steps_that_count(7);
}

// Goal: with 8-bit products, a GPU names the op and the largest copy that a CPU
// names. Method: weights that overflow a product, after which infinities and
// NaNs depend on the order of sums; and infinite ones.
TEST(CudaRepeatFloat8Test, NamesTheLargestCopy) {
  for (const char* precision : {"fp8", "fp8_blockwise"}) {
    JobSpec job = GpuJob();
    job.training.precision = precision;
    SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
    const Kind kind = {.precision = Precision::kBfloat16,
                       .format = GemmFormatOf(precision)};
    auto cpu = MakeCpuTrainer(job, kind, batches);
    auto gpu = MakeGpuTrainer(job, kind, batches);
    ASSERT_NE(cpu, nullptr);
    ASSERT_NE(gpu, nullptr);
    for (const float value : {kTooLarge, kInfinite}) {
      SCOPED_TRACE(absl::StrCat(precision, " ", value));
      CheckedStep checked[2];
      for (Trainer* const trainer : {cpu.get(), gpu.get()}) {
        const auto right = Fill(*trainer, kUpProjection, value);
        EXPECT_FALSE(NextResult(*trainer).finite);
        const auto again = trainer->RepeatStep({});
        ASSERT_TRUE(again.ok()) << again.status();
        EXPECT_FALSE(again->result.finite);
        checked[trainer == gpu.get()] = *again;
        Overwrite(*trainer, kUpProjection, right);
      }
      EXPECT_EQ(checked[1].origin, checked[0].origin);
      EXPECT_EQ(checked[1].origin.empty(), std::isinf(value));
      EXPECT_GE(checked[1].largest_amax, 0.99f * value);
      EXPECT_THAT(checked[1].largest_in, HasSubstr("layers.1/"));
      if (std::isfinite(value)) continue;
      EXPECT_EQ(checked[1].largest_in, checked[0].largest_in);
    }
  }
}

}  // namespace
}  // namespace millrace
