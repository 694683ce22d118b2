#include "planner/profile/prediction_interval.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "planner/pipeline/pass_order.h"
#include "planner/profile/seeded_noise.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {
namespace {

// Errors of a kind: a common bias and scatter, with tails heavier than normal
// ones where `heavy`.
double RatioAt(uint64_t stream, uint64_t index, bool heavy) {
  const double z = NormalQuantile(RandomUniform(stream, index));
  return std::exp(0.03 + 0.05 * (heavy ? z * std::abs(z) : z));
}

// Goal: the next run is within the band in at least 9 of 10 cases, however many
// runs it is made from, and the band is no wider than needed where there are
// many. Method: thousands of bands, each against one further run.
TEST(IntervalTest, CoversTheNextRun) {
  constexpr int kTrials = 4000;
  for (const bool heavy : {false, true}) {
    for (const int num_runs : {2, 3, 6, 12, 18, 19, 40, 100}) {
      // Student's distribution is that of normal errors; with three runs of
      // heavier tails it still holds to a few percent.
      int num_covered = 0;
      double width = 0;
      for (int trial = 0; trial < kTrials; ++trial) {
        std::vector<double> ratios;
        const uint64_t stream = RandomBits(heavy ? 5 : 6, trial);
        for (int i = 0; i < num_runs; ++i) {
          ratios.push_back(RatioAt(stream, i, heavy));
        }
        const StepError error = ErrorOfRuns(ratios, "");
        const double next = RatioAt(stream, num_runs, heavy);
        if (error.low <= next && next <= error.high) ++num_covered;
        width += std::log(error.high / error.low) / kTrials;
      }
      const double coverage = static_cast<double>(num_covered) / kTrials;
      EXPECT_GE(coverage, heavy && num_runs < 19 ? 0.86 : 0.885)
          << num_runs << (heavy ? " heavy" : "");
      if (num_runs == 100) {
        EXPECT_LE(coverage, 0.93);
        if (!heavy) {
          EXPECT_NEAR(width, 2 * 1.645 * 0.05, 0.02);
        }
      }
    }
  }
}

// Goal: known bands. Method: order statistics of 19 and 39 runs by hand; a run
// alone leaves what layouts differ by.
TEST(IntervalTest, TakesOrderStatistics) {
  std::vector<double> ratios;
  for (int i = 1; i <= 19; ++i) ratios.push_back(0.9 + 0.01 * i);
  StepError error = ErrorOfRuns(ratios, "runs");
  EXPECT_NEAR(error.low, 0.91, 1e-12);
  EXPECT_NEAR(error.high, 1.09, 1e-12);
  EXPECT_EQ(error.num_runs, 19);
  EXPECT_EQ(error.source, "runs");
  for (int i = 20; i <= 39; ++i) ratios.push_back(0.9 + 0.01 * i);
  error = ErrorOfRuns(ratios, "runs");
  EXPECT_NEAR(error.low, 0.92, 1e-12);
  EXPECT_NEAR(error.high, 1.28, 1e-12);

  const StepError alone = ErrorOfRuns(std::vector<double>{1.1}, "");
  EXPECT_NEAR(std::sqrt(alone.low * alone.high), 1.1, 1e-12);
  EXPECT_GT(alone.high / alone.low, 1.1);

  // If few runs happen to agree, equal runs scatter by the measured noise.
  const std::vector<double> alike = {1, 1, 1, 1};
  const auto width = [&](double run_noise) {
    const StepError of_alike = ErrorOfRuns(alike, "", run_noise);
    return std::log(of_alike.high / of_alike.low);
  };
  EXPECT_NEAR(width(0.04) / width(0.01), 4, 1e-9);
  EXPECT_GT(width(0.01), 2 * 1.645 * 0.01);
  const auto alone_width = [](double run_noise) {
    const StepError error = ErrorOfRuns(std::vector<double>{1}, "", run_noise);
    return std::log(error.high / error.low);
  };
  EXPECT_GT(alone_width(0.1), 2 * alone_width(0.01));
}

// Goal: a profile's own error counts, else its kind's: tables say more than
// data sheets, and of mixtures of experts little is known.
TEST(IntervalTest, KnowsWhatProfilesAreWorth) {
  const ModelSpec dense;
  HardwareProfile profile;
  const StepError sheet = ErrorFor(dense, profile);
  profile.gemms.push_back({.m = 64, .n = 64, .k = 64, .seconds = 1e-6});
  const StepError measured = ErrorFor(dense, profile);
  EXPECT_GT(measured.low, sheet.low);
  EXPECT_LT(measured.high, sheet.high);
  profile.step_error = {
      .low = 1.02, .high = 1.06, .num_runs = 8, .source = "runs"};
  EXPECT_EQ(ErrorFor(dense, profile), profile.step_error);
  ModelSpec experts;
  experts.moe.num_experts = 8;
  EXPECT_LT(ErrorFor(experts, profile).low, sheet.low);
  EXPECT_GT(ErrorFor(experts, profile).high, sheet.high);
}

// Goal: the interval holds the prediction, scales with it, is wider with more
// error and more simulated noise, and narrows as runs agree.
TEST(IntervalTest, IsMonotone) {
  const StepError error = {.low = 1.02, .high = 1.06};
  const StepTimeInterval biased = IntervalOf(2, error);
  EXPECT_DOUBLE_EQ(biased.low_s, 2);  // The prediction itself is inside.
  EXPECT_DOUBLE_EQ(biased.high_s, 2.12);
  EXPECT_DOUBLE_EQ(IntervalOf(4, error).high_s, 4.24);
  EXPECT_DOUBLE_EQ(IntervalOf(2, {.low = 0.9, .high = 1.1}).low_s, 1.8);

  double previous = biased.high_s;
  for (const double spread : {0.01, 0.02, 0.05}) {
    const std::vector<double> steps = {2 * (1 - spread), 2, 2 * (1 + spread)};
    const double high_s = IntervalOfSteps(steps, error).high_s;
    EXPECT_GT(high_s, previous);
    previous = high_s;
  }
  const std::vector<double> one = {2.0};
  EXPECT_EQ(IntervalOfSteps(one, error).high_s, biased.high_s);
  EXPECT_DOUBLE_EQ(IntervalOf(2, error, {.slowdown = 0.1}).high_s, 2.332);
  EXPECT_EQ(IntervalOf(2, error, {.slowdown = 0.1}).low_s, biased.low_s);
  EXPECT_GT(IntervalOf(2, error, {.deviation = 0.1}).high_s, biased.high_s);

  previous = 1e9;
  for (const double spread : {0.2, 0.1, 0.05, 0.02}) {
    const StepError of_runs = ErrorOfRuns(
        std::vector<double>{1 - spread, 1, 1 + spread, 1, 1 + spread / 2}, "");
    EXPECT_LT(of_runs.high / of_runs.low, previous);
    previous = of_runs.high / of_runs.low;
  }
}

// Goal: what noise is said to add to a step is what simulated replicas with
// such passes take longer. Method: pipelines of equal stages, from one to many
// replicas, whose mean over drawn steps the law is held to.
TEST(IntervalTest, NoiseAddsWhatSimulationShows) {
  constexpr double kNoise = 0.04;
  for (const int32_t stages : {1, 2, 4, 8}) {
    for (const int32_t replicas : {1, 8, 64, 512}) {
      if (stages == 1 && replicas == 1) continue;  // Nobody waits.
      constexpr int32_t kMicrobatches = 16;
      PassStep step;
      step.costs = {.num_stages = stages, .num_microbatches = kMicrobatches};
      for (int32_t stage = 0; stage < stages; ++stage) {
        step.costs.stage_of_chunk.push_back(stage);
        step.costs.chunks.push_back(
            {.forward_s = 1, .input_gradient_s = 1, .weight_gradient_s = 1});
      }
      step.order =
          OrderOf(Schedule::kOneForwardOneBackward, step.costs).value();
      step.ends = {{}};
      step.num_replicas = replicas;
      const PassSimulation noisy =
          *SimulatePasses(step, {.noise_sigma = kNoise, .num_steps = 40});
      const double simulated =
          noisy.step_time_s / noisy.undisturbed_step_time_s - 1;
      const NoiseEffect effect =
          NoiseEffectOf({.pass = kNoise}, {},
                        {.pipeline = stages,
                         .data = replicas,
                         .num_microbatches = kMicrobatches});
      EXPECT_NEAR(effect.slowdown / simulated, 1, 0.25)
          << stages << " stages, " << replicas << " replicas: " << simulated;
    }
  }
}

// Goal: a profile's noise counts, else what is supposed; and what runs scatter
// by counts once.
TEST(IntervalTest, CountsNoiseOnce) {
  HardwareProfile profile;
  const StepNoise supposed = NoiseFor(profile);
  EXPECT_GT(supposed.run, 0);
  profile.constants = {{kPassNoise, 0.02, "measured"}};
  EXPECT_EQ(NoiseFor(profile).pass, 0.02);
  EXPECT_EQ(NoiseFor(profile).run, supposed.run);
  profile.constants.push_back({kRunNoise, 0.003, "measured"});
  const StepNoise noise = NoiseFor(profile);
  EXPECT_EQ(noise.run, 0.003);
  const Layout one;
  EXPECT_EQ(NoiseEffectOf(noise, {}, one).deviation, 0.003);
  EXPECT_EQ(NoiseEffectOf(noise, {.num_runs = 3}, one).deviation, 0);
  EXPECT_EQ(NoiseEffectOf(noise, {}, one).slowdown, 0);
}

}  // namespace
}  // namespace millrace
