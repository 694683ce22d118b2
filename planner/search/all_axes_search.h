// Searches over all mesh axes, including those that workers cannot execute yet.
// FindPlan() uses it where NeedsAllAxes() says so, or where
// SearchInput::all_axes asks.

#ifndef MILLRACE_PLANNER_SEARCH_ALL_AXES_SEARCH_H_
#define MILLRACE_PLANNER_SEARCH_ALL_AXES_SEARCH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"
#include "planner/search/instruction_finalists.h"
#include "planner/search/search.h"

namespace millrace {

struct PlannedChoice {
  // Layouts that fit, at least one. Those that were simulated come first,
  // fastest first.
  std::vector<Alternative> best;
  // The optimality gap of the choice by the closed form. Absent where the job
  // asks for list scheduling, whose orders the closed form does not price.
  std::optional<double> optimality_gap;
  int64_t layouts_considered = 0;
  std::vector<RecomputeCandidate> recompute_prices;  // As in Plan, of the best.
  // The simulation of the best by instructions, where it had the last word.
  std::optional<LoweredStep> lowered;
};

// OK where the profile's device multiplies in the format; products of another
// would run in one that it has. Else InvalidArgument naming device and key.
absl::Status CheckFormat(GemmFormat format, const HardwareProfile& profile);

// The fastest layouts by planner/cost/closed_form.h, under both orders of the
// mesh axes, in the order of their steps simulated by passes
// (planner/simulate/simulate_passes.h), as many as that stays quick for. The
// last of `best` may be the fastest one that workers can execute, where none of
// the others is. Where the job asks for list scheduling, only what that orders
// the passes of.
//
// Returns InvalidArgument when no layout is possible or none fits, as FindPlan,
// or for a profile without device or network.
absl::StatusOr<PlannedChoice> FindPlannedLayouts(const SearchInput& input,
                                                 const CostModel& cost,
                                                 int64_t memory_limit);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_ALL_AXES_SEARCH_H_
