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

// Puts the instructions of `programs`, one a stage of a layout, into such an
// order: by when they would start if passes took what the layout says of its
// stages, or all the same. Numbers of instructions, waits and lanes follow;
// what runs after what on a lane, and what waits for what, stay the same.
// Internal if the Programs' communication does not match.
absl::Status PutIntoCommonOrder(std::span<Program> programs);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_COMMON_ORDER_H_
