// Writes a plan as one JSON object for programs.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_JSON_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_JSON_H_

#include <string>

#include "planner/explain/explain.h"
#include "planner/search/plan.h"

namespace millrace {

// Returns indented text with the keys of docs/plan.md. Leaves out figures that
// the plan has no basis for and answers that were not asked for.
std::string PlanToJson(const Plan& plan, const PlanAnswers& answers = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_JSON_H_
