// Computes how much the times of equal work scatter on a machine, and stores it
// in the profile as pass_noise and run_noise
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

// Returns the scatter of times of equal work, given as logarithms of measured
// over expected. Leaves out times that are not AreCredible()
// (planner/learn/outliers.h).
Scatter ScatterOf(std::vector<double> log_ratios);
// Returns the scatter of several kinds of work together, each around its own
// mean.
Scatter Pooled(std::span<const Scatter> scatters);
// Adds the times of repeats of equal work, in seconds, as one more kind of
// work.
void AddRepeats(std::span<const double> seconds, Scatter* scatter);

// Returns the scatter of the mean step between equal runs, computed from the
// steps of one run in order. The steps are cut into eighths, and the eighths'
// medians are compared like runs (batch means; Conway, 1963), because a
// disturbance that lasts for a while does not average out within a run.
// Compares nothing if there are fewer than eight steps.
Scatter RunScatterOf(std::span<const double> step_times_s);

// Returns the scatter of runs from a few works measured twice, each given as
// log(second / first). Deviations count from zero, since a change that all
// works share is noise too.
Scatter RepeatScatterOf(std::vector<double> log_ratios);
// Returns the indices of the measurements to repeat at the end: a few that are
// long enough for a clock, spread from first to last. `seconds` says how long
// each took.
std::vector<size_t> WhatToRepeat(std::span<const double> seconds);

// Stores the scatter of repeats as the profile's pass_noise and run_noise, if
// enough was compared.
void RecordNoise(const Scatter& passes, const Scatter& runs,
                 HardwareProfile* profile);

// The least number of comparisons. A deviation from six comparisons has an
// error of a third.
inline constexpr int64_t kLeastCompared = 6;
// Returns the deviation within the limits of profiles: above 0, at most 1.
double BoundedNoise(double deviation);

// Returns the profile's constant of this name; adds it with the value
// `supposed` if it is missing. Borrowed until the constants change.
ModelConstant* NoiseConstant(const std::string& name, double supposed,
                             HardwareProfile* profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_MEASURED_NOISE_H_
