// Explains the part of a step's time that ops do not account for: ranks wait
// for one another, or share their cores in another way than the measurement of
// one product showed.

#ifndef MILLRACE_PLANNER_LEARN_UNEXPLAINED_TIME_H_
#define MILLRACE_PLANNER_LEARN_UNEXPLAINED_TIME_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/profile/profile.h"
#include "planner/program/program.h"

namespace millrace {

struct StepClosure {
  // Values with which the simulated step takes as long as the measured one, or
  // as near to it as the limits of planner/learn/learn_from_run.h allow.
  double arrival_spread = 0;
  double contention_scale = 1;  // For factors of two ranks or more.
  // Values that were not learnt, and why. May be empty.
  std::string refused;
};

// If ranks meet in collectives, the arrival spread explains missing time. The
// way cores are shared explains excess time, and missing time without
// collectives. Differences below half a percent are ignored.
absl::StatusOr<StepClosure> CloseStep(const std::vector<Program>& programs,
                                      const CostModel& cost, double measured_s);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_UNEXPLAINED_TIME_H_
