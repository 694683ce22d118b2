// The table of a plan: the chosen layout and, below it, why others lost.

#ifndef MILLRACE_PLANNER_EXPLAIN_PLAN_TABLE_H_
#define MILLRACE_PLANNER_EXPLAIN_PLAN_TABLE_H_

#include <string>

#include "planner/search/search.h"

namespace millrace {

// A row a layout with its short name (layout_name.h), step time, memory of the
// most loaded rank, MFU and why it is not the choice: the choice first, then
// the best ten alternatives, without those that differ from a row above in
// their chunks alone. Notes below the table say which step times are by another
// model than the choice's, and how many alternatives are left out. Lines fit
// the page and end with \n.
std::string PlanTable(const Plan& plan);

// The layouts of the table's alternatives in words, each with its whole reason.
// Empty where there are none. Lines fit the page and end with \n.
std::string ReasonsInFull(const Plan& plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_PLAN_TABLE_H_
