// Memory planning: an offset for every step buffer, so that buffers share bytes
// only if no order of events can make them alive together.

#ifndef MILLRACE_PLANNER_LOWER_ARENA_H_
#define MILLRACE_PLANNER_LOWER_ARENA_H_

#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/program/happens_before.h"
#include "planner/program/program.h"

namespace millrace {

struct ArenaRequest {
  int64_t bytes;
  // All instructions that touch the buffer, ascending. The first defines it and
  // finishes before every other starts.
  absl::InlinedVector<InstructionId, 4> uses;
};

struct ArenaPlan {
  std::vector<int64_t> offsets;  // By request; multiples of kBufferAlignment.
  int64_t bytes = 0;
  // The most bytes alive at once when the instructions run one by one: a lower
  // bound on the bytes of all plans.
  int64_t largest_live_bytes = 0;
};

// Deterministic. `order` holds all instructions. Returns early, with a plan
// that is of no use, once a stop is requested.
ArenaPlan PlanArena(std::span<const ArenaRequest> requests,
                    const HappensBefore& order,
                    const std::stop_token& stop = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_ARENA_H_
