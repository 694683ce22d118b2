#include "fault/slow_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

// Noise that was recorded: processor time of a fixed piece of work of some 4 ms
// over its running median, of four processes on two cores that others kept busy
// (tests/data/noise). A step is as many pieces in a row as take its time, and
// the next ones follow until another place in the record is drawn.
class RecordedNoise {
 public:
  RecordedNoise() {
    std::ifstream file("tests/data/noise/compute_noise.txt");
    for (double value; file >> value;) values_.push_back(value);
  }
  size_t size() const { return values_.size(); }

  // The relative times of so many steps, each of `step_s`.
  std::vector<double> Draw(size_t count, double step_s,
                           std::mt19937_64& random) const {
    constexpr double kPieceSeconds = 0.004;
    constexpr size_t kMostPieces = 30;
    constexpr size_t kSteps = 8;
    const size_t pieces = std::clamp<size_t>(
        std::llround(step_s / kPieceSeconds), 1, kMostPieces);
    std::vector<double> series;
    size_t at = 0;
    for (size_t step = 0; step < count; ++step) {
      if (step % kSteps == 0) {
        at = random() % (values_.size() - pieces * kSteps);
      }
      double sum = 0;
      for (size_t i = 0; i < pieces; ++i) sum += values_[at++];
      series.push_back(sum / static_cast<double>(pieces));
    }
    return series;
  }

 private:
  std::vector<double> values_;
};

struct Job {
  std::vector<int32_t> stage_of;
  // Seconds as predicted, and by how much the prediction is off.
  std::vector<SlowRankWatch::Stage> stages;
  std::vector<double> off;
};

const std::vector<Job>& Jobs() {
  static const auto* const kJobs = new std::vector<Job>{
      {{0, 0}, {{0.4}}, {1.3}},
      {{0, 0, 0, 0}, {{0.15}}, {0.7}},
      {{0, 0, 1, 1}, {{0.3}, {0.5}}, {1.2, 0.9}},
      {{0, 1, 2, 3}, {{0.4}, {0.3}, {0.3}, {0.6}}, {1, 1.2, 1.1, 0.9}},
      {{0, 0, 0, 0, 0, 0, 0, 0}, {{0.25}}, {1.1}},
      {{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3},
       {{0.3}, {0.25}, {0.25}, {0.4}},
       {1.1, 0.8, 1, 1.2}},
      {{0}, {{0.5}}, {1.4}},
      {{0, 0}, {{0.03}}, {1}},
      {{0, 0, 0, 0}, {{0.06}}, {0.9}},
      {{0, 0, 1, 1}, {{0.05}, {0.04}}, {1.2, 1}}};
  return *kJobs;
}

// Runs a job of `num_steps`; from step `from` on, the last rank is `factor`
// times as slow. Returns what was named, with the step.
std::vector<std::pair<int64_t, SlowRank>> RunJob(const Job& job,
                                                 const RecordedNoise& noise,
                                                 uint64_t seed,
                                                 int64_t num_steps,
                                                 int64_t from, double factor) {
  std::mt19937_64 random(seed);
  SlowRankWatch watch;
  watch.Begin(job.stage_of, job.stages);
  std::vector<std::vector<double>> series;
  for (size_t i = 0; i < job.stage_of.size(); ++i) {
    const int32_t stage = job.stage_of[i];
    series.push_back(noise.Draw(static_cast<size_t>(num_steps),
                                job.stages[stage].compute_s * job.off[stage],
                                random));
  }
  std::vector<std::pair<int64_t, SlowRank>> named;
  for (int64_t step = 1; step <= num_steps; ++step) {
    for (size_t i = 0; i < job.stage_of.size(); ++i) {
      const int32_t stage = job.stage_of[i];
      double seconds = job.stages[stage].compute_s * job.off[stage] *
                       series[i][static_cast<size_t>(step) - 1];
      if (i + 1 == job.stage_of.size() && step >= from) seconds *= factor;
      const auto slow = watch.Note(Rank{static_cast<int32_t>(i)}, seconds);
      if (slow.has_value()) named.emplace_back(step, *slow);
    }
  }
  return named;
}

uint64_t HoursOfEach() {
  const char* const hours = std::getenv("MILLRACE_SLOW_RANK_HOURS");
  return hours == nullptr ? 2 : std::strtoull(hours, nullptr, 10);
}

// Goal: no rank is named in an hour of steps whose noise was recorded, whatever
// the layout and however far off the prediction, up to sixteen ranks. Method:
// seeds. MILLRACE_SLOW_RANK_HOURS=N tries N hours of each layout.
TEST(SlowRankTest, RaisesNoFalseAlarm) {
  const RecordedNoise noise;
  ASSERT_GT(noise.size(), 1000u);
  for (const Job& job : Jobs()) {
    const auto steps_in_an_hour = static_cast<int64_t>(
        3600 / SweepStep(5) / (job.stages[0].compute_s * job.off[0]));
    for (uint64_t seed = 1; seed <= HoursOfEach(); ++seed) {
      const auto named =
          RunJob(job, noise, seed, steps_in_an_hour, steps_in_an_hour + 1, 1);
      for (const auto& [step, slow] : named) {
        ADD_FAILURE() << "seed " << seed << ", " << job.stage_of.size()
                      << " ranks: rank " << ToInt(slow.rank) << " at step "
                      << step << " by " << slow.factor;
      }
    }
  }
}

// Goal: a rank that becomes twice as slow is named within ten steps, one 1.15
// times as slow within thirty, or thirty times 0.1 s if steps are shorter, and
// no other rank is. Method: seeds; it begins after a hundred steps.
TEST(SlowRankTest, NamesTheSlowRankInTime) {
  struct Bar {
    double factor = 1;
    double most_steps = 0;
    double least_step_s = 0;  // What shorter steps count as.
  };
  const RecordedNoise noise;
  ASSERT_GT(noise.size(), 1000u);
  for (const Bar& bar : {Bar{2, 10, 0}, Bar{1.15, 30, 0.1}}) {
    for (const Job& job : Jobs()) {
      const int32_t stage = job.stage_of.back();
      const double step_s = job.stages[stage].compute_s * job.off[stage];
      const double most_steps =
          bar.most_steps * std::max(1.0, bar.least_step_s / step_s);
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        const auto named = RunJob(job, noise, seed, 260, 101, bar.factor);
        for (const auto& [step, slow] : named) {
          EXPECT_EQ(ToInt(slow.rank),
                    static_cast<int32_t>(job.stage_of.size()) - 1);
        }
        ASSERT_FALSE(named.empty()) << bar.factor << " of " << step_s << " s";
        EXPECT_LE(named[0].first, 100 + most_steps)
            << bar.factor << " of " << step_s << " s";
      }
    }
  }
}

// Goal: a rank that is slow from its first step is named too, against its like
// or else against the other stages; and it is said when it is well again.
TEST(SlowRankTest, NamesWhoIsSlowFromTheStartAndWhoRecovers) {
  const RecordedNoise noise;
  ASSERT_GT(noise.size(), 1000u);
  for (const Job& job : Jobs()) {
    if (job.stage_of.size() == 1) continue;  // Nothing to compare with.
    const auto named = RunJob(job, noise, 7, 60, 1, 2.2);
    ASSERT_FALSE(named.empty()) << job.stage_of.size();
    EXPECT_EQ(ToInt(named[0].second.rank),
              static_cast<int32_t>(job.stage_of.size()) - 1);
    // Stages of one rank may be off by half before they are told from slow.
    const bool has_like = job.stage_of.size() > job.stages.size();
    // Its like must have four samples of 0.1 s by then.
    const double step_s = job.stages[0].compute_s * job.off[0];
    const double more_steps = 4 * std::max(0.0, std::ceil(0.1 / step_s) - 1);
    EXPECT_LE(named[0].first, (has_like ? 12 : 40) + more_steps);
  }
  SlowRankWatch watch;
  watch.Begin({0, 0}, {{0.5}});
  std::vector<bool> recovered;
  for (int step = 0; step < 400; ++step) {
    watch.Note(Rank{0}, 0.5);
    const auto slow =
        watch.Note(Rank{1}, step >= 100 && step < 200 ? 1.0 : 0.5);
    if (slow.has_value()) recovered.push_back(slow->recovered);
  }
  EXPECT_THAT(recovered, testing::ElementsAre(false, true));
}

// Goal: steps too short to say much are taken together; absent predictions and
// ranks of no generation are ignored.
TEST(SlowRankTest, TakesShortStepsTogether) {
  SlowRankWatch watch;
  watch.Begin({0, 0}, {{0.001}});
  int num_named = 0;
  for (int step = 0; step < 2000; ++step) {
    num_named += watch.Note(Rank{0}, 0.001).has_value();
    // Slow for 20 ms at a time, as a rank is that another process preempts.
    const double seconds = step % 400 < 20 ? 0.002 : 0.001;
    num_named += watch.Note(Rank{1}, seconds).has_value();
  }
  EXPECT_EQ(num_named, 0);
  EXPECT_FALSE(watch.Note(Rank{2}, 1).has_value());
  watch.Begin({0}, {{0}});
  EXPECT_FALSE(watch.Note(Rank{0}, 1).has_value());
}

}  // namespace
}  // namespace millrace
