#include "planner/pipeline/pass_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

PipelineCosts Costs(int32_t num_stages, int32_t num_turns,
                    int32_t num_microbatches) {
  PipelineCosts costs{.num_stages = num_stages,
                      .num_microbatches = num_microbatches};
  for (int32_t c = 0; c < num_stages * num_turns; ++c) {
    costs.stage_of_chunk.push_back(c % num_stages);
    costs.chunks.push_back({1, 1, 1, 1, 1});
  }
  return costs;
}

// The most micro-batches that stage `stage` holds at once, of all its chunks:
// from forward pass to input gradient.
int32_t MostAlive(const std::vector<ChunkPass>& passes) {
  int32_t alive = 0, most = 0;
  for (const ChunkPass& pass : passes) {
    if (pass.kind == ChunkPassKind::kForward) most = std::max(most, ++alive);
    if (pass.kind == ChunkPassKind::kBackward) --alive;
    if (pass.kind == ChunkPassKind::kInputGradient) --alive;
  }
  return most;
}

// Goal: every stage runs each micro-batch forward once, then backward once,
// both in order, and never holds more than num_stages - stage of them. Method:
// sweep every small shape; warm-up and drain mistakes already show below 8 x 8.
TEST(OneForwardOneBackwardTest, KeepsOrderAndActivationBound) {
  for (int32_t num_stages = 1; num_stages <= 8; ++num_stages) {
    for (int32_t num_microbatches = 1; num_microbatches <= 8;
         ++num_microbatches) {
      for (int32_t stage = 0; stage < num_stages; ++stage) {
        SCOPED_TRACE(absl::StrCat("stage ", stage, " of ", num_stages, ", ",
                                  num_microbatches, " micro-batches"));
        int32_t num_forward = 0, num_backward = 0;
        for (const ChunkPass& pass :
             OneForwardOneBackward({.num_stages = num_stages,
             .num_microbatches = num_microbatches},
                                   stage)) {
          if (pass.kind == ChunkPassKind::kForward) {
            EXPECT_EQ(pass.microbatch_idx, num_forward++);
          } else {
            EXPECT_EQ(pass.microbatch_idx, num_backward++);
          }
          EXPECT_LE(num_backward, num_forward);
          EXPECT_LE(num_forward - num_backward, num_stages - stage);
        }
        EXPECT_EQ(num_forward, num_microbatches);
        EXPECT_EQ(num_backward, num_microbatches);
      }
    }
  }
}

// Goal: zero bubble is one-forward-one-backward with weight gradients apart:
// stage s owes those of s micro-batches at most, and pays in order. Method:
// sweep every small shape; leave the weight gradients out and compare.
TEST(ZeroBubbleTest, PutsOffWeightGradientsOfAsManyAsThereAreStagesBefore) {
  for (int32_t num_stages = 1; num_stages <= 6; ++num_stages) {
    for (int32_t num_microbatches = 1; num_microbatches <= 8;
         ++num_microbatches) {
      const PipelineShape shape = {.num_stages = num_stages,
                                   .num_microbatches = num_microbatches};
      for (int32_t stage = 0; stage < num_stages; ++stage) {
        SCOPED_TRACE(absl::StrCat("stage ", stage, " of ", num_stages, ", ",
                                  num_microbatches, " micro-batches"));
        std::vector<ChunkPass> others;
        int32_t num_input = 0, num_weight = 0;
        for (ChunkPass pass : ZeroBubble(shape, stage)) {
          EXPECT_EQ(pass.chunk_idx, stage);
          if (pass.kind == ChunkPassKind::kWeightGradient) {
            EXPECT_EQ(pass.microbatch_idx, num_weight++);
            EXPECT_LE(num_weight, num_input);
            continue;
          }
          if (pass.kind == ChunkPassKind::kInputGradient) {
            EXPECT_EQ(pass.microbatch_idx, num_input++);
            EXPECT_LE(num_input - num_weight, stage + 1);
            pass.kind = ChunkPassKind::kBackward;
          }
          others.push_back(pass);
        }
        EXPECT_EQ(others, OneForwardOneBackward(shape, stage));
        EXPECT_EQ(num_input, stage == 0 ? 0 : num_microbatches);
        EXPECT_EQ(num_weight, num_input);
      }
    }
  }
}

// Goal: every order has each pass once, after what it needs, and holds as many
// activations as its paper says. Method: sweep all small shapes, with numbers
// of micro-batches that fill the last group and that do not.
TEST(PassOrderTest, HasEveryPassOnceAndTheKnownActivations) {
  for (int32_t p = 1; p <= 6; ++p) {
    for (int32_t m = 1; m <= 14; ++m) {
      SCOPED_TRACE(absl::StrCat(p, " stages, ", m, " micro-batches"));
      for (const Schedule schedule :
           {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble}) {
        const PipelineCosts costs = Costs(p, 1, m);
        const absl::StatusOr<PassOrder> order = OrderOf(schedule, costs);
        ASSERT_TRUE(order.ok()) << order.status();
        EXPECT_TRUE(CheckOrder(costs, *order).ok())
            << CheckOrder(costs, *order);
        for (int32_t s = 0; s < p; ++s) {
          EXPECT_EQ(MostAlive((*order)[s]), std::min(p - s, m));
        }
      }
      for (int32_t v = 1; v <= 4; ++v) {
        const PipelineCosts costs = Costs(p, v, m);
        const absl::StatusOr<PassOrder> order =
            OrderOf(Schedule::kInterleaved, costs);
        ASSERT_TRUE(order.ok()) << order.status();
        EXPECT_TRUE(CheckOrder(costs, *order).ok())
            << CheckOrder(costs, *order);
        if (m % p != 0) continue;  // Groups are larger.
        EXPECT_EQ(MostAlive((*order)[0]),
                  std::min(2 * (p - 1) + (v - 1) * p + 1, m * v));
      }
    }
  }
}

// Goal: an order that cannot run is refused with the pass that is wrong.
TEST(PassOrderTest, RefusesWhatCannotRun) {
  const PipelineCosts costs = Costs(2, 1, 2);
  const PassOrder good = OrderOf(Schedule::kZeroBubble, costs).value();
  PassOrder order = good;
  order[1].pop_back();
  EXPECT_THAT(CheckOrder(costs, order).message(), HasSubstr("lacks"));
  order = good;
  order[0].push_back(order[0][0]);
  EXPECT_THAT(CheckOrder(costs, order).message(), HasSubstr("twice"));
  order = good;
  std::swap(order[0][0], order[0].back());
  EXPECT_THAT(CheckOrder(costs, order).message(), HasSubstr("before"));
  order = good;
  std::swap(order[0], order[1]);
  EXPECT_THAT(CheckOrder(costs, order).message(),
              HasSubstr("not one of stage 0"));
  PipelineCosts turned = costs;
  std::swap(turned.stage_of_chunk[0], turned.stage_of_chunk[1]);
  EXPECT_THAT(
      OrderOf(Schedule::kOneForwardOneBackward, turned).status().message(),
      HasSubstr("a chunk a stage"));
  EXPECT_THAT(OrderOf(Schedule::kZeroBubble, Costs(2, 2, 2)).status().message(),
              HasSubstr("4 chunks on 2 stages"));
}

}  // namespace
}  // namespace millrace
