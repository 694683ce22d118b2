// Describes in words what a plan yields over weeks with failures.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_GOODPUT_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_GOODPUT_H_

#include <string>

#include "planner/fleet/goodput.h"

namespace millrace {

// "94.1 % of the time trains (checkpoints ...): a failure every ..., a
// checkpoint every 120 steps or ...; 1.2 M tokens/s".
std::string GoodputText(const GoodputReport& report);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_GOODPUT_H_
