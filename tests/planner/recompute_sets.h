// Sets of recomputed ops that tests cycle through: nothing, all, what has no
// products, and two that leave out what others need, with and without the
// stream between a layer's blocks.

#ifndef MILLRACE_TESTS_PLANNER_RECOMPUTE_SETS_H_
#define MILLRACE_TESTS_PLANNER_RECOMPUTE_SETS_H_

#include <cstddef>

#include "planner/layout/recompute.h"

namespace millrace {

inline constexpr Recompute kTestedRecomputes[] = {
    Recompute::kNone, Recompute::kCheap, Recompute::kFull,
    Recompute::kQkv | Recompute::kGateUp,
    Recompute::kNorm | Recompute::kOutput | Recompute::kAttention};
inline constexpr size_t kNumTestedRecomputes = 5;

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_RECOMPUTE_SETS_H_
