// Bad steps that data replicas run again with each other's samples.

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "fault/bad_steps.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/fault/bad_step_verdict.h"
#include "worker/communicate/in_process_communicator.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kRareToken = 127;  // Of SmallJob().
constexpr int64_t kBadStep = 2;

constexpr int64_t kAllSequences = -1;

// In one step, one sequence or all have the token that no other sample has.
class BatchesWithARareToken : public BatchSource {
 public:
  BatchesWithARareToken(const JobSpec& job, int64_t sequence_idx)
      : sequence_idx_(sequence_idx),
        length_(job.model.sequence_length),
        batches_(kRareToken, length_) {}
  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    RETURN_IF_ERROR(batches_.Fill(request, out));
    if (request.step != kBadStep) return absl::OkStatus();
    for (int64_t i = 0; i < request.num_sequences; ++i) {
      if (sequence_idx_ == kAllSequences ||
          sequence_idx_ == request.first_sequence_idx + i) {
        std::fill_n(out.tokens + i * length_, length_, kRareToken);
      }
    }
    return absl::OkStatus();
  }

 private:
  const int64_t sequence_idx_;
  const int64_t length_;
  SyntheticBatches batches_;
};

// Trains up to the bad step. The token's row makes numbers overflow on the
// ranks that `is_wrong` says.
BadStepVerdict TrainToABadStep(const Layout& layout, int64_t sequence_idx,
                               const std::function<bool(Rank)>& is_wrong) {
  std::vector<BadStepReport> reports(layout.num_ranks());
  InProcessHub hub;
  const auto new_batches = [&](const JobSpec& of) {
    return std::make_unique<BatchesWithARareToken>(of, sequence_idx);
  };
  // Layer norm makes NaN of values whose sum overflows.
  JobSpec job = SmallJob();
  job.model.norm = NormKind::kLayer;
  const absl::Status status = RunRanks(
      job, layout, [&] { return hub.NewFactory(); },
      [&](Rank rank, Trainer& trainer) -> absl::Status {
        RETURN_IF_ERROR(trainer.RunStep({}).status());
        ASSIGN_OR_RETURN(const auto pieces, trainer.ReadState());
        for (const StatePiece& piece : pieces) {
          if (!is_wrong(rank) || piece.tensor != "model.embed_tokens.weight") {
            continue;
          }
          const int64_t first = (kRareToken - piece.box.row_begin) * piece.cols;
          for (int64_t i = std::max(first, piece.begin);
               i < std::min(first + piece.cols, piece.end); ++i) {
            piece.data[i - piece.begin] = 3e38f;
          }
        }
        ASSIGN_OR_RETURN(const auto bad, trainer.RunStep({}));
        EXPECT_FALSE(bad->finite);
        ASSIGN_OR_RETURN(const CheckedStep at_home, trainer.RepeatStep({}));
        EXPECT_FALSE(at_home.result.finite);
        ASSIGN_OR_RETURN(const CheckedStep elsewhere,
                         trainer.RepeatStep({.sample_shift = 1}));
        EXPECT_EQ(elsewhere.result.step, kBadStep);
        reports[ToInt(rank)] = {
            .step = kBadStep,
            .origin = at_home.origin,
            .elsewhere = BadStepReport::Elsewhere{
                .passed = elsewhere.result.finite, .origin = elsewhere.origin}};
        ASSIGN_OR_RETURN(const auto next, trainer.RunStep({}));
        EXPECT_TRUE(next->finite);
        EXPECT_EQ(next->step, kBadStep + 1);
        return absl::OkStatus();
      },
      new_batches);
  EXPECT_TRUE(status.ok()) << status;
  return VerdictOf(layout, reports);
}

// Goal: bad values that the samples make are found where the samples are, and
// accuse nobody. Method: every layout with data replicas.
TEST(ExchangedSamplesTest, FollowsTheSamples) {
  for (const Layout& layout :
       {Layout{.data = 2, .micro_batch = 4},
        Layout{.data = 4, .micro_batch = 2},
        Layout{.data = 2, .micro_batch = 2, .num_microbatches = 2, .zero = 3},
        Layout{.data = 2, .tensor = 2, .micro_batch = 4, .zero = 1},
        Layout{.pipeline = 2,
        .data = 2,
        .micro_batch = 1,
        .num_microbatches = 4}}) {
    for (const int32_t replica : {0, layout.data - 1}) {
      SCOPED_TRACE(LayoutToString(layout));
      ASSERT_TRUE(CanExchangeSamples(layout));
      const BadStepVerdict verdict = TrainToABadStep(
          layout, layout.first_microbatch_of(replica) * layout.micro_batch,
          [](Rank) { return true; });
      EXPECT_FALSE(verdict.passed_elsewhere);
      EXPECT_EQ(verdict.cause, BadStepCause::kSamples);
      EXPECT_THAT(verdict.suspects, IsEmpty());
      ASSERT_FALSE(verdict.origins.empty());
      EXPECT_EQ(CoordinatesOf(layout, verdict.origins[0].first).data, replica);
    }
  }
}

// Goal: a rank that computes some samples wrongly, which another one computes
// well, is the suspect, and the step counts. Method: the token's row is wrong
// on that rank alone, whose samples have the token.
TEST(ExchangedSamplesTest, CountsAStepThatPassesElsewhere) {
  const Layout layout = {.data = 4, .micro_batch = 2};
  const BadStepVerdict verdict = TrainToABadStep(
      layout, /*sequence_idx=*/2, [](Rank rank) { return rank == Rank{1}; });
  EXPECT_TRUE(verdict.passed_elsewhere);
  EXPECT_EQ(verdict.cause, BadStepCause::kDevices);
  EXPECT_THAT(verdict.suspects, ElementsAre(Rank{1}));
}

// Goal: a rank that computes any samples wrongly is the suspect. Method: as
// before, with the token in all samples.
TEST(ExchangedSamplesTest, FindsARankThatIsWrongWithAnySamples) {
  for (const Layout& layout :
       {Layout{.data = 4, .micro_batch = 2},
        Layout{.data = 2, .tensor = 2, .micro_batch = 4}}) {
    const BadStepVerdict verdict = TrainToABadStep(
        layout, kAllSequences,
        [&](Rank rank) { return CoordinatesOf(layout, rank).data == 1; });
    EXPECT_FALSE(verdict.passed_elsewhere);
    EXPECT_EQ(verdict.cause, BadStepCause::kDevices);
    ASSERT_FALSE(verdict.suspects.empty());
    for (const Rank suspect : verdict.suspects) {
      EXPECT_EQ(CoordinatesOf(layout, suspect).data, 1);
    }
  }
}

}  // namespace
}  // namespace millrace
