// List scheduling of a pipeline: the order of each stage's passes from what
// they cost. Weight gradients fill what would be bubbles as far as memory lets
// them wait.

#ifndef MILLRACE_PLANNER_PIPELINE_LIST_SCHEDULE_H_
#define MILLRACE_PLANNER_PIPELINE_LIST_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/pipeline/order_times.h"
#include "planner/pipeline/passes.h"

namespace millrace {

// The limits of an order besides the dependencies between passes.
struct ListLimits {
  // By stage: the limit on what passes hold by PipelineCosts. Empty: none.
  std::vector<int64_t> memory_bytes;
  // As in TimeOrder().
  int32_t transfer_buffers = 0;
};

struct ListedSchedule {
  PassOrder order;
  OrderTimes times;
  // A lower bound over all orders (planner/pipeline/order_bound.h).
  double lower_bound_s = 0;
};

// The quickest order found: the known orders that fit (1F1B, interleaved,
// ZB-H1, where chunks are placed as they mean) and greedy list schedules under
// many priorities and warm-up depths, the best of them improved by moving
// passes on the critical path. Never slower than a known order that keeps the
// limits. Micro-batches pass each chunk in their order. Deterministic; the work
// is bounded, less than a fifth of a second for 100,000 passes.
//
// InvalidArgument for costs whose parts do not fit each other or are negative,
// and for a limit below what one micro-batch needs on a stage, naming both.
absl::StatusOr<ListedSchedule> ListSchedule(const PipelineCosts& costs,
                                            const ListLimits& limits);

// The bytes that the stage needs to run one micro-batch at a time.
int64_t LeastBytes(const PipelineCosts& costs, int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_LIST_SCHEDULE_H_
