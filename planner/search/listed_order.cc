#include "planner/search/listed_order.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "planner/pipeline/list_schedule.h"

namespace millrace {

absl::Status ListPasses(const std::vector<int64_t>& bytes, PassStep* step) {
  ASSIGN_OR_RETURN(ListedSchedule listed,
                   ListSchedule(step->costs, {.memory_bytes = bytes}));
  step->order = std::move(listed.order);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ListedPasses>> FindListedOrder(
    const Layout& layout, PassStep step, const PassOptions& options,
    int64_t memory_limit, double known_s, StepModel& model) {
  if (layout.pipeline == 1 || layout.shards_gradients()) return std::nullopt;
  ListedPasses found;
  std::vector<int64_t> beside;
  int64_t known_bytes = 0;
  const std::vector<StepMemory> memory = model.MemoryByStage(layout);
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    known_bytes = std::max(known_bytes, memory[stage].total());
    beside.push_back(memory[stage].total() - memory[stage].activations);
    found.bytes.push_back(memory_limit - beside[stage]);
    if (found.bytes[stage] < LeastBytes(step.costs, stage)) {
      return std::nullopt;
    }
  }
  ASSIGN_OR_RETURN(const ListedSchedule listed,
                   ListSchedule(step.costs, {.memory_bytes = found.bytes}));
  step.order = listed.order;
  ASSIGN_OR_RETURN(found.simulation, SimulatePasses(step, options));
  if (found.simulation.step_time_s >= known_s) return std::nullopt;
  int64_t most = 0;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    most = std::max(most, beside[stage] + listed.times.peak_bytes[stage]);
  }
  found.more_bytes = most - known_bytes;
  return found;
}

}  // namespace millrace
