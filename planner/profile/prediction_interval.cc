#include "planner/profile/prediction_interval.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "planner/profile/seeded_noise.h"

namespace millrace {
namespace {

constexpr double kTail = (1 - kIntervalConfidence) / 2;

// The assumed scatter of errors between layouts. A single run tells nothing
// about it.
constexpr double kBetweenLayouts = 0.04;

// From so many runs on, the outermost order statistics leave at most kTail on
// either side.
constexpr size_t kEnoughForOrder = 19;

// Returns Student's quantile at 1 - kTail.
double StudentQuantile(size_t degrees_of_freedom) {
  const boost::math::students_t distribution(
      static_cast<double>(degrees_of_freedom));
  return boost::math::quantile(boost::math::complement(distribution, kTail));
}

struct Moments {
  double mean = 0;
  double deviation = 0;
};
Moments MomentsOf(const std::vector<double>& values) {
  Moments moments;
  for (const double value : values) moments.mean += value;
  moments.mean /= static_cast<double>(values.size());
  for (const double value : values) {
    moments.deviation += (value - moments.mean) * (value - moments.mean);
  }
  if (values.size() > 1) {
    moments.deviation =
        std::sqrt(moments.deviation / static_cast<double>(values.size() - 1));
  }
  return moments;
}

std::vector<double> SortedLogs(std::span<const double> values) {
  std::vector<double> logs;
  for (const double value : values) {
    CHECK(value > 0) << value;
    logs.push_back(std::log(value));
  }
  std::sort(logs.begin(), logs.end());
  return logs;
}

}  // namespace

StepError ErrorOfRuns(std::span<const double> measured_over_predicted,
                      const std::string& source, double run_noise) {
  CHECK(!measured_over_predicted.empty());
  const std::vector<double> logs = SortedLogs(measured_over_predicted);
  const size_t n = logs.size();
  double low = 0, high = 0;
  if (n >= kEnoughForOrder) {
    // The next value is below the k-th of n with probability k / (n + 1).
    const auto k =
        static_cast<size_t>(kTail * static_cast<double>(n + 1) * (1 + 1e-12));
    low = logs[k - 1];
    high = logs[n - k];
  } else {
    const Moments moments = MomentsOf(logs);
    const double deviation = n == 1 ? std::hypot(kBetweenLayouts, run_noise)
                                    : std::max(moments.deviation, run_noise);
    const double quantile =
        n == 1 ? NormalQuantile(1 - kTail) : StudentQuantile(n - 1);
    const double half =
        quantile * deviation * std::sqrt(1 + 1 / static_cast<double>(n));
    low = moments.mean - half;
    high = moments.mean + half;
  }
  return {.low = std::exp(low),
          .high = std::exp(high),
          .num_runs = static_cast<int32_t>(n),
          .source = source};
}

StepError ErrorFor(const ModelSpec& model, const HardwareProfile& profile) {
  StepError error = profile.step_error;
  if (!error.is_given()) {
    // Plans from a machine's tables, before anything was learnt from its steps,
    // were 1 to 16 % too fast on H200
    // (docs/results/2026-11-21-training-h200.md, "as first measured"). Plans
    // from data sheets must be within 25 % for 19 of 20 published runs.
    error = profile.gemms.empty()
                ? StepError{.low = 0.8,
                            .high = 1.25,
                            .source = "supposed of any data sheet"}
                : StepError{.low = 0.95,
                            .high = 1.2,
                            .source = "supposed of any machine's tables"};
  }
  if (model.moe.num_experts > 0) {
    // From 54 published runs of quality A- to A+ on the shipped profiles. They
    // were predicted without recipes
    // (tests/data/published_runs/frameworks.yaml), since a job names none. A
    // few models take three times as long as predicted.
    error.low = std::min(error.low, 0.68);
    error.high = std::max(error.high, 3.2);
    error.source = "published runs of mixtures of experts";
  }
  return error;
}

StepNoise NoiseFor(const HardwareProfile& profile) {
  StepNoise noise = {.pass = kSupposedNoise, .run = kSupposedNoise};
  for (const ModelConstant& constant : profile.constants) {
    if (constant.name == kPassNoise) noise.pass = constant.value;
    if (constant.name == kRunNoise) noise.run = constant.value;
  }
  return noise;
}

NoiseEffect NoiseEffectOf(const StepNoise& noise, const StepError& error,
                          const Layout& layout) {
  const double stages = layout.pipeline;
  const double passes =
      static_cast<double>(layout.most_microbatches()) * layout.interleave;
  // The time that a replica's stages wait for each other, and the differences
  // between replicas. The formulas were fitted to
  // planner/simulate/simulate_passes.h for 1 to 16 stages, 8 to 64 passes and 1
  // to 512 replicas.
  const double among_stages = noise.pass * std::pow(1 - 1 / stages, 1.2) *
                              passes / (passes + 1.6 * stages);
  // Passes are independent. A third of their time is forward, the rest
  // backward.
  constexpr double kVarianceOfPass = (1.0 + 4.0) / 9;
  const double deviation = noise.pass *
                           std::sqrt(kVarianceOfPass / (passes + stages - 1)) *
                           std::pow(stages, -1.0 / 6);
  return {.slowdown = among_stages + deviation * LargestOfNormals(layout.data),
          .deviation = error.num_runs > 0 ? 0 : noise.run};
}

namespace {

StepTimeInterval Widened(double step_time_s, const StepError& error,
                         double deviation) {
  const double centre = (std::log(error.low) + std::log(error.high)) / 2;
  const double half =
      std::hypot((std::log(error.high) - std::log(error.low)) / 2,
                 NormalQuantile(1 - kTail) * deviation);
  return {.low_s = step_time_s * std::min(1.0, std::exp(centre - half)),
          .high_s = step_time_s * std::max(1.0, std::exp(centre + half))};
}

}  // namespace

StepTimeInterval IntervalOf(double step_time_s, const StepError& error,
                            const NoiseEffect& noise) {
  StepTimeInterval interval = Widened(step_time_s, error, noise.deviation);
  interval.high_s *= 1 + noise.slowdown;
  return interval;
}

StepTimeInterval IntervalOfSteps(std::span<const double> simulated_steps_s,
                                 const StepError& error) {
  CHECK(!simulated_steps_s.empty());
  const double mean_s =
      std::accumulate(simulated_steps_s.begin(), simulated_steps_s.end(), 0.0) /
      static_cast<double>(simulated_steps_s.size());
  return Widened(mean_s, error,
                 MomentsOf(SortedLogs(simulated_steps_s)).deviation);
}

}  // namespace millrace
