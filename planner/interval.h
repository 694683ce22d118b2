// The interval around a predicted step time: in 9 of 10 cases the mean step
// time of a run, planned with the same profile, lies in it.

#ifndef MILLRACE_PLANNER_INTERVAL_H_
#define MILLRACE_PLANNER_INTERVAL_H_

#include <span>
#include <string>

#include "planner/model.h"
#include "planner/profile.h"

namespace millrace {

inline constexpr double kIntervalConfidence = 0.9;

// The band in which the next run's measured over predicted step time lies with
// kIntervalConfidence, if it is like those of `measured_over_predicted`: at
// least one, all above 0. From 19 runs on between order statistics, which
// supposes nothing of how errors are distributed (Vovk et al., "Algorithmic
// Learning in a Random World", 2005); of fewer, by Student's distribution of
// their logarithms.
StepError ErrorOfRuns(std::span<const double> measured_over_predicted,
                      const std::string& source);

// The profile's step_error, or what is supposed of a profile that states none:
// less of one with tables, measured on the machine itself, than of one from
// data sheets. For a mixture of experts no less than how far published runs of
// such models were off, whatever the profile says: they are hardly known yet.
StepError ErrorFor(const ModelSpec& model, const HardwareProfile& profile);

struct StepTimeInterval {
  double low_s;   // At most the prediction,
  double high_s;  // and at least.
};

// `simulated_steps_s`, of planner/cluster_simulate.h under noise, widen it by
// their own spread; fewer than two do not.
StepTimeInterval IntervalOf(double step_time_s, const StepError& error,
                            std::span<const double> simulated_steps_s = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_INTERVAL_H_
