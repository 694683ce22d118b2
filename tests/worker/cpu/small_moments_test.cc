// Trainings whose moments are stored in bf16 or in 8 bits.

#include <cmath>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/sweep.h"
#include "worker/communicate/in_process_communicator.h"

namespace millrace {
namespace {

constexpr MomentFormat kSmallFormats[] = {MomentFormat::kBfloat16,
                                          MomentFormat::kBlocks8};

// Fills pieces from whole tensors.
void FillPieces(const Tensors& tensors, const std::vector<StatePiece>& pieces) {
  for (const StatePiece& piece : pieces) {
    const std::vector<float>& whole = tensors.at(piece.tensor);
    const int64_t box_cols = piece.box.col_end - piece.box.col_begin;
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const int64_t row = piece.box.row_begin + i / box_cols;
      const int64_t col = piece.box.col_begin + i % box_cols;
      piece.data[i - piece.begin] = whole[row * piece.cols + col];
    }
  }
}

// What all ranks own after `num_steps` more steps. They begin at step
// `first_step` with `state`, or at the first step with none.
absl::StatusOr<Tensors> TrainFrom(const Tensors* state, int64_t first_step,
                                  const Layout& layout, int64_t num_steps) {
  InProcessHub hub;
  std::mutex mutex;
  Tensors tensors;
  RETURN_IF_ERROR(RunRanks(
      SmallJob(), layout, [&] { return hub.NewFactory(); },
      [&](Rank, Trainer& trainer) -> absl::Status {
        if (state != nullptr) {
          ASSIGN_OR_RETURN(const auto to_fill, trainer.StateToFill());
          FillPieces(*state, to_fill);
          RETURN_IF_ERROR(trainer.FinishFilling(first_step - 1));
        }
        for (int64_t i = 0; i < num_steps; ++i) {
          RETURN_IF_ERROR(trainer.RunStep({}).status());
        }
        ASSIGN_OR_RETURN(const auto pieces, trainer.ReadState());
        const std::lock_guard<std::mutex> lock(mutex);
        CollectOwned(pieces, &tensors);
        return absl::OkStatus();
      }));
  return tensors;
}

// Goal: every ZeRO stage rounds alike, so that all give the same bits. Method:
// the same two replicas under each stage; their gradients are sums of the same
// two terms.
TEST(SmallMomentsTest, EveryZeroStageGivesTheSameBits) {
  for (const MomentFormat format : kSmallFormats) {
    Layout layout = {.data = 2, .micro_batch = 4, .moments = format};
    const auto expected = TrainFrom(nullptr, 1, layout, 5);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_TRUE(expected->contains("model.norm.weight.exp_avg_sq"));
    for (layout.zero = 1; layout.zero <= kMaximumZero; ++layout.zero) {
      const auto actual = TrainFrom(nullptr, 1, layout, 5);
      ASSERT_TRUE(actual.ok()) << actual.status();
      EXPECT_TRUE(*actual == *expected) << LayoutToString(layout);
    }
  }
}

// Goal: a resumed training continues exactly where an uninterrupted one goes,
// under the layout of before, and in bf16 under any ZeRO stage. Method: three
// steps, the state in fp32 as a checkpoint has it, three more from there.
TEST(SmallMomentsTest, ResumeContinuesExactly) {
  for (const MomentFormat format : kSmallFormats) {
    for (Layout layout : {Layout{.micro_batch = 4, .num_microbatches = 2},
                          Layout{.pipeline = 2,
                          .data = 2,
                          .micro_batch = 2,
                          .num_microbatches = 2,
                          .zero = 1},
                          Layout{.data = 2,
                          .tensor = 2,
                          .micro_batch = 2,
                          .num_microbatches = 2,
                          .zero = 2},
                          Layout{.data = 2, .micro_batch = 4, .zero = 3}}) {
      layout.moments = format;
      SCOPED_TRACE(LayoutToString(layout));
      const auto middle = TrainFrom(nullptr, 1, layout, 3);
      const auto expected = TrainFrom(nullptr, 1, layout, 6);
      ASSERT_TRUE(middle.ok() && expected.ok()) << middle.status();
      const auto resumed = TrainFrom(&*middle, 4, layout, 3);
      ASSERT_TRUE(resumed.ok()) << resumed.status();
      EXPECT_TRUE(*resumed == *expected);
    }
  }
  const Layout before = {
      .data = 2, .micro_batch = 4, .moments = MomentFormat::kBfloat16};
  Layout after = before;
  after.zero = 3;
  const auto middle = TrainFrom(nullptr, 1, before, 3);
  const auto expected = TrainFrom(nullptr, 1, before, 6);
  ASSERT_TRUE(middle.ok() && expected.ok()) << middle.status();
  const auto resumed = TrainFrom(&*middle, 4, after, 3);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_TRUE(*resumed == *expected);
}

// Goal: the loss follows that of fp32 moments under any layout. Method: 40
// steps, in which the loss falls by more than a tenth; the mean of the last ten
// losses is within 0.1 % of fp32's (measured: printed; 0.01 % in 8 bits).
TEST(SmallMomentsTest, TrainsAsInFloat32) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  constexpr int64_t kSteps = 40;
  const auto mean_of_last = [](const std::vector<double>& losses) {
    double sum = 0;
    for (size_t i = losses.size() - 10; i < losses.size(); ++i) {
      sum += losses[i];
    }
    return sum / 10;
  };
  const JobResult exact = RunJob(SmallJob(), {.micro_batch = 8}, kSteps);
  ASSERT_TRUE(exact.status.ok()) << exact.status;
  const double expected = mean_of_last(exact.losses);
  EXPECT_LT(expected, 0.9 * exact.losses.front());
  for (const MomentFormat format : kSmallFormats) {
    for (Layout layout :
         {Layout{.micro_batch = 8},
          Layout{.pipeline = 2,
          .tensor = 2,
          .micro_batch = 4,
          .num_microbatches = 2},
          Layout{
              .data = 4, .micro_batch = 1, .num_microbatches = 2, .zero = 3}}) {
      layout.moments = format;
      const JobResult result = RunJob(SmallJob(), layout, kSteps);
      ASSERT_TRUE(result.status.ok()) << result.status;
      const double actual = mean_of_last(result.losses);
      std::printf("%s: %.5f, in fp32 %.5f\n", LayoutToString(layout).c_str(),
                  actual, expected);
      EXPECT_NEAR(actual, expected, 0.001 * expected);
    }
  }
}

// Goal: memory is what the format says, as planned; state in place has no
// moments, snapshots and kept states have them. Method: ask a rank.
TEST(SmallMomentsTest, TakesTheMemoryThatIsPlanned) {
  for (const MomentFormat format : kSmallFormats) {
    InProcessHub hub;
    const absl::Status status = RunRanks(
        SmallJob(), {.data = 2, .micro_batch = 4, .zero = 1, .moments = format},
        [&] { return hub.NewFactory(); },
        [&](Rank, Trainer& trainer) -> absl::Status {
          EXPECT_EQ(trainer.allocated_bytes(), trainer.planned_bytes());
          const Program& program = trainer.program();
          for (const BufferId id :
               {program.exp_avg_buffer, program.exp_avg_sq_buffer}) {
            EXPECT_EQ(static_cast<double>(program.buffers[id].bytes),
                      MomentBytes(format) *
                          static_cast<double>(
                              program.parameters.num_optimizer_elements));
          }
          RETURN_IF_ERROR(trainer.RunStep({}).status());
          ASSIGN_OR_RETURN(const auto in_place, trainer.StateInPlace());
          for (const StatePiece& piece : in_place) {
            EXPECT_FALSE(piece.tensor.ends_with(".exp_avg")) << piece.tensor;
            EXPECT_FALSE(piece.tensor.ends_with(".exp_avg_sq"));
          }
          Tensors read, snapped;
          ASSIGN_OR_RETURN(const auto state, trainer.ReadState());
          CollectOwned(state, &read);
          ASSIGN_OR_RETURN(const auto snapshot, trainer.TakeSnapshot());
          RETURN_IF_ERROR(trainer.RunStep({}).status());
          CollectOwned(snapshot->pieces(), &snapped);
          EXPECT_TRUE(read == snapped);
          EXPECT_TRUE(read.contains("model.norm.weight.exp_avg") ||
                      read.contains("model.embed_tokens.weight.exp_avg"));
          const auto kept = trainer.KeepState();
          if (!kept.has_value()) return absl::InternalError("kept nothing");
          EXPECT_EQ(kept->completed_steps, 2);
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace millrace
