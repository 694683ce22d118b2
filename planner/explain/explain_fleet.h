// Describes the answers of planner/fleet in words: failures, disturbances and
// lost nodes.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_FLEET_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_FLEET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/fleet/disturbance.h"
#include "planner/fleet/goodput.h"
#include "planner/fleet/plan_templates.h"

namespace millrace {

// "94.1 % of the time trains (checkpoints ...): a failure every ..., a
// checkpoint every 120 steps or ...; 1.2 M tokens/s".
std::string GoodputText(const GoodputReport& report);

// Returns lines without \n: "61.2 s expected, 4.3 % slower ...", how the steps
// scatter, and one for each main cause.
std::vector<std::string> DisturbanceLines(const DisturbedStep& disturbed);

// A template for a number of lost nodes, and the seconds that a job would wait
// for its plan.
struct LostNodesRow {
  PlanTemplate plan;
  double look_up_s = 0;  // Looking up the template.
  // Planning without a template, by the closed form alone
  // (SearchInput::simulates). It is 0 if the plan stays.
  double anew_s = 0;
};

struct LostNodesAnswer {
  int32_t devices_per_node = 1;
  std::vector<LostNodesRow> rows;  // Indexed by lost nodes, from 0.
  std::string end;                 // Why the table ends early; may be empty.
};

// Writes a table "lost  devices  idle ..." with a line for each row. Lines end
// with \n.
std::string LostNodesTable(const LostNodesAnswer& answer);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_FLEET_H_
