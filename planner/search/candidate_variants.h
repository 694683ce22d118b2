// The second half of the search among executable layouts: layouts that need
// less memory, if the plain ones do not fit, and variants of the fastest.

#ifndef MILLRACE_PLANNER_SEARCH_CANDIDATE_VARIANTS_H_
#define MILLRACE_PLANNER_SEARCH_CANDIDATE_VARIANTS_H_

#include "absl/status/status.h"
#include "planner/cost/op_cost.h"
#include "planner/job/job.h"
#include "planner/search/candidates.h"

namespace millrace {

// SmallerLayouts() of what does not fit; then, of pipelines of which not all
// stages need what lets the fullest fit, in each stage the least recompute with
// which its own Program does. Errors of these functions are
// Candidates::Consider's.
absl::Status ConsiderSmaller(Candidates* candidates);

// List-scheduled variants of the pipelines that come nearest, if their bubble
// is what they lose by; where the job asks for that schedule nothing else is
// left, and InvalidArgument where no layout can have it.
absl::Status ConsiderListed(const CostModel& cost, Candidates* candidates);

// The fastest layouts with what copy engines can do.
absl::Status ConsiderCopyEngines(Candidates* candidates);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_CANDIDATE_VARIANTS_H_
