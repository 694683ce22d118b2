// How soon a pipeline's passes can be through at best, in whatever order: what
// orders of list scheduling are held to, and layouts that it may order.

#ifndef MILLRACE_PLANNER_PIPELINE_ORDER_BOUND_H_
#define MILLRACE_PLANNER_PIPELINE_ORDER_BOUND_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "planner/pipeline/passes.h"

namespace millrace {

inline constexpr int64_t kNoMemoryLimit = std::numeric_limits<int64_t>::max();

// What a stage's own transfers cost its passes.
struct TransferTraffic {
  // While a stage computes and sends, each goes on so much slower.
  double compute_slowdown = 1;
  double communication_slowdown = 1;
  // The sender computes nothing during a transfer.
  bool blocks = false;
};

// Bounds by stage. A stage cannot begin before the first micro-batch has come
// through the chunks before its own, has all of its passes to run, and after
// its last input gradient those of the chunks before are still to come; what it
// sends meanwhile holds its passes up. Before the first gradient reaches it, it
// can only run the forward passes that its memory holds, as whole activations.
// And since every micro-batch holds its activations at least while it goes
// through the chunks after and comes back, all of them together take as long as
// memory holds few at a time.
class MakespanBound {
 public:
  // Of pipelines whose chunks take no less than these: what a micro-batch alone
  // waits for.
  explicit MakespanBound(const PipelineCosts& least);

  // Seconds that no order ends sooner, where the passes of `stage` are as
  // `costs`, otherwise as those above, say and hold no more than
  // `memory_bytes`, above 0, at once.
  double OfStage(const PipelineCosts& costs, int32_t stage,
                 int64_t memory_bytes,
                 const TransferTraffic& traffic = {}) const;

 private:
  // Of a micro-batch alone in the pipeline, by chunk: when it can be there on
  // its way there and on its way back, and what then is left until all ends.
  std::vector<double> there_s_, back_s_, left_s_;
  std::vector<std::vector<int32_t>> chunks_;  // By stage, ascending.
};

// The largest of all stages'. Memory by stage; empty: no limit.
double LowerBoundOfMakespan(const PipelineCosts& costs,
                            const std::vector<int64_t>& memory_bytes,
                            const TransferTraffic& traffic = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_ORDER_BOUND_H_
