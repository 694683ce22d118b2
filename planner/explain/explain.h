// A Plan for people; planner/explain/explain_json.h has it for programs.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_H_

#include <optional>
#include <string>
#include <vector>

#include "planner/explain/explain_compare.h"
#include "planner/explain/explain_parts.h"
#include "planner/explain/explain_templates.h"
#include "planner/explain/sensitivity.h"
#include "planner/explain/what_if.h"
#include "planner/fleet/disturbance.h"
#include "planner/fleet/goodput.h"
#include "planner/job/job.h"
#include "planner/profile/profile.h"
#include "planner/search/plan.h"

namespace millrace {

// What was asked beside the plan itself; what was not is empty.
struct PlanAnswers {
  // Where nobody said how many devices: how many, and what did instead.
  std::string devices_from;
  std::optional<LayoutParts> parts;       // Of the plan's layout.
  std::vector<SensitivityRow> next_step;  // FindNextStep().
  std::vector<SensitivityRow> sensitivity;
  std::vector<LayoutComparison> comparisons;
  std::optional<GoodputReport> goodput;    // Where the job asks.
  std::optional<DisturbedStep> disturbed;  // By noise and what is slow.
  std::optional<LostNodesAnswer> lost_nodes;
  // AddNeighbours() would have taken long.
  bool leaves_out_neighbours = false;
  // Runs that the profile learnt from, for programs; people are told anyway.
  size_t num_calibration_runs = 0;
  // The plan is for the changed case; `before` is the one without.
  std::vector<ValueChange> changes;
  std::optional<Plan> before;
};

// The choice, its predicted time and memory, what binds, the best alternatives
// with the reason each lost, the answers, and the plan's warnings. Lines end
// with \n.
std::string ExplainPlan(const JobSpec& job, const HardwareProfile& profile,
                        const Plan& plan, const PlanAnswers& answers = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_H_
