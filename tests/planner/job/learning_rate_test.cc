#include <gtest/gtest.h>

#include "planner/job/job.h"

namespace millrace {
namespace {

// Goal: the course of the learning rate. Method: its corners, by hand.
TEST(LearningRateTest, WarmsUpAndDecays) {
  TrainingSpec training;
  training.num_steps = 110;
  training.optimizer = {.learning_rate = 1.0,
                        .min_learning_rate = 0.1,
                        .warmup_steps = 10,
                        .decay = LearningRateDecay::kCosine};
  EXPECT_DOUBLE_EQ(LearningRateAt(training, 1), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateAt(training, 5), 0.5);
  EXPECT_DOUBLE_EQ(LearningRateAt(training, 10), 1.0);
  EXPECT_NEAR(LearningRateAt(training, 60), 0.55, 1e-12);
  EXPECT_NEAR(LearningRateAt(training, 110), 0.1, 1e-12);
  training.optimizer.decay = LearningRateDecay::kLinear;
  EXPECT_NEAR(LearningRateAt(training, 35), 0.775, 1e-12);
  EXPECT_NEAR(LearningRateAt(training, 111), 0.1, 1e-12);
  training.optimizer.decay = LearningRateDecay::kNone;
  EXPECT_DOUBLE_EQ(LearningRateAt(training, 110), 1.0);
  training.optimizer.warmup_steps = 110;
  EXPECT_DOUBLE_EQ(LearningRateAt(training, 110), 1.0);
}

}  // namespace
}  // namespace millrace
