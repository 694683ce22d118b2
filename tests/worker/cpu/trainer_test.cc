#include "worker/cpu/trainer.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fault/checkpoint.h"
#include "fault/replica_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/sweep.h"
#include "tests/worker/allocation_counter.h"
#include "worker/agent/parameter_hash.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/ops.h"
#include "worker/train/progress_board.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// Uses every axis but pipeline, and one that uses pipeline.
const Layout kSharded = {
    .data = 2, .tensor = 2, .micro_batch = 2, .num_microbatches = 2, .zero = 1};
const Layout kPipelined = {
    .pipeline = 2, .data = 2, .micro_batch = 1, .num_microbatches = 4};

// Goal: bytes allocated are bytes planned, on every rank. Method: ask.
TEST(CpuTrainerTest, AllocatesWhatIsPlanned) {
  InProcessHub hub;
  const absl::Status status = RunRanks(
      SmallJob(), kPipelined, [&] { return hub.NewFactory(); },
      [](Rank, Trainer& trainer) {
        EXPECT_EQ(trainer.allocated_bytes(), trainer.planned_bytes());
        EXPECT_GE(trainer.planned_bytes(),
                  trainer.program().persistent_arena_bytes +
                      trainer.program().step_arena_bytes);
        EXPECT_GT(trainer.program().step_arena_bytes, 0);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Goal: a step allocates nothing of ours but the timeline it hands out (one
// vector a rank and step). Method: count operator new on all ranks' threads
// over some steps.
TEST(CpuTrainerTest, StepAllocatesOnlyItsTimeline) {
  constexpr int64_t kCounted = 5;
  for (const Layout& layout : {kSharded, kPipelined}) {
    InProcessHub hub;
    std::barrier all_ranks(layout.num_ranks());
    AllocationCounts counts{};
    const absl::Status status = RunRanks(
        SmallJob(), layout, [&] { return hub.NewFactory(); },
        [&](Rank rank, Trainer& trainer) {
          EXPECT_TRUE(trainer.RunStep({}).ok());
          all_ranks.arrive_and_wait();
          if (rank == Rank{0}) StartCountingAllocations();
          all_ranks.arrive_and_wait();
          for (int64_t i = 0; i < kCounted; ++i) {
            EXPECT_TRUE(trainer.RunStep({}).ok());
          }
          all_ranks.arrive_and_wait();
          if (rank == Rank{0}) counts = StopCountingAllocations();
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(counts.own, kCounted * layout.num_ranks());
    RecordProperty("library_allocations", std::to_string(counts.library));
  }
}

// Goal: one rank's vote stops all after the same step. Method: rank 1 votes in
// step 2.
TEST(CpuTrainerTest, OneVoteStopsAll) {
  InProcessHub hub;
  const absl::Status status = RunRanks(
      SmallJob(), kSharded, [&] { return hub.NewFactory(); },
      [](Rank rank, Trainer& trainer) {
        for (int64_t step = 1; step <= 3; ++step) {
          const auto result =
              trainer.RunStep({.vote_to_stop = rank == Rank{1} && step == 2});
          if (!result.ok()) return result.status();
          EXPECT_EQ((*result)->step, step);
          EXPECT_EQ((*result)->stop, step == 2);
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Goal: a step whose loss is not a number reports it and leaves parameters and
// moments untouched. Method: poison one weight, compare everything else before
// and after.
TEST(CpuTrainerTest, NonFiniteStepLeavesStateAlone) {
  InProcessHub hub;
  const absl::Status status = RunRanks(
      SmallJob(), kSharded, [&] { return hub.NewFactory(); },
      [](Rank, Trainer& trainer) {
        EXPECT_TRUE(trainer.RunStep({}).ok());
        std::vector<std::vector<float>> before;
        bool first = true;
        const auto pieces = trainer.ReadState();
        if (!pieces.ok()) return pieces.status();
        for (const StatePiece& piece : *pieces) {
          if (first) *piece.data = std::numeric_limits<float>::quiet_NaN();
          first = false;
          before.emplace_back(piece.data,
                              piece.data + (piece.end - piece.begin));
        }
        const auto result = trainer.RunStep({});
        if (!result.ok()) return result.status();
        EXPECT_FALSE((*result)->finite);
        for (size_t i = 0; i < pieces->size(); ++i) {
          // Other ranks' slices of the parameters are gathered anew each step.
          if (!(*pieces)[i].is_owner) continue;
          EXPECT_EQ(std::memcmp(before[i].data(), (*pieces)[i].data,
                                before[i].size() * sizeof(float)),
                    0)
              << (*pieces)[i].tensor;
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Goal: what replicas hold alike is equal between steps, to the bit, and its
// hash sees one bit. Method: all ranks with the same slices, without ZeRO and
// with hybrid sharding of all stages; a bit of the last piece flips.
TEST(CpuTrainerTest, ReplicasHoldTheSame) {
  for (const int32_t zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat("ZeRO ", zero));
    const Layout layout = {.data = 4,
                           .data_groups = 2,
                           .micro_batch = 1,
                           .num_microbatches = 2,
                           .zero = zero};
    ASSERT_TRUE(HasReplicas(layout));
    std::vector<uint64_t> hashes(4), flipped(4);
    InProcessHub hub;
    const absl::Status status = RunRanks(
        SmallJob(), layout, [&] { return hub.NewFactory(); },
        [&](Rank rank, Trainer& trainer) {
          for (int step = 0; step < 3; ++step) {
            const auto result = trainer.RunStep({});
            if (!result.ok()) return result.status();
          }
          const auto state = trainer.ReadState();
          if (!state.ok()) return state.status();
          const std::vector<StatePiece> pieces = ReplicatedPieces(*state);
          EXPECT_FALSE(pieces.empty());
          hashes[ToInt(rank)] = HashReplica(ChecksumsOf(pieces));
          if (rank == Rank{2}) {
            auto* const word = reinterpret_cast<uint32_t*>(pieces.back().data);
            *word ^= 1;
          }
          flipped[ToInt(rank)] = HashReplica(ChecksumsOf(pieces));
          return absl::OkStatus();
        });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(CompareReplicas(layout, hashes).agree);
    EXPECT_FALSE(CompareReplicas(layout, flipped).agree);
  }
}

// Goal: a step whose numbers were bad for a moment passes when it is run again,
// and leaves the state that it would have left. Method: a weight that is not a
// number during the first run only, beside a trainer that never sees one.
TEST(CpuTrainerTest, RepeatedStepCounts) {
  std::vector<std::vector<float>> states[2];
  for (const bool disturbed : {false, true}) {
    InProcessHub hub;
    std::barrier all_ranks(kSharded.num_ranks());
    const absl::Status status = RunRanks(
        SmallJob(), kSharded, [&] { return hub.NewFactory(); },
        [&](Rank rank, Trainer& trainer) {
          EXPECT_TRUE(trainer.RunStep({}).ok());
          if (disturbed) {
            float* const weight = (*trainer.ReadState())[0].data;
            const float right = *weight;
            if (rank == Rank{0}) {
              *weight = std::numeric_limits<float>::quiet_NaN();
            }
            const auto bad = trainer.RunStep({});
            if (!bad.ok()) return bad.status();
            EXPECT_FALSE((*bad)->finite);
            all_ranks.arrive_and_wait();
            *weight = right;
            const auto again = trainer.RepeatStep({});
            if (!again.ok()) return again.status();
            EXPECT_TRUE(again->result.finite);
            EXPECT_EQ(again->result.step, 2);
            EXPECT_EQ(again->origin, "");
          } else {
            EXPECT_TRUE(trainer.RunStep({}).ok());
          }
          EXPECT_EQ(trainer.completed_steps(), 2);
          EXPECT_TRUE(trainer.RunStep({}).ok());
          if (rank != Rank{1}) return absl::OkStatus();
          const auto pieces = trainer.ReadState();
          if (!pieces.ok()) return pieces.status();
          for (const StatePiece& piece : *pieces) {
            states[disturbed].emplace_back(
                piece.data, piece.data + (piece.end - piece.begin));
          }
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_FALSE(states[0].empty());
  EXPECT_EQ(states[0], states[1]);
}

// Goal: a step that is run again names the op whose operands were numbers and
// whose results are not, on the rank where that is, and no other. Method:
// weights of one layer, on the second stage, so large that a product overflows;
// once they are no numbers themselves, no op is to blame.
TEST(CpuTrainerTest, RepeatedStepNamesTheOp) {
  InProcessHub hub;
  const absl::Status status = RunRanks(
      SmallJob(), kPipelined, [&] { return hub.NewFactory(); },
      [](Rank rank, Trainer& trainer) {
        EXPECT_TRUE(trainer.RunStep({}).ok());
        const bool is_last_stage = trainer.program().stage == 1;
        const auto fill = [&](float value) -> absl::Status {
          const auto pieces = trainer.ReadState();
          if (!pieces.ok()) return pieces.status();
          for (const StatePiece& piece : *pieces) {
            if (piece.tensor != "model.layers.2.mlp.up_proj.weight") continue;
            std::fill(piece.data, piece.data + (piece.end - piece.begin),
                      value);
          }
          return absl::OkStatus();
        };
        for (const float value :
             {3e38f, std::numeric_limits<float>::infinity()}) {
          EXPECT_TRUE(fill(value).ok());
          const auto bad = trainer.RunStep({});
          if (!bad.ok()) return bad.status();
          EXPECT_FALSE((*bad)->finite);
          const auto again = trainer.RepeatStep({});
          if (!again.ok()) return again.status();
          EXPECT_FALSE(again->result.finite);
          if (is_last_stage && std::isfinite(value)) {
            EXPECT_THAT(again->origin, HasSubstr("layers.2/")) << ToInt(rank);
            EXPECT_THAT(again->origin, HasSubstr("of micro-batch 0 (forward)"));
          } else {
            EXPECT_EQ(again->origin, "") << ToInt(rank);
          }
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Goal: with 8-bit products, such a step also names the largest tensor that was
// copied. Method: weights of one layer, on the second stage, that are infinite.
TEST(CpuTrainerTest, RepeatedStepNamesTheLargestCopy) {
  for (const char* precision : {"fp8", "fp8_blockwise"}) {
    SCOPED_TRACE(precision);
    JobSpec job = SmallJob();
    job.training.precision = precision;
    Layout layout = kPipelined;
    layout.gemm_format = GemmFormatOf(precision);
    // Blocks divide these.
    job.model.hidden = job.model.ffn_hidden = 128;
    job.model.head_dim = 32;
    job.model.sequence_length = 128;
    InProcessHub hub;
    const absl::Status status = RunRanks(
        job, layout, [&] { return hub.NewFactory(); },
        [](Rank rank, Trainer& trainer) {
          EXPECT_TRUE(trainer.RunStep({}).ok());
          const auto pieces = trainer.ReadState();
          if (!pieces.ok()) return pieces.status();
          for (const StatePiece& piece : *pieces) {
            if (piece.tensor != "model.layers.2.mlp.up_proj.weight") continue;
            std::fill(piece.data, piece.data + (piece.end - piece.begin),
                      std::numeric_limits<float>::infinity());
          }
          const auto bad = trainer.RunStep({});
          if (!bad.ok()) return bad.status();
          EXPECT_FALSE((*bad)->finite);
          const auto again = trainer.RepeatStep({});
          if (!again.ok()) return again.status();
          const bool is_last_stage = trainer.program().stage == 1;
          EXPECT_EQ(std::isinf(again->largest_amax), is_last_stage)
              << ToInt(rank);
          EXPECT_GT(again->largest_amax, 0) << ToInt(rank);
          const bool has_blocks =
              trainer.program().layout.gemm_format == GemmFormat::kFloat8Blocks;
          EXPECT_THAT(again->largest_in,
                      HasSubstr(!is_last_stage ? "/quantize"
                                : has_blocks   ? "layers.2/"
                                               : "layers.2/weight_amax"));
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }
}

// Goal: a step that is left out counts and changes nothing. Method: leave out
// the second of three; the learning rates and the batch of the third are those
// of step 3.
TEST(CpuTrainerTest, LeftOutStepChangesNothing) {
  InProcessHub hub;
  const absl::Status status = RunRanks(
      SmallJob(), kSharded, [&] { return hub.NewFactory(); },
      [](Rank, Trainer& trainer) {
        EXPECT_TRUE(trainer.RunStep({}).ok());
        const auto snapshot = *trainer.TakeSnapshot();
        EXPECT_TRUE(trainer.LeaveOutStep().ok());
        EXPECT_EQ(trainer.completed_steps(), 2);
        const auto after = *trainer.TakeSnapshot();
        for (size_t i = 0; i < after->pieces().size(); ++i) {
          const StatePiece& piece = after->pieces()[i];
          EXPECT_EQ(std::memcmp(piece.data, snapshot->pieces()[i].data,
                                static_cast<size_t>(piece.end - piece.begin) *
                                    sizeof(float)),
                    0);
        }
        const auto result = trainer.RunStep({});
        if (!result.ok()) return result.status();
        EXPECT_EQ((*result)->step, 3);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Goal: a snapshot stays as the state was, holds what the rank owns, and its
// memory serves again once nobody holds it. Method: one held over three steps,
// beside a copy.
TEST(CpuTrainerTest, SnapshotsStay) {
  InProcessHub hub;
  const auto copy_of = [](const std::vector<StatePiece>& pieces) {
    std::vector<std::pair<std::string, std::vector<float>>> copy;
    for (const StatePiece& piece : pieces) {
      if (!piece.is_owner || piece.begin == piece.end) continue;
      copy.emplace_back(
          piece.tensor,
          std::vector<float>(piece.data,
                             piece.data + (piece.end - piece.begin)));
    }
    return copy;
  };
  const absl::Status status = RunRanks(
      SmallJob(), kSharded, [&] { return hub.NewFactory(); },
      [&](Rank, Trainer& trainer) {
        EXPECT_TRUE(trainer.RunStep({}).ok());
        const auto before = copy_of(*trainer.ReadState());
        auto first = *trainer.TakeSnapshot();
        EXPECT_TRUE(*first->IsTaken());
        EXPECT_FALSE(first->is_in_place());
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(trainer.RunStep({}).ok());
        auto second = *trainer.TakeSnapshot();
        EXPECT_EQ(copy_of(first->pieces()), before);
        EXPECT_EQ(copy_of(second->pieces()), copy_of(*trainer.ReadState()));
        EXPECT_NE(copy_of(second->pieces()), before);
        const float* const memory = second->pieces()[0].data;
        EXPECT_NE(first->pieces()[0].data, memory);
        second = nullptr;
        EXPECT_EQ((*trainer.TakeSnapshot())->pieces()[0].data, memory);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Goal: a rank that leaves ends the others' step with an error that names rank,
// step and instruction. Method: rank 0 stops after one step.
TEST(CpuTrainerTest, LostRankEndsTheStep) {
  InProcessHub hub;
  const absl::Status status = RunRanks(
      SmallJob(), kPipelined, [&] { return hub.NewFactory(); },
      [](Rank rank, Trainer& trainer) {
        EXPECT_TRUE(trainer.RunStep({}).ok());
        if (rank == Rank{0}) return absl::OkStatus();
        const auto result = trainer.RunStep({});
        EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
        EXPECT_THAT(std::string(result.status().message()),
                    HasSubstr("step 2, "));
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Goal: Abort() from another thread ends a step that waits for a peer. Method:
// rank 1 never starts its step until rank 0's has ended.
TEST(CpuTrainerTest, AbortEndsAStep) {
  InProcessHub hub;
  absl::Notification ended;
  const absl::Status status = RunRanks(
      SmallJob(), {.data = 2, .micro_batch = 4},
      [&] { return hub.NewFactory(); },
      [&](Rank rank, Trainer& trainer) {
        if (rank == Rank{1}) {
          ended.WaitForNotification();
          return absl::OkStatus();
        }
        std::thread aborter([&] { trainer.Abort(); });
        EXPECT_TRUE(absl::IsAborted(trainer.RunStep({}).status()));
        aborter.join();
        ended.Notify();
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Waits until a trainer has come so far: into that step, with so many
// instructions of it ended.
void WaitForProgress(const ProgressBoard& progress, int64_t step,
                     int64_t num_instructions) {
  const auto is_there = [&] {
    if (progress.step != step) return progress.step > step;
    int64_t ended = 0;
    for (const std::atomic<int32_t>& lane : progress.completed) ended += lane;
    return ended >= num_instructions;
  };
  while (!is_there()) absl::SleepFor(absl::Microseconds(20));
}

// Goal: whenever a step is aborted, what a trainer keeps is the state after a
// whole step, of its own part and of those of ranks that hold the same, and the
// result of each step is told. Method: the states after each of some steps,
// undisturbed; then runs that rank 0 aborts all over its first four steps.
TEST(CpuTrainerTest, AbortedStepLeavesAWholeState) {
  using Values = std::vector<float>;
  const auto values_of = [](const std::vector<StatePiece>& pieces) {
    Values values;
    for (const StatePiece& piece : OwnedPieces(pieces)) {
      values.insert(values.end(), piece.data,
                    piece.data + (piece.end - piece.begin));
    }
    return values;
  };
  constexpr int64_t kSteps = 12;
  constexpr int kMoments = kSanitized ? 6 : 20;
  Layout copies = {.data = 4, .micro_batch = 2, .zero = 1};
  copies.data_groups = 2;
  for (const Layout& layout : {kSharded, kPipelined, copies}) {
    SCOPED_TRACE(LayoutToString(layout));
    std::mutex mutex;
    std::map<std::pair<int64_t, Rank>, Values> expected;
    std::map<int64_t, double> losses;
    InProcessHub hub;
    absl::Status status = RunRanks(
        SmallJob(), layout, [&] { return hub.NewFactory(); },
        [&](Rank rank, Trainer& trainer) {
          for (int64_t step = 0; step <= kSteps; ++step) {
            absl::StatusOr<std::optional<StepResult>> result;
            if (step > 0) {
              result = trainer.RunStep({});
              EXPECT_TRUE(result.ok()) << result.status();
            }
            const std::lock_guard<std::mutex> lock(mutex);
            if (step > 0) losses[step] = (*result)->loss;
            expected[{step, rank}] = values_of(*trainer.ReadState());
          }
          return absl::OkStatus();
        });
    ASSERT_TRUE(status.ok()) << status;
    std::set<int64_t> kept_steps;
    size_t num_parts = 0;
    for (int moment = 0; moment < kMoments; ++moment) {
      InProcessHub disturbed;
      ProgressBoard progress;
      status = RunRanks(
          SmallJob(), layout, [&] { return disturbed.NewFactory(); },
          [&](Rank rank, Trainer& trainer) {
            std::thread aborter;
            if (rank == Rank{0}) {
              aborter = std::thread([&trainer, &progress, moment] {
                const auto num_instructions =
                    static_cast<int64_t>(trainer.program().instructions.size());
                const int64_t at =
                    4 * (num_instructions + 1) * moment / kMoments;
                WaitForProgress(progress, 1 + at / (num_instructions + 1),
                                at % (num_instructions + 1));
                trainer.Abort();
              });
            }
            int64_t returned = 0;
            while (trainer.completed_steps() < kSteps &&
                   trainer.RunStep({}).ok()) {
              ++returned;
            }
            if (aborter.joinable()) aborter.join();
            const std::optional<KeptState> kept = trainer.KeepState();
            if (!kept.has_value()) return absl::InternalError("kept nothing");
            const std::lock_guard<std::mutex> lock(mutex);
            kept_steps.insert(kept->completed_steps);
            // Every step of the state has a result.
            EXPECT_EQ(kept->completed_steps,
                      returned + (kept->completed_step.has_value() ? 1 : 0));
            if (kept->completed_step.has_value()) {
              EXPECT_EQ(kept->completed_step->step, kept->completed_steps);
              EXPECT_EQ(kept->completed_step->loss,
                        losses[kept->completed_steps]);
            }
            num_parts = std::max(num_parts, kept->parts.size());
            EXPECT_TRUE(kept->parts.contains(rank));
            for (const auto& [other, pieces] : kept->parts) {
              EXPECT_TRUE((expected[{kept->completed_steps, other}] ==
                           values_of(pieces)))
                  << "rank " << ToInt(rank) << " of rank " << ToInt(other)
                  << " after step " << kept->completed_steps;
            }
            return absl::OkStatus();
          },
          NewSyntheticBatches, &progress);
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_GT(kept_steps.size(), 1u);
    EXPECT_EQ(num_parts, layout.zero == 0 || layout.data_groups > 1 ? 2u : 1u);
  }
}

// Goal: a trainer that is aborted between two steps keeps the state after the
// first and does not count the second, whose run failed before it began.
TEST(CpuTrainerTest, AbortBetweenStepsKeepsTheStateBefore) {
  InProcessHub hub;
  const absl::Status status = RunRanks(
      SmallJob(), {.micro_batch = 8}, [&] { return hub.NewFactory(); },
      [&](Rank, Trainer& trainer) {
        for (int step = 0; step < 2; ++step) {
          EXPECT_TRUE(trainer.RunStep({}).ok());
        }
        trainer.Abort();
        EXPECT_FALSE(trainer.RunStep({}).ok());
        const std::optional<KeptState> kept = trainer.KeepState();
        if (!kept.has_value()) return absl::InternalError("kept nothing");
        EXPECT_EQ(kept->completed_steps, 2);
        EXPECT_FALSE(kept->completed_step.has_value());
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Goal: a bad batch is reported with its cause. Method: a source that fails.
TEST(CpuTrainerTest, BatchErrorsComeThrough) {
  class Broken : public BatchSource {
    absl::Status Fill(const BatchRequest&, const BatchPointers&) override {
      return absl::DataLossError("tokens.bin: token 17 is cut off");
    }
  } broken;
  InProcessHub hub;
  const auto factory = hub.NewFactory();
  auto trainer = CreateCpuTrainer({.job = SmallJob(),
                                   .layout = {.micro_batch = 8},
                                   .rank = Rank{0},
                                   .communicators = factory.get(),
                                   .batches = &broken});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const absl::Status status = (*trainer)->RunStep({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 17"));
}

// Goal: the clip factor brings any larger norm to the limit and leaves smaller
// ones, and zero means none. Method: by hand.
TEST(ClipScaleTest, LimitsTheNorm) {
  EXPECT_NEAR(ClipScale(100.0, 1.0), 0.1, 1e-7);
  EXPECT_EQ(ClipScale(0.25, 1.0), 1.0);
  EXPECT_EQ(ClipScale(0.0, 1.0), 1.0);
  EXPECT_EQ(ClipScale(1e6, 0.0), 1.0);
}

}  // namespace
}  // namespace millrace
