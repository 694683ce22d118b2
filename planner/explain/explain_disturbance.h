// What noise, slow devices and slow links make of a plan, told.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_DISTURBANCE_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_DISTURBANCE_H_

#include <string>

#include "planner/fleet/disturbance.h"

namespace millrace {

// "61.2 s expected, 4.3 % slower; of 100 steps 5 % take less than 60.8 s, ...",
// and a line for each of the main causes. Lines after the first are indented by
// `indent`; the last one has no \n.
std::string DisturbanceText(const DisturbedStep& disturbed, int indent);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_DISTURBANCE_H_
