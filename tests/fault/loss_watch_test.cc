#include "fault/loss_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace millrace {
namespace {

// A loss that falls as a language model's does, with noise of `sigma` nats.
double UsualLoss(int64_t step, double sigma, std::mt19937_64& random) {
  return 2.5 + 6 * std::exp(-static_cast<double>(step) / 300) +
         std::normal_distribution<double>(0, sigma)(random);
}

// Goal: usual losses are no spikes, whatever their noise; a jump of a nat and a
// half among quiet ones is, wherever it comes after the first steps. Method:
// seeds, 2000 steps each.
TEST(LossWatchTest, TellsJumpsFromNoise) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    const double sigma = seed % 2 == 0 ? 0.03 : 0.3;
    LossWatch watch;
    for (int64_t step = 1; step <= 2000; ++step) {
      const auto spike = watch.Note(step, UsualLoss(step, sigma, random));
      EXPECT_FALSE(spike.has_value()) << "seed " << seed << " step " << step;
    }
    const double jump = 2.5 + (seed % 2 == 0 ? 1.5 : 4);
    const auto spike = watch.Note(2001, jump);
    ASSERT_TRUE(spike.has_value()) << "seed " << seed;
    EXPECT_EQ(spike->step, 2001);
    EXPECT_NEAR(spike->usual, 2.5, 0.3);
    // It counts for nothing afterwards.
    EXPECT_TRUE(watch.Note(2002, jump).has_value());
    EXPECT_FALSE(watch.Note(2003, 2.5).has_value());
  }
}

TEST(LossWatchTest, IgnoresWhatIsNoNumberAndTheFirstSteps) {
  LossWatch watch;
  EXPECT_FALSE(watch.Note(1, 3).has_value());
  EXPECT_FALSE(watch.Note(2, 30).has_value());
  for (int64_t step = 3; step < 80; ++step) {
    const double loss =
        step % 2 == 0 ? 3 : std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(watch.Note(step, loss).has_value());
  }
  EXPECT_TRUE(watch.Note(80, 30).has_value());
}

// Goal: a job that goes back to an earlier step, as often as it likes, finds
// the same spikes as one that never does. Method: random returns, some soon
// after a spike; the steps that were found to be spikes.
TEST(LossWatchTest, GoingBackChangesNothing) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<double> losses(601);
    for (int64_t step = 1; step <= 600; ++step) {
      losses[step] = UsualLoss(step, 0.03, random);
      if (random() % 20 == 0) losses[step] += 3;
    }
    std::set<int64_t> expected;
    LossWatch undisturbed;
    for (int64_t step = 1; step <= 600; ++step) {
      if (undisturbed.Note(step, losses[step])) expected.insert(step);
    }
    EXPECT_GE(expected.size(), 10u);

    std::set<int64_t> found;
    LossWatch watch;
    for (int64_t step = 1; step <= 600; ++step) {
      if (watch.Note(step, losses[step])) found.insert(step);
      if (random() % 50 == 0) {
        step -= std::min<int64_t>(step, static_cast<int64_t>(random() % 40));
      }
    }
    EXPECT_EQ(found, expected) << "seed " << seed;
  }
}

// Goal: a loss that has moved for good is no endless row of spikes. Method:
// after five of them the sixth is usual, and a jump from there is found again.
TEST(LossWatchTest, TakesALastingChangeForUsual) {
  LossWatch watch;
  int64_t step = 0;
  while (step < 100) EXPECT_FALSE(watch.Note(++step, 2));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(watch.Note(++step, 4));
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(watch.Note(++step, 4));
  EXPECT_TRUE(watch.Note(++step, 6));
}

}  // namespace
}  // namespace millrace
