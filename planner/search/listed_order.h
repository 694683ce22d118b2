// List scheduling for steps that are simulated by passes, with any chunks and
// axes. planner/search/listed_variant.h does it for layouts that workers can
// execute.

#ifndef MILLRACE_PLANNER_SEARCH_LISTED_ORDER_H_
#define MILLRACE_PLANNER_SEARCH_LISTED_ORDER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/layout/layout.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {

// Sets the order of `step` to the one that list scheduling makes if the passes
// of each stage hold no more than `bytes` (by stage) at once. The order depends
// on both arguments alone. Errors are ListSchedule's.
absl::Status ListPasses(const std::vector<int64_t>& bytes, PassStep* step);

struct ListedPasses {
  std::vector<int64_t> bytes;  // For ListPasses().
  // The bytes that the fullest stage holds more with this order than with the
  // layout's own order by the closed form; negative if it holds less.
  int64_t more_bytes = 0;
  PassSimulation simulation;
};

// The order that list scheduling makes of `step`, the passes of `layout`, in
// the memory that each stage has beside them. Nothing where it is not faster
// than `known_s`, where a stage has no room for one micro-batch, and for
// layouts that gain nothing by it: of one stage, or of passes that reduce
// gradients.
absl::StatusOr<std::optional<ListedPasses>> FindListedOrder(
    const Layout& layout, PassStep step, const PassOptions& options,
    int64_t memory_limit, double known_s, StepModel& model);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_LISTED_ORDER_H_
