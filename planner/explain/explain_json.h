// A Plan for programs: one JSON object.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_JSON_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_JSON_H_

#include <string>

#include "planner/explain/explain.h"
#include "planner/search/plan.h"

namespace millrace {

// Indented, with the keys of docs/plan.md. A figure that the plan has no basis
// for and an answer that was not asked for are left out.
std::string PlanToJson(const Plan& plan, const PlanAnswers& answers = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_JSON_H_
