// One order for the instructions of all stages, in which every rank enqueues
// them. Without it, lanes that share a queue of the device can deadlock.
//
// Streams promise more than a device keeps: on H200, transfers by copy engines
// blocked unrelated lanes, each behind what was enqueued before it
// (docs/results/2026-11-22-four-gpus-h200.md). Waits of several ranks can then
// form a cycle. They cannot if all ranks enqueue their instructions in one
// common order in which all could run one by one. The first instruction in that
// order that has not run is then at the head of its queue, a transfer at both
// ends, and waits for nothing.

#ifndef MILLRACE_PLANNER_LOWER_COMMON_ORDER_H_
#define MILLRACE_PLANNER_LOWER_COMMON_ORDER_H_

#include <span>

#include "absl/status/status.h"
#include "planner/layout/layout.h"
#include "planner/program/program.h"

namespace millrace {

// Whether the layout's Programs need that order: copy engines do its transfers.
bool NeedsCommonOrder(const Layout& layout);

// Puts the instructions of `programs`, one for each stage of a layout, into
// such an order: by the times at which they would start. Passes take the times
// that the layout states for its stages, or equal times if it states none.
// Instructions are renumbered, in waits and lanes too. The order on each lane
// and the waits between instructions stay the same. Internal if the Programs'
// communication does not match.
absl::Status PutIntoCommonOrder(std::span<Program> programs);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_COMMON_ORDER_H_
