// In which order a rank hands its instructions over, where lanes may come to
// share queues of the device.
//
// Streams promise more than a device keeps: on H200, transfers by copy engines
// blocked lanes that had nothing to do with each other, each behind what was
// handed over before it (docs/results/2026-11-22-four-gpus-h200.md). Waits of
// several ranks can then close to a circle. They cannot if all ranks hand their
// instructions over in one common order in which all could run one by one: of
// what has not run, the first by that order is at the head of its queue, a
// transfer at both ends, and waits for nothing.

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
