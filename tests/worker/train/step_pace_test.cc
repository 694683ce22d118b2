#include "worker/train/step_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace millrace {
namespace {

// A device that begins each step when it has been given it and the one before
// has ended, and a host that gives it steps as a StepPace says, or at once when
// the running step has ended. Then the host waits for that step's end, as
// trainers on GPUs do.
class Training {
 public:
  // `delay_s`: how much later than it should the host comes to give the step.
  void Step(double step_s, double delay_s = 0) {
    const double given_s =
        std::max(host_s_, std::min(pace_.NextAt(), device_s_)) + delay_s;
    const bool was_idle = given_s >= device_s_;
    pace_.Launched(given_s, was_idle);
    if (last_step_s_ > 0) {
      held_s_ = last_step_s_ - (device_s_ - given_s);
      if (was_idle) {
        idle_s_ += given_s - device_s_;
        pace_.Ended(last_step_s_, {});
      } else {
        pace_.Ended(last_step_s_, device_s_);
      }
    }
    host_s_ = std::max(given_s, device_s_);
    device_s_ = host_s_ + step_s;
    last_step_s_ = step_s;
  }
  double idle_s() const { return idle_s_; }
  // How long after the beginning of the step before the newest one was given.
  double held_s() const { return held_s_; }

 private:
  StepPace pace_;
  double host_s_ = 0;
  double device_s_ = 0;  // When it is done with all that it was given.
  double last_step_s_ = 0;
  double idle_s_ = 0;
  double held_s_ = 0;
};

TEST(StepPaceTest, GivesAStepShortlyBeforeTheRunningOneEnds) {
  Training training;
  for (int i = 0; i < 20; ++i) training.Step(2.0);
  EXPECT_NEAR(training.held_s(), 2.0 * 0.95 - 0.05, 1e-9);
  EXPECT_EQ(training.idle_s(), 0);
}

TEST(StepPaceTest, GivesShortStepsAtOnce) {
  Training training;
  for (int i = 0; i < 20; ++i) {
    training.Step(0.19);
    EXPECT_NEAR(training.held_s(), 0, 1e-9);
  }
}

// Goal: steps of different lengths and a host that is late by 50 ms let no
// device wait.
TEST(StepPaceTest, LetsNoDeviceWait) {
  Training training;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> length(1.0, 1.04);
  std::uniform_real_distribution<double> delay(0, 0.05);
  for (int i = 0; i < 1000; ++i) training.Step(length(random), delay(random));
  EXPECT_EQ(training.idle_s(), 0);
}

// Goal: a pause of the host costs its own length, a step that is much shorter
// than those before nothing, and the steps after them nothing.
TEST(StepPaceTest, FindsItsPaceAgain) {
  Training training;
  for (int i = 0; i < 20; ++i) training.Step(1.0);
  training.Step(1.0, /*delay_s=*/3.0);
  const double idle_s = training.idle_s();
  EXPECT_NEAR(idle_s, 3.0 - 0.1, 1e-9);
  for (int i = 0; i < 20; ++i) training.Step(1.0);
  EXPECT_NEAR(training.held_s(), 0.9, 1e-9);
  for (int i = 0; i < 20; ++i) training.Step(0.4);
  EXPECT_EQ(training.idle_s(), idle_s);
  EXPECT_NEAR(training.held_s(), 0.4 * 0.95 - 0.05, 1e-9);
}

}  // namespace
}  // namespace millrace
