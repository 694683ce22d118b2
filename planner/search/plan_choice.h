// The choice among finalists, and the Plan of it.

#ifndef MILLRACE_PLANNER_SEARCH_PLAN_CHOICE_H_
#define MILLRACE_PLANNER_SEARCH_PLAN_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/cost/op_cost.h"
#include "planner/job/layout_space.h"
#include "planner/search/finalist.h"
#include "planner/search/instruction_finalists.h"
#include "planner/search/plan.h"

namespace millrace {

// Whether list scheduling orders the passes.
bool IsListed(const Finalist& finalist);

// The finest model that has priced both.
PriceModel FinestCommonModel(const Finalist& a, const Finalist& b);

// The index of the fastest finalist that fits. Lowered ones compare by
// instructions. The fastest of the others replaces the fastest lowered one if
// it is faster by the finest model that has priced both, and if its time by
// that model is below the lowered one's by instructions too: variants with copy
// engines or list scheduling gain what only instructions see.
//
// `may_be_too_large`: whether a layout may be chosen that has too many
// instructions to be lowered. `only_listed`: whether only list-scheduled
// layouts may be chosen. Nothing if no finalist is left.
std::optional<size_t> ChosenOf(const std::vector<Finalist>& finalists,
                               bool may_be_too_large, bool only_listed);

// The plan for `space` with the finalist `chosen` and the others as
// alternatives. `lowered` must hold the chosen layout if it was simulated by
// instructions. Leaves out what only the search knows: figures of the search
// itself, prices of recompute, and warnings.
Plan PlanOf(const LayoutSpace& space, const std::vector<Finalist>& finalists,
            size_t chosen, int64_t memory_limit,
            std::optional<LoweredStep> lowered);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_PLAN_CHOICE_H_
