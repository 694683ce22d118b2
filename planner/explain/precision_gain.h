// Computes what 8-bit products would gain over the plan of a bf16 job.

#ifndef MILLRACE_PLANNER_EXPLAIN_PRECISION_GAIN_H_
#define MILLRACE_PLANNER_EXPLAIN_PRECISION_GAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/explain/what_if.h"
#include "planner/search/plan.h"

namespace millrace {

struct Float8Gain {
  std::string setting;  // Of the job: "training.precision: fp8".
  // The chosen layout with that setting.
  double step_time_s = 0;
  // On the rank that uses most, without what snapshots are staged in.
  int64_t memory_bytes = 0;
  // Not empty: why there is no such figure, for one since the shapes forbid
  // it or the profile has no times of 8-bit products.
  std::string unknown;
};

// The gain of each recipe in 8 bits, if the job trains in bf16, and of
// attention in 8 bits, if the job has it not and the model can. The layout is
// kept, so a search may find more. Empty if the device has no 8-bit products or
// the job trains in fp32. `chosen` is the plan for `planned`.
std::vector<Float8Gain> FindFloat8Gains(const PlanningCase& planned,
                                        const Plan& chosen,
                                        const Planner& planner);

// "423 ms a step with training.precision: fp8, 16.4 % less, and 61.3 GiB a
// rank", or why that is not known; then the next recipe's after a semicolon.
std::string Float8GainText(const Plan& chosen,
                           const std::vector<Float8Gain>& gains);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_PRECISION_GAIN_H_
