// Describes in words what noise, slow devices and slow links do to a plan.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_DISTURBANCE_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_DISTURBANCE_H_

#include <string>
#include <vector>

#include "planner/fleet/disturbance.h"

namespace millrace {

// Lines without \n: "61.2 s expected, 4.3 % slower ...", how the steps scatter,
// and one for each of the main causes.
std::vector<std::string> DisturbanceLines(const DisturbedStep& disturbed);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_DISTURBANCE_H_
