// The 90 % interval around a predicted step time. The mean step time of a run
// planned with the same profile lies in it in 9 of 10 cases. Two things widen
// it: the model's past errors, and noise.

#ifndef MILLRACE_PLANNER_PROFILE_PREDICTION_INTERVAL_H_
#define MILLRACE_PLANNER_PROFILE_PREDICTION_INTERVAL_H_

#include <span>
#include <string>

#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/profile/profile.h"

namespace millrace {

inline constexpr double kIntervalConfidence = 0.9;
// Steps of equal runs scatter by about so much (0.5 to 2.8 % between the 10th
// and 90th percentile, MLPerf Training logs of Llama 3.1 405B).
inline constexpr double kSupposedNoise = 0.01;

// The band in which the next run's measured over predicted step time lies with
// kIntervalConfidence, if it is like those of `measured_over_predicted`: at
// least one, all above 0. From 19 runs on between order statistics, which
// supposes nothing of how errors are distributed (Vovk et al., "Algorithmic
// Learning in a Random World", 2005); of fewer, by Student's distribution of
// their logarithms, whose scatter is that of equal runs at least.
StepError ErrorOfRuns(std::span<const double> measured_over_predicted,
                      const std::string& source,
                      double run_noise = kSupposedNoise);

// The profile's step_error, or what is supposed of a profile that states none:
// less of one with tables, measured on the machine itself, than of one from
// data sheets. For a mixture of experts no less than how far published runs of
// such models were off, whatever the profile says: they are hardly known yet.
StepError ErrorFor(const ModelSpec& model, const HardwareProfile& profile);

// How equal work scatters on one kind of machine: standard deviations over
// means.
struct StepNoise {
  double pass = 0;  // Of one pass of one micro-batch, from time to time.
  double run = 0;   // Of the mean step of equal runs.
};
// Names of a profile's constants that state them; what measures a profile or
// teaches it fills them (planner/learn/measured_noise.h).
inline constexpr char kPassNoise[] = "pass_noise";
inline constexpr char kRunNoise[] = "run_noise";

// The noise that the profile's constants state. A constant that the profile
// lacks has a supposed value.
StepNoise NoiseFor(const HardwareProfile& profile);

// The effect of noise on the mean step of a run.
struct NoiseEffect {
  double slowdown = 0;   // Share of the step that waiting for others adds.
  double deviation = 0;  // Of its logarithm, between equal runs.
};
// The effect on a layout whose stages wait for each other in every pass and
// whose replicas meet once a step: the slowest of them holds up all (Blom,
// 1958, on the expected maximum of normals). The scatter of equal runs is part
// of an `error` that comes of runs.
NoiseEffect NoiseEffectOf(const StepNoise& noise, const StepError& error,
                          const Layout& layout);

struct StepTimeInterval {
  double low_s;   // At most the prediction,
  double high_s;  // and at least.
};

// `noise` adds to its upper end.
StepTimeInterval IntervalOf(double step_time_s, const StepError& error,
                            const NoiseEffect& noise = {});
// Around the mean of `simulated_steps_s`, of planner/simulate/simulate_passes.h
// under noise, which widen it by their own spread. At least one.
StepTimeInterval IntervalOfSteps(std::span<const double> simulated_steps_s,
                                 const StepError& error);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PREDICTION_INTERVAL_H_
