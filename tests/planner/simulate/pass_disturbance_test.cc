#include "planner/simulate/pass_disturbance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "planner/profile/seeded_noise.h"
#include "planner/simulate/simulate_passes.h"
#include "tests/planner/simulate/pass_testing.h"

namespace millrace {
namespace {

// Goal: one slow machine holds up everybody, by as much as a pipeline with that
// slow stage takes; so does one of another replica. Method: machine 5
// holds ranks 40 .. 47: of replica 2's stage 2 and 3 (4 ranks each).
TEST(PassDisturbanceTest, OneSlowMachineHoldsUpAll) {
  const PassStep step = LargeStep(4);
  std::vector<double> slowdown(6, 1);
  slowdown[5] = 1.3;
  const PassSimulation slow =
      *SimulatePasses(step, {.machine_slowdown = slowdown});
  EXPECT_EQ(slow.num_slow_machines, 1);

  PassStep alone = LargeStep(1);
  for (const size_t chunk : {2, 3, 6, 7}) {
    alone.costs.chunks[chunk].forward_s *= 1.3;
    alone.costs.chunks[chunk].input_gradient_s *= 1.3;
    alone.costs.chunks[chunk].weight_gradient_s *= 1.3;
  }
  alone.ends.assign(4, alone.ends[0]);
  alone.ends[2].optimizer_s *= 1.3;
  alone.ends[3].optimizer_s *= 1.3;
  EXPECT_NEAR(slow.step_time_s, StepTime(alone), 1e-12);
  for (const RankClass& ranks : slow.timeline.classes) {
    // Slowest replica first.
    if (ranks.num_ranks == 4) {
      EXPECT_EQ(ranks.replica, 2);
    }
  }
}

// Goal: a slow rank does what its machine being slow does to the passes it is
// part of, and is named. Method: rank 41 is one of replica 2's stage 2.
TEST(PassDisturbanceTest, OneSlowRankIsTheCause) {
  const PassStep step = LargeStep(4);
  const PassSimulation slow = *SimulatePasses(
      step,
      {.slow_ranks = {{.rank = 41, .factor = 1.3}}, .finds_causes = true});
  PassStep alone = LargeStep(1);
  for (const size_t chunk : {2, 6}) {
    alone.costs.chunks[chunk].forward_s *= 1.3;
    alone.costs.chunks[chunk].input_gradient_s *= 1.3;
    alone.costs.chunks[chunk].weight_gradient_s *= 1.3;
  }
  alone.ends.assign(4, alone.ends[0]);
  alone.ends[2].optimizer_s *= 1.3;
  EXPECT_NEAR(slow.step_time_s, StepTime(alone), 1e-12);
  ASSERT_FALSE(slow.causes.empty());
  EXPECT_EQ(slow.causes[0].kind, SlowdownCause::Kind::kPasses);
  EXPECT_EQ(slow.causes[0].stage, 2);
  EXPECT_EQ(slow.causes[0].replica, 2);
  EXPECT_EQ(FirstRankOf(step, 2, 2), 40);
}

// Goal: a slow link does to transfers, gathers, reductions and passes what
// their factors say, where it is used. Method: machine 2 of eight ranks holds
// replica 1's stages 0 and 1, so its outer link carries the transfers between
// stages 1 and 2 and, of the interleaved chunks, 3 and 0, and its inner one
// those between 0 and 1.
TEST(PassDisturbanceTest, OneSlowLinkHoldsUpWhatUsesIt) {
  const PassStep step = LargeStep(4);
  const double undisturbed_s = StepTime(step);
  SlowLink link{.machine = 2, .passes = {1, 1, 1, 1}};
  const auto with = [&] { return StepTime(step, {.slow_links = {link}}); };
  EXPECT_NEAR(with(), undisturbed_s, 1e-12);
  link.gradient_reduction = 4;
  PassStep reduced = step;
  reduced.ends.assign(4, step.ends[0]);
  reduced.ends[0].gradient_reduction_s *= 4;
  reduced.ends[1].gradient_reduction_s *= 4;
  EXPECT_NEAR(with(), StepTime(reduced), 1e-12);
  link.gradient_reduction = 1;
  link.parameter_gather = 10;
  PassStep gathered = step;
  gathered.ends.assign(4, step.ends[0]);
  gathered.ends[0].parameter_gather_s *= 10;
  gathered.ends[1].parameter_gather_s *= 10;
  EXPECT_NEAR(with(), StepTime(gathered), 1e-12);
  link.parameter_gather = 1;
  link.passes = {1.5, 1.2, 9, 9};
  const double slow_passes_s = with();
  PassStep slow = LargeStep(1);
  slow.ends.assign(4, slow.ends[0]);
  for (const size_t chunk : {0, 1, 4, 5}) {
    const double factor = chunk % 4 == 0 ? 1.5 : 1.2;
    slow.costs.chunks[chunk].forward_s *= factor;
    slow.costs.chunks[chunk].input_gradient_s *= factor;
    slow.costs.chunks[chunk].weight_gradient_s *= factor;
  }
  slow.ends[0].optimizer_s *= 1.5;
  slow.ends[1].optimizer_s *= 1.2;
  EXPECT_NEAR(slow_passes_s, StepTime(slow), 1e-12);
  link.passes = {1, 1, 1, 1};
  link.transfer = 20;
  const PassSimulation outer =
      *SimulatePasses(step, {.slow_links = {link}, .finds_causes = true});
  EXPECT_GT(outer.step_time_s, undisturbed_s);
  for (const SlowdownCause& cause : outer.causes) {
    if (cause.seconds < 1e-9) break;
    EXPECT_EQ(cause.kind, SlowdownCause::Kind::kTransfers);
    EXPECT_EQ(cause.replica, 1);
    EXPECT_NE(std::minmax(cause.stage, cause.receiver), std::minmax(0, 1));
    EXPECT_NE(std::minmax(cause.stage, cause.receiver), std::minmax(2, 3));
  }
  link.is_inside = true;
  const PassSimulation inner =
      *SimulatePasses(step, {.slow_links = {link}, .finds_causes = true});
  EXPECT_GT(inner.step_time_s, undisturbed_s);
  for (const SlowdownCause& cause : inner.causes) {
    if (cause.seconds < 1e-9) break;
    EXPECT_EQ(std::minmax(cause.stage, cause.receiver), std::minmax(0, 1));
  }
}

// Goal: causes explain at least what steps take longer, whatever the noise.
// Method: noise, slow machines and a slow link at once, over seeds.
TEST(PassDisturbanceTest, CausesExplainTheSlowdown) {
  const PassStep step = LargeStep(9);
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    const PassSimulation noisy =
        *SimulatePasses(step, {.noise_sigma = 0.05,
                               .straggler_share = 0.2,
                               .straggler_factor = 1.1,
                               .slow_links = {{.machine = 3,
                                               .passes = {1, 1.1, 1, 1},
                                               .transfer = 3,
                                               .gradient_reduction = 2}},
                               .seed = seed,
                               .num_steps = 7,
                               .finds_causes = true});
    double sum = 0;
    for (const SlowdownCause& cause : noisy.causes) sum += cause.seconds;
    EXPECT_GE(sum, noisy.step_time_s - noisy.undisturbed_step_time_s - 1e-9);
    EXPECT_TRUE(std::is_sorted(
        noisy.causes.begin(), noisy.causes.end(),
        [](const auto& a, const auto& b) { return a.seconds > b.seconds; }));
  }
}

// Goal: what all ranks share scatters steps and leaves their mean. Method: many
// steps; their mean and deviation are those asked for.
TEST(PassDisturbanceTest, WholeStepsScatter) {
  const PassStep step = LargeStep(2);
  const PassSimulation noisy =
      *SimulatePasses(step, {.step_sigma = 0.03, .seed = 4, .num_steps = 4000});
  double squares = 0;
  for (const double step_s : noisy.step_times_s) {
    squares += std::pow(step_s / noisy.undisturbed_step_time_s - 1, 2);
  }
  // Deviations of the two estimates: 0.03 / sqrt(4000), 0.03 / sqrt(8000).
  EXPECT_NEAR(noisy.step_time_s / noisy.undisturbed_step_time_s, 1, 0.002);
  EXPECT_NEAR(std::sqrt(squares / 4000), 0.03, 0.0015);
}

// Goal: the maximum over thousands of noisy replicas is what it should be.
// Method: one stage without a pipeline, where a replica's time is a sum of m
// log-normal passes, nearly normal: the expected maximum of n is computed from
// the distribution of the maximum.
TEST(PassDisturbanceTest, MaximumOverReplicasIsThatOfItsDistribution) {
  constexpr int32_t kMicrobatches = 64;
  constexpr double kSigma = 0.05;
  PassStep step = StepOf(
      Costs({.stages = 1, .microbatches = kMicrobatches},
            {.forward_s = 1, .input_gradient_s = 1, .weight_gradient_s = 1}),
      Schedule::kOneForwardOneBackward);
  step.num_replicas = 5000;
  const PassSimulation noisy =
      *SimulatePasses(step, {.noise_sigma = kSigma, .seed = 7, .num_steps = 8});
  // Forward 1 and backward 2, apart: variance 1 + 4 a micro-batch.
  const double deviation =
      std::sqrt(5.0 * kMicrobatches * std::expm1(kSigma * kSigma));
  double mean = 0;  // Mean of the largest of 5000 standard normals.
  constexpr int kPoints = 100'000;
  for (int i = 0; i < kPoints; ++i) {
    const double u = (i + 0.5) / kPoints;
    mean += NormalQuantile(std::pow(u, 1.0 / step.num_replicas)) / kPoints;
  }
  // The largest scatters by about 0.35 standard deviations; the mean of 8 by
  // 0.12. Skewness of log-normals adds a little.
  EXPECT_NEAR((noisy.step_time_s - 3.0 * kMicrobatches) / deviation, mean, 0.5);
  EXPECT_EQ(noisy.step_times_s.size(), 8u);
}

// Goal: noise and stragglers only ever add, more of them add more, and equal
// seeds give equal steps.
TEST(PassDisturbanceTest, NoiseGrowsMonotonicallyAndRepeats) {
  const PassStep step = LargeStep(50);
  double previous = StepTime(step);
  for (const double sigma : {0.01, 0.03, 0.1, 0.3}) {
    const PassOptions options = {.noise_sigma = sigma, .seed = 3};
    const double step_time_s = StepTime(step, options);
    EXPECT_GT(step_time_s, previous);
    EXPECT_EQ(step_time_s, StepTime(step, options));
    previous = step_time_s;
  }
  previous = StepTime(step);
  for (const double factor : {1.0, 1.05, 1.2, 2.0}) {
    const double step_time_s = StepTime(
        step, {.straggler_share = 0.05, .straggler_factor = factor, .seed = 3});
    EXPECT_GE(step_time_s, previous);
    previous = step_time_s;
  }
  EXPECT_NE(StepTime(step, {.noise_sigma = 0.1, .seed = 1}),
            StepTime(step, {.noise_sigma = 0.1, .seed = 2}));
}

}  // namespace
}  // namespace millrace
