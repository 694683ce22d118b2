#include "coordinator/checkpoint_interval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "planner/fleet/goodput.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr double kDay = 86400;

// Goal: where a checkpoint costs little, the interval is Young's, sqrt(2 cost
// time-between-failures). Method: costs from 10 ms to 10 s, failures every
// hour to every month; the series that Young cut off is small there.
TEST(CheckpointIntervalTest, IsYoungsWhereCheckpointsAreCheap) {
  for (const double stall_s : {0.01, 0.1, 1.0, 10.0}) {
    for (const double mean_s : {3600.0, kDay, 30 * kDay}) {
      const IntervalChoice choice = ChooseCheckpointInterval(
          {.cost = {.stall_s = stall_s, .is_measured = true},
           .step_s = 0.01,
           .mean_time_between_failures_s = mean_s});
      const double young_s = std::sqrt(2 * stall_s * mean_s);
      EXPECT_NEAR(static_cast<double>(choice.steps) * 0.01, young_s,
                  0.03 * young_s + 0.01)
          << stall_s << " " << mean_s;
    }
  }
}

// Goal: the interval loses least time: no other number of steps near it has a
// larger useful share. Method: compare with a step more and less, where a
// checkpoint costs as much as a tenth of the time between failures.
TEST(CheckpointIntervalTest, LosesLeastTime) {
  const FailureModel failures = {.mean_time_between_failures_s = 600,
                                 .checkpoint_s = 60};
  const IntervalChoice choice =
      ChooseCheckpointInterval({.cost = {.stall_s = 60, .is_measured = true},
                                .step_s = 1,
                                .mean_time_between_failures_s = 600});
  const auto useful = [&](int64_t steps) {
    return SharesOf(failures, static_cast<double>(steps)).useful;
  };
  EXPECT_GT(useful(choice.steps), useful(choice.steps + 2));
  EXPECT_GT(useful(choice.steps), useful(choice.steps - 2));
}

// Goal: training never waits for the checkpoint before. Method: one that costs
// nothing and takes five minutes to write.
TEST(CheckpointIntervalTest, LeavesTimeToWrite) {
  const IntervalInput input = {
      .cost = {.stall_s = 1e-3, .write_s = 300, .is_measured = true},
      .step_s = 0.7,
      .mean_time_between_failures_s = 3600};
  const IntervalChoice choice = ChooseCheckpointInterval(input);
  EXPECT_EQ(choice.steps, 429);  // 300 s by 0.7 s, rounded up.
  EXPECT_EQ(
      choice.description,
      "every 429 steps (5 min 00 s): a checkpoint costs 1.00 ms of training "
      "and counts after 5 min 00 s (measured), a failure is expected "
      "every 1 h 00 min; no shorter than writing one takes");
}

// Goal: a rate of failures follows from what is said of a device, and from the
// run as it goes on. Method: 1,024 devices; with the hours that Llama 3's runs
// had, with the job's own, and after ten failures in an hour.
TEST(CheckpointIntervalTest, LearnsHowOftenTheJobFails) {
  GoodputSpec spec;
  ObservedFailures observed = {.num_devices = 1024};
  EXPECT_NEAR(MeanTimeBetweenFailures(spec, observed) / 3600, 48.8, 0.1);
  spec.mean_time_between_failures_hours = 10240;
  EXPECT_NEAR(MeanTimeBetweenFailures(spec, observed), 10 * 3600, 1);
  observed.seconds = 3600;
  observed.num_failures = 10;
  // 10,240 and 1,024 device-hours, and eleven failures.
  EXPECT_NEAR(MeanTimeBetweenFailures(spec, observed), 3600, 1);
}

// Goal: before there is a measurement the interval follows from a guess, and
// says so; a stall that the plan predicts is no guess. Method: a part of 1 GB
// on a host of eight ranks.
TEST(CheckpointIntervalTest, GuessesUntilOneIsWritten) {
  const CheckpointCost guess =
      GuessCheckpointCost(1'000'000'000, 8, std::nullopt, 0);
  EXPECT_DOUBLE_EQ(guess.stall_s, 0.25);
  const CheckpointCost predicted =
      GuessCheckpointCost(1'000'000'000, 8, SnapshotPlan{.stall_s = 0.01}, 0);
  EXPECT_DOUBLE_EQ(predicted.stall_s, 0.01);
  EXPECT_DOUBLE_EQ(predicted.write_s, guess.write_s);
  EXPECT_DOUBLE_EQ(guess.write_s, 16);
  // The job's own rate counts where it is the lower one.
  const auto write_s = [](int64_t rate) {
    return GuessCheckpointCost(1'000'000'000, 8, std::nullopt, rate).write_s;
  };
  EXPECT_DOUBLE_EQ(write_s(500'000'000), 16);
  EXPECT_DOUBLE_EQ(write_s(20'000'000), 50);
  EXPECT_THAT(
      ChooseCheckpointInterval(
          {.cost = guess, .step_s = 1, .mean_time_between_failures_s = kDay})
          .description,
      HasSubstr("(guessed until one is written)"));
}

// Goal: a rate at which checkpoints take longer than the steps between them is
// warned of, and the interval that the warning names is not. Method: 1 GB a
// rank at 20 MB/s, steps of half a second.
TEST(CheckpointIntervalTest, WarnsOfRatesThatAreTooLow) {
  CheckpointSpec spec = {.interval_steps = 99, .bytes_per_second = 20'000'000};
  const auto warning = [&] {
    return SlowWriteWarning(spec, 1'000'000'000, 0.5);
  };
  EXPECT_THAT(warning(), HasSubstr("take 50.0 s, and a checkpoint is due every "
                                   "49.5 s: training waits for the rest"));
  EXPECT_THAT(warning(), HasSubstr("checkpoint.interval_steps: 100 or more"));
  spec.interval_steps = 100;
  EXPECT_EQ(warning(), "");
  spec = {.interval_steps = 1};
  EXPECT_EQ(warning(), "");
  spec = {.policy = "auto", .bytes_per_second = 1};
  EXPECT_EQ(warning(), "");
}

// Goal: small differences change nothing, since ranks must agree on each
// change. Method: factors on both sides of a quarter.
TEST(CheckpointIntervalTest, ChangesOnlyWhatIsWorthIt) {
  EXPECT_FALSE(IsWorthChanging(100, 124));
  EXPECT_FALSE(IsWorthChanging(100, 81));
  EXPECT_TRUE(IsWorthChanging(100, 126));
  EXPECT_TRUE(IsWorthChanging(100, 79));
}

}  // namespace
}  // namespace millrace
