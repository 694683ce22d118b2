#include "planner/pipeline/layout_order.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/pipeline/list_schedule.h"

namespace millrace {

absl::StatusOr<PassOrder> ListedOrder(const Layout& layout, int32_t data_idx) {
  // Microseconds throughout: sums are then exact.
  PipelineCosts costs;
  costs.num_stages = layout.pipeline;
  costs.num_microbatches = layout.num_microbatches_of(data_idx);
  costs.transfer_s = layout.listed_transfer_us;
  ListLimits limits;
  limits.transfer_buffers = kTransferBuffers;
  for (int32_t s = 0; s < layout.pipeline; ++s) {
    const ListedStage& stage = layout.listed_stages[s];
    costs.stage_of_chunk.push_back(s);
    costs.chunks.push_back({static_cast<double>(stage.forward_us),
                            static_cast<double>(stage.input_gradient_us),
                            static_cast<double>(stage.weight_gradient_us),
                            stage.activation_bytes,
                            stage.weight_gradient_bytes});
    limits.memory_bytes.push_back(stage.memory_bytes);
  }
  ASSIGN_OR_RETURN(ListedSchedule listed, ListSchedule(costs, limits));
  std::vector<ChunkPass> first;
  for (const ChunkPass& pass : listed.order[0]) {
    if (pass.kind == ChunkPassKind::kWeightGradient &&
        first.back().kind == ChunkPassKind::kInputGradient &&
        first.back().microbatch_idx == pass.microbatch_idx) {
      first.back().kind = ChunkPassKind::kBackward;
    } else {
      first.push_back(pass);
    }
  }
  listed.order[0] = std::move(first);
  return std::move(listed.order);
}

}  // namespace millrace
