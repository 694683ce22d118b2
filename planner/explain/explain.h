// Writes a plan as text for people; explain_json.h writes it as JSON for
// programs.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_H_

#include <optional>
#include <string>
#include <vector>

#include "planner/explain/explain_compare.h"
#include "planner/explain/explain_fleet.h"
#include "planner/explain/explain_parts.h"
#include "planner/explain/precision_gain.h"
#include "planner/explain/sensitivity.h"
#include "planner/explain/what_if.h"
#include "planner/job/job.h"
#include "planner/profile/profile.h"
#include "planner/search/plan.h"

namespace millrace {

// The answers to the questions that were asked beside the plan itself. A member
// is empty if its question was not asked.
struct PlanAnswers {
  // If --devices was not given: says where the number of devices comes from.
  std::string devices_from;
  std::optional<LayoutParts> parts;       // Parts of the plan's layout.
  std::vector<SensitivityRow> next_step;  // FindNextStep().
  std::vector<Float8Gain> float8;         // FindFloat8Gains().
  std::vector<SensitivityRow> sensitivity;
  std::vector<LayoutComparison> comparisons;
  std::optional<GoodputReport> goodput;    // If the job asks for it.
  std::optional<DisturbedStep> disturbed;  // By noise and slow devices.
  std::optional<LostNodesAnswer> lost_nodes;
  // AddNeighbours() was skipped because it would have taken long.
  bool leaves_out_neighbours = false;
  // Runs that the profile learnt from. Only JSON uses it; the text reads the
  // profile.
  size_t num_learnt_runs = 0;
  // The plan is for the changed case; `before` is the plan without changes.
  std::vector<ValueChange> changes;
  std::optional<Plan> before;
};

// Returns the table of the choice and the best alternatives, one line each for
// what binds and for the next lever, the answers, and the plan's warnings.
// Lines end with \n and fit 110 columns.
std::string SummarizePlan(const JobSpec& job, const HardwareProfile& profile,
                          const Plan& plan, const PlanAnswers& answers = {});

// Returns the summary with details: where time and memory go, which layout keys
// the job pins, what recompute costs, what the figures are based on, and why
// others lost in whole sentences.
std::string ExplainPlan(const JobSpec& job, const HardwareProfile& profile,
                        const Plan& plan, const PlanAnswers& answers = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_H_
