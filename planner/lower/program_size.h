// How many instructions the Programs of a step have, and how many are too many.

#ifndef MILLRACE_PLANNER_LOWER_PROGRAM_SIZE_H_
#define MILLRACE_PLANNER_LOWER_PROGRAM_SIZE_H_

#include <cstdint>
#include <stop_token>

#include "absl/status/status.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

// The limit for all stages' training Programs together. An instruction takes
// about a kilobyte with its buffers, and 3 to 10 us to lower. So this many take
// 2 GB, and up to 20 s. Each micro-batch has instructions of its own.
inline constexpr int64_t kMostInstructions = 2'000'000;

// Numbers of micro-batches of a step, a data replica's, that are known to be
// few enough or too many for kMostInstructions without counting instructions.
struct MicrobatchBounds {
  int64_t always_few_enough;
  int64_t too_many;  // Those above this.
};
MicrobatchBounds MicrobatchBoundsOf(const ModelSpec& model,
                                    const Layout& layout);

// ResourceExhausted for a layout with more than kMostInstructions, with the
// global batch that it could have and what else helps. `layout` must pass
// ValidateLayout and CheckExecutable. Cancelled once a stop is requested.
absl::Status CheckProgramSize(const ModelSpec& model, const Layout& layout,
                              const std::stop_token& stop = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_PROGRAM_SIZE_H_
