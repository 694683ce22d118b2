// Compares a layout that the user names with the chosen one, by each part of
// step time and memory. Says why it loses or is impossible.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_COMPARE_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_COMPARE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/explain/explain_parts.h"
#include "planner/explain/what_if.h"
#include "planner/job/job.h"
#include "planner/job/job_keys.h"
#include "planner/search/plan.h"

namespace millrace {

// Returns the keys of the job's section layout that have a fixed value.
std::vector<const JobKey*> PinnedKeys(const JobSpec& job);
// Formats them: "tensor 8, micro_batch 1".
std::string PinsText(const std::vector<const JobKey*>& keys,
                     const JobSpec& job);

struct LayoutComparison {
  std::string asked;  // "tp=4,pp=8".
  // The best layout with the asked values, even if it does not fit into memory.
  // Nothing if there is no such layout.
  std::optional<Plan> plan;
  bool fits = true;
  LayoutParts parts;    // The parts of `plan`.
  std::string verdict;  // "1.23x slower: ...", "needs ... more than ...".
};

// Pins the values that `asked` names and leaves the rest of the layout to the
// planner. `asked` is "NAME=VALUE,..."; a NAME is a key of the job's section
// layout or one of pp, dp, tp, cp, ep, vp, mb. The job's own pins hold too, but
// if its pins on axes contradict `asked`, these are dropped.
//
// `chosen` is the plan for `planned`, and `chosen_parts` its PartsOf(). Returns
// InvalidArgument that names the wrong part of `asked`, what was expected and
// the nearest names. Other errors are those of `planner`.
absl::StatusOr<LayoutComparison> CompareLayout(const std::string& asked,
                                               const PlanningCase& planned,
                                               const Plan& chosen,
                                               const LayoutParts& chosen_parts,
                                               const Planner& planner);

// Writes a table with a line for each part: the value of the chosen layout, the
// value of each comparison, and the difference. Lines end with \n.
std::string ComparisonsTable(const Plan& chosen,
                             const LayoutParts& chosen_parts,
                             const std::vector<LayoutComparison>& comparisons);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_COMPARE_H_
