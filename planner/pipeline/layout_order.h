// The order of passes of a layout with Schedule::kListScheduled.

#ifndef MILLRACE_PLANNER_PIPELINE_LAYOUT_ORDER_H_
#define MILLRACE_PLANNER_PIPELINE_LAYOUT_ORDER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/layout/layout.h"
#include "planner/pipeline/passes.h"

namespace millrace {

// Results of each direction that a stage's Program keeps on their way to its
// neighbour: the pass after these waits until the first has left.
inline constexpr int32_t kTransferBuffers = 2;

// The order of all stages, a function of the costs that the layout carries, so
// that planner and workers have the same. Stage 0, which no other waits for,
// runs both gradients together where one follows the other. `layout` must pass
// ValidateLayout and have that schedule. The micro-batches are those of a data
// replica, by default of one that has the most.
absl::StatusOr<PassOrder> ListedOrder(const Layout& layout,
                                      int32_t data_idx = 0);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_LAYOUT_ORDER_H_
