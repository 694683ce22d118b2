#include "planner/learn/measured_noise.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/statistics.h"
#include "planner/learn/outliers.h"
#include "planner/profile/prediction_interval.h"

namespace millrace {

Scatter ScatterOf(std::vector<double> log_ratios) {
  if (log_ratios.size() < 2) return {};
  // AreCredible() compares two contradicting values with the expected one, so
  // the expected value must be their middle.
  const double median = MedianOf(log_ratios);
  for (double& ratio : log_ratios) ratio -= median;
  const std::vector<bool> credible = AreCredible(log_ratios);
  double sum = 0, squares = 0;
  int64_t count = 0;
  for (size_t i = 0; i < log_ratios.size(); ++i) {
    if (!credible[i]) continue;
    sum += log_ratios[i];
    squares += log_ratios[i] * log_ratios[i];
    ++count;
  }
  if (count < 2) return {};
  const auto n = static_cast<double>(count);
  const double variance = std::max(0.0, squares - sum * sum / n) / (n - 1);
  return {.deviation = std::sqrt(variance), .num_compared = count - 1};
}

Scatter Pooled(std::span<const Scatter> scatters) {
  double squares = 0;
  Scatter pooled;
  for (const Scatter& scatter : scatters) {
    squares += scatter.deviation * scatter.deviation *
               static_cast<double>(scatter.num_compared);
    pooled.num_compared += scatter.num_compared;
  }
  if (pooled.num_compared > 0) {
    pooled.deviation =
        std::sqrt(squares / static_cast<double>(pooled.num_compared));
  }
  return pooled;
}

void AddRepeats(std::span<const double> seconds, Scatter* scatter) {
  std::vector<double> logs;
  for (const double repeat : seconds) logs.push_back(std::log(repeat));
  const Scatter both[] = {*scatter, ScatterOf(std::move(logs))};
  *scatter = Pooled(both);
}

Scatter RunScatterOf(std::span<const double> step_times_s) {
  constexpr size_t kNumBatches = 8;
  if (step_times_s.size() < kNumBatches) return {};
  std::vector<double> logs;
  for (size_t i = 0; i < kNumBatches; ++i) {
    const size_t begin = i * step_times_s.size() / kNumBatches;
    const size_t end = (i + 1) * step_times_s.size() / kNumBatches;
    logs.push_back(std::log(MedianOf(std::vector<double>(
        step_times_s.begin() + static_cast<ptrdiff_t>(begin),
        step_times_s.begin() + static_cast<ptrdiff_t>(end)))));
  }
  return ScatterOf(std::move(logs));
}

Scatter RepeatScatterOf(std::vector<double> log_ratios) {
  const std::vector<bool> credible = AreCredible(log_ratios);
  double squares = 0;
  Scatter scatter;
  for (size_t i = 0; i < log_ratios.size(); ++i) {
    if (!credible[i]) continue;
    // The difference of two has twice the variance of one.
    squares += log_ratios[i] * log_ratios[i] / 2;
    ++scatter.num_compared;
  }
  if (scatter.num_compared == 0) return {};
  scatter.deviation =
      std::sqrt(squares / static_cast<double>(scatter.num_compared));
  return scatter;
}

std::vector<size_t> WhatToRepeat(std::span<const double> seconds) {
  constexpr double kLongEnough = 2e-5;
  constexpr size_t kMost = 10;
  std::vector<size_t> candidates;
  for (size_t i = 0; i < seconds.size(); ++i) {
    if (seconds[i] >= kLongEnough) candidates.push_back(i);
  }
  if (candidates.size() <= kMost) return candidates;
  std::vector<size_t> chosen;
  for (size_t i = 0; i < kMost; ++i) {
    chosen.push_back(candidates[i * (candidates.size() - 1) / (kMost - 1)]);
  }
  return chosen;
}

void RecordNoise(const Scatter& passes, const Scatter& runs,
                 HardwareProfile* profile) {
  const StepNoise supposed = NoiseFor(*profile);
  const auto record = [&](const char* name, double value,
                          const Scatter& measured, const char* source) {
    if (measured.num_compared < kLeastCompared) return;
    ModelConstant* const noise = NoiseConstant(name, value, profile);
    noise->value = BoundedNoise(measured.deviation);
    noise->source = source;
  };
  record(kPassNoise, supposed.pass, passes,
         "millrace profile: repeats of each op, one after another");
  record(kRunNoise, supposed.run, runs,
         "millrace profile: some ops measured again at its end");
}

double BoundedNoise(double deviation) {
  return std::clamp(deviation, 1e-4, 1.0);
}

ModelConstant* NoiseConstant(const std::string& name, double supposed,
                             HardwareProfile* profile) {
  std::vector<ModelConstant>& constants = profile->constants;
  const auto found = std::ranges::find(constants, name, &ModelConstant::name);
  if (found != constants.end()) return &*found;
  constants.push_back({.name = name, .value = supposed, .source = ""});
  return &constants.back();
}

}  // namespace millrace
