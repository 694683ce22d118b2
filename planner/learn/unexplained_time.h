// Explains the part of a step's time that its ops do not account for: ranks
// that wait for one another, or cores that are shared differently than one
// product showed.

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
  // With which the simulated step takes as long as the measured one, or as near
  // to it as the limits of planner/learn/learn_from_run.h allow.
  double arrival_spread = 0;
  double contention_scale = 1;  // On the factors of two ranks and more.
  std::string refused;          // What was not learnt, and why; or empty.
};

// Where ranks meet in collectives, the arrival spread explains what is missing;
// what is too much, or missing without collectives, is how cores are shared.
// Differences below half a percent are left alone.
absl::StatusOr<StepClosure> CloseStep(const std::vector<Program>& programs,
                                      const CostModel& cost, double measured_s);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_UNEXPLAINED_TIME_H_
