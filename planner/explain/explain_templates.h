// Prints the plans for lost nodes (planner/fleet/plan_templates.h), as
// `millrace plan --lost-nodes` shows them.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_TEMPLATES_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_TEMPLATES_H_

#include <string>
#include <vector>

#include "planner/fleet/plan_templates.h"

namespace millrace {

// A template, and in seconds how long a job waits for its next plan when so
// many nodes are lost.
struct LostNodesRow {
  PlanTemplate plan;
  double look_up_s = 0;  // With the template.
  // Without, by the closed form alone (SearchInput::simulates); 0 for a plan
  // that holds.
  double anew_s = 0;
};

struct LostNodesAnswer {
  int32_t devices_per_node = 1;
  std::vector<LostNodesRow> rows;  // By nodes lost, from 0.
  std::string end;  // Why there are no more, where more were asked for.
};

// "lost  devices  idle ...": a row for each. Lines end with \n.
std::string LostNodesTable(const LostNodesAnswer& answer);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_TEMPLATES_H_
