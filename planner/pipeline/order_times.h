// Computes when each pass runs in a given order, and how much memory each stage
// then needs.

#ifndef MILLRACE_PLANNER_PIPELINE_ORDER_TIMES_H_
#define MILLRACE_PLANNER_PIPELINE_ORDER_TIMES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/pipeline/passes.h"

namespace millrace {

struct PassSpan {
  double start_s;
  double end_s;
};

// Outer index: stage.
struct OrderTimes {
  std::vector<std::vector<PassSpan>> passes;  // As the order.
  std::vector<int64_t> peak_bytes;
  double makespan_s = 0;
};

// Every pass starts as soon as its stage has ended the one before and what it
// needs has arrived; a transfer takes transfer_s and holds nobody up. With
// `transfer_buffers` n > 0, a pass whose result goes to another stage also
// waits until that stage has begun with the result of n micro-batches before.
//
// `order` must pass CheckOrder (planner/pipeline/pass_order.h). InvalidArgument
// naming the first pass that waits for itself.
absl::StatusOr<OrderTimes> TimeOrder(const PipelineCosts& costs,
                                     const PassOrder& order,
                                     int32_t transfer_buffers = 0);

// The same for many orders of one pipeline, without peak_bytes. Borrows the
// costs.
class OrderTimer {
 public:
  OrderTimer(const PipelineCosts& costs, int32_t transfer_buffers);

  // False if a pass waits for itself; then times() ends there.
  bool Run(const PassOrder& order);
  const OrderTimes& times() const { return times_; }

 private:
  // The times of forward passes, and of the passes that yield input gradients,
  // by chunk and micro-batch.
  struct Side {
    std::vector<double> start_s, end_s;
  };

  size_t IndexOf(int32_t chunk, int32_t microbatch) const;
  bool AreApart(int32_t a, int32_t b) const;
  double ReadyAt(const ChunkPass& pass) const;
  void RunStage(const PassOrder& order, int32_t stage);

  const PipelineCosts& costs_;
  int32_t transfer_buffers_;
  int32_t num_chunks_;
  std::vector<size_t> next_;
  std::vector<double> free_s_;
  std::vector<int32_t> stages_to_run_;
  Side forward_, gradient_;
  OrderTimes times_;
};

// The seconds that the pass takes alone.
double SecondsOf(const PipelineCosts& costs, const ChunkPass& pass);

// The most bytes that a stage holds, running `passes` one by one. An input
// gradient holds what its weight gradient needs from its start.
int64_t PeakBytes(const PipelineCosts& costs,
                  const std::vector<ChunkPass>& passes);

// InvalidArgument for counts below one, a chunk on no stage, and negative or
// not finite costs.
absl::Status CheckCosts(const PipelineCosts& costs);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PIPELINE_ORDER_TIMES_H_
