// Greedy list scheduling under given priorities. Internal to
// planner/pipeline/list_schedule.cc.

#ifndef MILLRACE_PLANNER_PIPELINE_GREEDY_ORDER_H_
#define MILLRACE_PLANNER_PIPELINE_GREEDY_ORDER_H_

#include <compare>
#include <cstdint>
#include <vector>

#include "planner/pipeline/passes.h"

namespace millrace {

// The pass that a stage takes where both a forward pass and an input gradient
// could run.
enum class Preference : uint8_t { kBackward, kAlternate, kForward };

// Which of a stage's chunks goes first. kDeepest: the chunk nearest to its
// micro-batch's end. kGroups: num_stages micro-batches of a chunk, then the
// next chunk (interleaved 1F1B). kOldest: the oldest micro-batch.
enum class ChunkPriority : uint8_t { kDeepest, kGroups, kOldest };

struct ListPolicy {
  Preference preference = Preference::kBackward;
  ChunkPriority chunks = ChunkPriority::kDeepest;
  // By stage: forward passes whose input gradient has not begun, and weight
  // gradients that wait while other passes could run, at most.
  std::vector<int32_t> most_ahead;
  std::vector<int32_t> most_put_off;
  // A weight gradient fills a gap whose end is known if it overruns it by this
  // share of itself at most.
  double overrun = 0;
  // A stage lets a forward pass wait for an input gradient that arrives within
  // this share of the forward pass.
  double patience = 0;

  friend auto operator<=>(const ListPolicy&, const ListPolicy&) = default;
};

// Runs the pipeline in virtual time: whenever a stage is free it takes the pass
// that the policy puts first of those that are ready, within its memory and
// `transfer_buffers` (as of TimeOrder). Never blocks: a forward pass starts
// only if all micro-batches under way can still be finished one after the
// other, oldest first (Dijkstra's banker), so every stage's memory must suffice
// for LeastBytes. `memory_bytes` by stage; empty: no limit. Costs must pass
// CheckCosts.
PassOrder GreedyOrder(const PipelineCosts& costs,
                      const std::vector<int64_t>& memory_bytes,
                      int32_t transfer_buffers, const ListPolicy& policy);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_GREEDY_ORDER_H_
