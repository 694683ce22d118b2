// How equal work scatters on a machine, from what was measured there: what
// fills the constants pass_noise and run_noise of its profile
// (planner/profile/prediction_interval.h).

#ifndef MILLRACE_PLANNER_LEARN_MEASURED_NOISE_H_
#define MILLRACE_PLANNER_LEARN_MEASURED_NOISE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/profile/profile.h"

namespace millrace {

struct Scatter {
  double deviation = 0;      // Standard deviation of log(time).
  int64_t num_compared = 0;  // Degrees of freedom; 0: nothing was compared.
  friend bool operator==(const Scatter&, const Scatter&) = default;
};

// Of times of equal work, given as logarithms of measured over expected; those
// that are not AreCredible (planner/learn/outliers.h) are left out.
Scatter ScatterOf(std::vector<double> log_ratios);
// Of several kinds of work, each around its own mean.
Scatter Pooled(std::span<const Scatter> scatters);
// Adds what repeats of equal work took, in seconds, as one more kind of it.
void AddRepeats(std::span<const double> seconds, Scatter* scatter);

// Of the mean step between equal runs, from the steps of one, in order: by how
// much its eighths differ (batch means; Conway, 1963), as what disturbs a
// machine for a while does not average out within a run. Of each eighth the
// median counts, as of a run. Nothing is compared below eight steps.
Scatter RunScatterOf(std::span<const double> step_times_s);

// Of runs, where little is known of them: from the same measured twice, each
// given as log(second / first). Around zero: that all changed alike is noise.
Scatter RepeatScatterOf(std::vector<double> log_ratios);
// Which of what took so long to measure again for it, at the end: a few that
// are long enough for a clock, from first to last.
std::vector<size_t> WhatToRepeat(std::span<const double> seconds);

// What repeats showed becomes the profile's pass_noise and run_noise, where
// enough was compared.
void RecordNoise(const Scatter& passes, const Scatter& runs,
                 HardwareProfile* profile);

// Fewer comparisons say little of a deviation: with six it errs by a third.
inline constexpr int64_t kLeastCompared = 6;
// A deviation of noise as profiles keep it: above nothing, at most all.
double BoundedNoise(double deviation);

// The profile's constant of this name, added with `supposed` where it lacks it.
// Borrowed, until the constants change.
ModelConstant* NoiseConstant(const std::string& name, double supposed,
                             HardwareProfile* profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_MEASURED_NOISE_H_
