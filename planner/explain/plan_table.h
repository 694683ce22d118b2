// Writes the table of a plan: the chosen layout and why others lost.

#ifndef MILLRACE_PLANNER_EXPLAIN_PLAN_TABLE_H_
#define MILLRACE_PLANNER_EXPLAIN_PLAN_TABLE_H_

#include <string>

#include "planner/search/search.h"

namespace millrace {

// Writes a row for each layout: its short name (layout_name.h), step time,
// memory of the most loaded rank, MFU, and why it lost. The choice comes first,
// then up to ten alternatives, best first. Leaves out layouts that differ from
// a row above only in their chunks. Notes below the table explain step times by
// another model than the choice's and count the alternatives that are left out.
// Lines fit the page and end with \n.
std::string PlanTable(const Plan& plan);

// Writes each alternative of the table in words with its whole reason. Empty if
// there are none. Lines fit the page and end with \n.
std::string ReasonsInFull(const Plan& plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_PLAN_TABLE_H_
