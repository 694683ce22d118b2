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
// The assumed scatter of equal runs' steps (0.5 to 2.8 % between the 10th and
// 90th percentile in MLPerf Training logs of Llama 3.1 405B).
inline constexpr double kSupposedNoise = 0.01;

// Returns the range that holds the next run's measured over predicted step time
// with kIntervalConfidence, if the run is like those of
// `measured_over_predicted`. There must be at least one, and all must be above
// 0.
//
// From 19 runs on, order statistics give the range and assume nothing about the
// distribution of errors (Vovk et al., "Algorithmic Learning in a Random
// World", 2005). For fewer runs it is Student's distribution of their
// logarithms, with at least the scatter of equal runs.
StepError ErrorOfRuns(std::span<const double> measured_over_predicted,
                      const std::string& source,
                      double run_noise = kSupposedNoise);

// Returns the profile's step_error, or an assumed one if it states none. The
// assumed error is smaller for a profile with tables, which were measured on
// the machine itself, than for one from data sheets. For a mixture of experts
// it is at least the error of published runs of such models, whatever the
// profile states, since little is known of them.
StepError ErrorFor(const ModelSpec& model, const HardwareProfile& profile);

// The scatter of equal work on one kind of machine, as standard deviations over
// means.
struct StepNoise {
  double pass = 0;  // One pass of one micro-batch, repeated.
  double run = 0;   // The mean step of equal runs.
};
// Names of the profile's constants for these values. Measuring and learning
// fill them (planner/learn/measured_noise.h).
inline constexpr char kPassNoise[] = "pass_noise";
inline constexpr char kRunNoise[] = "run_noise";

// Returns the noise that the profile's constants state. A missing constant has
// an assumed value.
StepNoise NoiseFor(const HardwareProfile& profile);

// The effect of noise on the mean step of a run.
struct NoiseEffect {
  double slowdown = 0;  // Share of the step added by waiting for others.
  // Standard deviation of the step's logarithm, between equal runs.
  double deviation = 0;
};
// Returns the effect on a layout whose stages wait for each other in every pass
// and whose replicas meet once a step. The slowest of them delays all (Blom,
// 1958, on the expected maximum of normals). If `error` comes from runs, it
// already includes the scatter of equal runs.
NoiseEffect NoiseEffectOf(const StepNoise& noise, const StepError& error,
                          const Layout& layout);

struct StepTimeInterval {
  double low_s;   // At most the prediction.
  double high_s;  // At least the prediction.
};

// Returns the interval around a predicted time. `noise` raises its upper end.
StepTimeInterval IntervalOf(double step_time_s, const StepError& error,
                            const NoiseEffect& noise = {});
// Returns the interval around the mean of `simulated_steps_s`, steps under
// noise of planner/simulate/simulate_passes.h. Their spread widens it. There
// must be at least one.
StepTimeInterval IntervalOfSteps(std::span<const double> simulated_steps_s,
                                 const StepError& error);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PREDICTION_INTERVAL_H_
