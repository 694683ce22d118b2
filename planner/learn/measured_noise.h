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

// The scatter of times of equal work, given as logarithms of measured over
// expected. Times that are not AreCredible (planner/learn/outliers.h) are left
// out.
Scatter ScatterOf(std::vector<double> log_ratios);
// The scatter of several kinds of work together, each around its own mean.
Scatter Pooled(std::span<const Scatter> scatters);
// Adds what repeats of equal work took, in seconds, as one more kind of it.
void AddRepeats(std::span<const double> seconds, Scatter* scatter);

// The scatter of the mean step between equal runs, from the steps of one run,
// in order. It is the difference between the eighths of the run (batch means;
// Conway, 1963), since a disturbance that lasts for a while does not average
// out within a run. The median of each eighth counts, as of a run. Nothing is
// compared below eight steps.
Scatter RunScatterOf(std::span<const double> step_times_s);

// The scatter of runs, where little is known of them: from the same work
// measured twice, each given as log(second / first). The scatter is around
// zero: a change that all share is noise too.
Scatter RepeatScatterOf(std::vector<double> log_ratios);
// The indices of the measurements to repeat at the end, by how long each took:
// a few that are long enough for a clock, from first to last.
std::vector<size_t> WhatToRepeat(std::span<const double> seconds);

// Stores the scatter of repeats as the profile's pass_noise and run_noise, if
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
