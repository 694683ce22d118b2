// Steps whose loss or gradient is not a number, of several ranks. Needs two
// GPUs.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "fault/bad_steps.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/program/copy_engines.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/worker/cuda/rank_processes.h"
#include "tests/worker/cuda/train/gpu_job.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/cuda/train/trainer.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int32_t kRanks = 2;

struct State {
  std::vector<std::vector<float>> tensors;
};
absl::StatusOr<State> StateOf(Trainer& trainer) {
  ASSIGN_OR_RETURN(const std::vector<StatePiece> pieces, trainer.ReadState());
  State state;
  for (const StatePiece& piece : pieces) {
    if (!piece.is_owner) continue;
    state.tensors.emplace_back(piece.data,
                               piece.data + (piece.end - piece.begin));
  }
  return state;
}

// Weights of one layer, where a rank holds some of them.
struct HeldWeights {
  float* data;  // On the device.
  std::vector<float> values;
};

absl::Status Write(Trainer& trainer, const std::vector<HeldWeights>& weights) {
  for (const HeldWeights& held : weights) {
    if (cudaMemcpy(held.data, held.values.data(),
                   held.values.size() * sizeof(float),
                   cudaMemcpyDefault) != cudaSuccess) {
      return absl::InternalError("weights cannot be written");
    }
  }
  if (cudaDeviceSynchronize() != cudaSuccess) {
    return absl::InternalError("weights cannot be written");
  }
  return trainer.TakeChanges();
}

absl::StatusOr<std::vector<HeldWeights>> ReadWeights(Trainer& trainer) {
  ASSIGN_OR_RETURN(const std::vector<StatePiece> pieces,
                   trainer.StateInPlace());
  std::vector<HeldWeights> weights;
  for (const StatePiece& piece : pieces) {
    if (piece.tensor != "model.layers.1.mlp.up_proj.weight") continue;
    HeldWeights held = {.data = piece.data};
    held.values.resize(static_cast<size_t>(piece.end - piece.begin));
    if (cudaMemcpy(held.values.data(), piece.data,
                   held.values.size() * sizeof(float),
                   cudaMemcpyDefault) != cudaSuccess) {
      return absl::InternalError("weights cannot be read");
    }
    weights.push_back(std::move(held));
  }
  return weights;
}

// Replaces them by numbers that overflow a product. Returns those before.
absl::StatusOr<std::vector<HeldWeights>> MakeTooLarge(Trainer& trainer) {
  ASSIGN_OR_RETURN(const std::vector<HeldWeights> before, ReadWeights(trainer));
  std::vector<HeldWeights> large = before;
  for (HeldWeights& held : large) {
    std::fill(held.values.begin(), held.values.end(), 3e38f);
  }
  RETURN_IF_ERROR(Write(trainer, large));
  return before;
}

// Leaves with the store what RepeatStep() named and the losses that it saw.
absl::Status TrainThroughABadStep(const Layout& layout, Rank rank,
                                  RendezvousStore& store) {
  JobSpec job = GpuJob();
  job.training.deterministic = true;
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Trainer> trainer,
      CreateCudaTrainer(
          {.job = job, .layout = layout, .rank = rank, .batches = &batches},
          ToInt(rank), &store));
  for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(trainer->RunStep({}).status());
  RETURN_IF_ERROR(trainer->LastResult().status());
  std::string losses;
  for (const bool passes : {false, true}) {
    const int64_t bad_step = trainer->completed_steps() + 1;
    ASSIGN_OR_RETURN(const std::vector<HeldWeights> right,
                     MakeTooLarge(*trainer));
    ASSIGN_OR_RETURN(const State before, StateOf(*trainer));
    std::optional<StepResult> bad;
    for (int i = 0; i < 2; ++i) {
      ASSIGN_OR_RETURN(bad, trainer->RunStep({}));
    }
    if (!bad.has_value() || bad->finite || bad->step != bad_step ||
        trainer->completed_steps() != bad_step) {
      return absl::InternalError("no bad step was taken back");
    }
    ASSIGN_OR_RETURN(const State after, StateOf(*trainer));
    if (after.tensors != before.tensors) {
      return absl::InternalError("a bad step changed the state");
    }
    if (passes) RETURN_IF_ERROR(Write(*trainer, right));
    const auto again = trainer->RepeatStep({.vote_to_stop = ToInt(rank) == 1});
    RETURN_IF_ERROR(again.status());
    if (again->result.finite != passes || !again->result.stop ||
        again->result.step != bad_step) {
      return absl::InternalError("the step was not run again as it should");
    }
    if (passes) {
      absl::StrAppendFormat(&losses, "%.17g ", again->result.loss);
    } else {
      if (CanExchangeSamples(layout)) {
        ASSIGN_OR_RETURN(const CheckedStep elsewhere,
                         trainer->RepeatStep({.sample_shift = 1}));
        if (elsewhere.result.finite || elsewhere.result.step != bad_step ||
            elsewhere.origin != again->origin) {
          return absl::InternalError("exchanged samples make a difference");
        }
      }
      RETURN_IF_ERROR(
          store.Set(absl::StrCat("origin/", ToInt(rank)), again->origin));
      RETURN_IF_ERROR(Write(*trainer, right));
    }
    for (int i = 0; i < 3; ++i) {
      RETURN_IF_ERROR(trainer->RunStep({}).status());
      std::optional<StepResult> result;
      ASSIGN_OR_RETURN(result, trainer->LastResult());
      if (!result.has_value() || !result->finite || result->stop) {
        return absl::InternalError("training does not go on");
      }
      absl::StrAppendFormat(&losses, "%.17g ", result->loss);
    }
    ASSIGN_OR_RETURN(const State trained, StateOf(*trainer));
    if (trained.tensors == before.tensors) {
      return absl::InternalError("steps change nothing any more");
    }
  }
  return store.Set(absl::StrCat("losses/", ToInt(rank)), losses);
}

// Goal: all ranks take back the step behind a bad one, run the bad one again
// and go on together; the ranks that made the first bad value name its op, and
// no others; a repetition that passes counts. Method: weights of one layer that
// overflow a product, on either side of every axis, through NCCL and by copy
// engines; losses are equal on all ranks.
TEST(CudaRepeatRanksTest, AllRanksRepeatTheStep) {
  ASSERT_GE(CountDevices(), kRanks) << "this test needs two GPUs";
  std::vector<Layout> layouts = {
      {.data = 2, .micro_batch = 1, .num_microbatches = 4},
      {.data = 2, .micro_batch = 1, .num_microbatches = 4, .zero = 3},
      {.tensor = 2, .micro_batch = 2, .num_microbatches = 4},
      {.pipeline = 2, .micro_batch = 1, .num_microbatches = 8}};
  for (size_t i = 0; i < 4; ++i) {
    layouts[i].precision = Precision::kBfloat16;
    Layout by_copies = layouts[i];
    by_copies.copy_engines = CopyEngineUseOf(by_copies);
    if (by_copies != layouts[i]) layouts.push_back(by_copies);
  }
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(LayoutToString(layout));
    RankProcesses ranks;
    DirectoryRendezvousStore store(ranks.folder() + "/store");
    ASSERT_EQ(ranks.RunAll(kRanks, kTimeout,
                           [&](Rank rank) {
                             return TrainThroughABadStep(layout, rank, store);
                           }),
              absl::OkStatus());
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      const std::string origin =
          *store.Get(absl::StrCat("origin/", rank), absl::Seconds(1));
      if (layout.pipeline == 1 || rank == 1) {
        EXPECT_THAT(origin, HasSubstr("'layers.1/feed_forward/")) << rank;
        EXPECT_THAT(origin, HasSubstr("micro-batch 0 (forward)")) << rank;
      } else {
        EXPECT_EQ(origin, "") << rank;
      }
    }
    EXPECT_EQ(*store.Get("losses/0", absl::Seconds(1)),
              *store.Get("losses/1", absl::Seconds(1)));
  }
}

}  // namespace
}  // namespace millrace
