// A Plan for people and for programs.

#ifndef MILLRACE_PLANNER_EXPLAIN_H_
#define MILLRACE_PLANNER_EXPLAIN_H_

#include <string>

#include "planner/job.h"
#include "planner/profile.h"
#include "planner/search.h"

namespace millrace {

// The choice, its predicted time and memory, the best alternatives with the
// reason each lost, and the plan's warnings. Lines end with \n.
std::string ExplainPlan(const JobSpec& job, const HardwareProfile& profile,
                        const Plan& plan);

// One JSON object, indented, with the keys of docs/plan.md. A figure that the
// plan has no basis for is left out.
std::string PlanToJson(const Plan& plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_H_
