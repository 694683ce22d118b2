// Compares a layout that the user names with the chosen one: each part of step
// time and memory, and why it loses or is impossible.

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

// The keys of the job's section layout that leave the planner no choice.
std::vector<const JobKey*> PinnedKeys(const JobSpec& job);
// "tensor 8, micro_batch 1".
std::string PinsText(const std::vector<const JobKey*>& keys,
                     const JobSpec& job);

struct LayoutComparison {
  std::string asked;  // "tp=4,pp=8".
  // The best layout with what was asked, also where it does not fit. Nothing:
  // there is none.
  std::optional<Plan> plan;
  bool fits = true;
  LayoutParts parts;    // Of `plan`.
  std::string verdict;  // "1.23x slower: ...", "needs ... more than ...".
};

// Pins what `asked` names, and leaves the rest of the layout to the planner,
// with the job's own pins, or without those on axes where these contradict:
// "NAME=VALUE,...", NAME a key of the job's section layout or pp, dp, tp, cp,
// ep, vp, mb.
// `chosen` is the plan for `planned`, and `chosen_parts` its PartsOf().
//
// InvalidArgument naming the part of `asked` that is wrong, what was expected
// and the nearest names; other errors are `planner`'s.
absl::StatusOr<LayoutComparison> CompareLayout(const std::string& asked,
                                               const PlanningCase& planned,
                                               const Plan& chosen,
                                               const LayoutParts& chosen_parts,
                                               const Planner& planner);

// Side by side, a line a part: the chosen layout's, each comparison's and the
// difference. Lines end with \n.
std::string ComparisonsTable(const Plan& chosen,
                             const LayoutParts& chosen_parts,
                             const std::vector<LayoutComparison>& comparisons);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_COMPARE_H_
