#include "planner/pipeline/schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

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

}  // namespace
}  // namespace millrace
