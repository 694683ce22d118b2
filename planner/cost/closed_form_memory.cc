// The memory that layouts take, and which layouts fit; see closed_form.h.

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "planner/cost/closed_form_state.h"

namespace millrace {

StepMemory StepModel::State::MemoryOf(const Layout& layout,
                                      const StageKind& kind, int32_t stage,
                                      Recompute recompute,
                                      double stream_bytes) {
  return MemoryOfStage(
      layout, implementation, cost.profile().memory_overhead,
      LoadOfStage(cuts.Loads(layout, recompute), kind, stream_bytes), stage);
}

StageLoad StepModel::State::LeastLoad(const Layout& layout,
                                      const StageKind& kind,
                                      std::span<const CutLoads* const> loads,
                                      double stream_bytes) const {
  StageLoad least;
  int64_t least_bytes = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    const StageLoad load = LoadOfStage(*loads[i], kind, stream_bytes);
    const int64_t bytes =
        ActivationBytesHeld(layout, load, kind.first) +
        std::max(load.layer_working_bytes, load.end_working_bytes);
    if (i > 0 && implementation.slices_are_masters) {
      // Which load is the least depends on ZeRO too. So take a lower bound.
      least.activation_bytes =
          std::min(least.activation_bytes, load.activation_bytes);
      least.layer_working_bytes =
          std::min(least.layer_working_bytes, load.layer_working_bytes);
    } else if (i == 0 || bytes < least_bytes) {
      least = load;
      least_bytes = bytes;
    }
  }
  return least;
}

StepMemory StepModel::PredictMemory(const Layout& layout) {
  StepMemory most;
  if (!layout.recompute_by_stage.empty()) {
    for (const StepMemory& memory : MemoryByStage(layout)) {
      if (memory.total() > most.total()) most = memory;
    }
    return most;
  }
  const double stream_bytes =
      StreamBytes(state_->model, layout, state_->implementation);
  for (const StageKind& kind : state_->Stages(layout).kinds) {
    const StepMemory memory = state_->MemoryOf(layout, kind, kind.first,
                                               layout.recompute, stream_bytes);
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

std::vector<StepMemory> StepModel::MemoryByStage(const Layout& layout) {
  const StageList& list = state_->Stages(layout);
  const double stream_bytes =
      StreamBytes(state_->model, layout, state_->implementation);
  std::vector<StepMemory> memory;
  for (int32_t s = 0; s < layout.pipeline; ++s) {
    const int32_t kind = list.kind_of_stage[static_cast<size_t>(s)];
    memory.push_back(state_->MemoryOf(layout,
                                      list.kinds[static_cast<size_t>(kind)], s,
                                      layout.recompute_of(s), stream_bytes));
  }
  return memory;
}

int64_t StepModel::OverheadOf(const Layout& layout) const {
  return OverheadBytes(layout, state_->cost.profile().memory_overhead);
}

StepMemory StepModel::LeastMemory(const Layout& layout,
                                  std::span<const int32_t> zeros,
                                  std::span<const Recompute> recomputes) {
  const double stream_bytes =
      StreamBytes(state_->model, layout, state_->implementation);
  std::vector<const CutLoads*>& loads = state_->loads_of_recompute;
  loads.clear();
  for (const Recompute recompute : recomputes) {
    loads.push_back(&state_->cuts.Loads(layout, recompute));
  }
  // Recompute saves the same bytes whatever the ZeRO stage is.
  const std::vector<StageKind>& kinds = state_->Stages(layout).kinds;
  std::vector<StageLoad>& least_loads = state_->least_loads;
  least_loads.clear();
  for (const StageKind& kind : kinds) {
    least_loads.push_back(state_->LeastLoad(layout, kind, loads, stream_bytes));
  }
  Layout variant = layout;
  std::optional<StepMemory> least;
  for (const int32_t zero : zeros) {
    variant.zero = zero;
    StepMemory most;  // The fullest kind of stage's.
    for (size_t k = 0; k < kinds.size(); ++k) {
      const StepMemory memory =
          MemoryOfStage(variant, state_->implementation,
                        state_->cost.profile().memory_overhead, least_loads[k],
                        kinds[k].first);
      if (memory.total() > most.total()) most = memory;
    }
    if (!least.has_value() || most.total() < least->total()) least = most;
  }
  return *least;
}

StepMemory StepModel::LeastInterleavedMemory(
    const Layout& layout, std::span<const int32_t> zeros,
    std::span<const Recompute> recomputes) {
  Layout variant = layout;
  // Every stage holds one micro-batch at least, as the last with one chunk.
  variant.schedule = Schedule::kOneForwardOneBackward;
  variant.interleave = 1;
  StageLoad mean;
  for (const Recompute recompute : recomputes) {
    StageLoad load = MeanLoad(state_->cuts.Loads(layout, recompute),
                              state_->whole, layout.pipeline);
    if (recompute != recomputes.front()) {
      // Some stages may recompute more than others.
      load.activation_bytes =
          std::min(load.activation_bytes, mean.activation_bytes);
      load.layer_working_bytes =
          std::min(load.layer_working_bytes, mean.layer_working_bytes);
    }
    mean = load;
  }
  mean.stream_bytes =
      StreamBytes(state_->model, layout, state_->implementation);
  std::optional<StepMemory> least;
  for (const int32_t zero : zeros) {
    variant.zero = zero;
    const StepMemory memory = MemoryOfStage(
        variant, state_->implementation, state_->cost.profile().memory_overhead,
        mean, layout.pipeline - 1);
    if (!least.has_value() || memory.total() < least->total()) least = memory;
  }
  return *least;
}

std::optional<std::vector<Recompute>> StepModel::FitRecompute(
    const Layout& layout, int64_t memory_limit,
    std::span<const Recompute> recomputes) {
  const StageList& list = state_->Stages(layout);
  const double stream_bytes =
      StreamBytes(state_->model, layout, state_->implementation);
  std::vector<Recompute> chosen(list.kind_of_stage.size());
  std::vector<std::pair<double, Recompute>> by_seconds;
  for (size_t k = 0; k < list.kinds.size(); ++k) {
    const std::vector<int32_t>& stages = list.stages_of_kind[k];
    // Close ones may be in another order than for one sequence.
    by_seconds.clear();
    for (const Recompute recompute : recomputes) {
      by_seconds.emplace_back(
          TimeOfStage(state_->cuts.Times(layout, recompute), list.kinds[k])
              .total(),
          recompute);
    }
    std::stable_sort(
        by_seconds.begin(), by_seconds.end(),
        [](const auto& a, const auto& b) { return a.first < b.first; });
    // Among stages alike, later ones hold no more micro-batches.
    auto left = stages.end();
    for (const auto& [seconds, recompute] : by_seconds) {
      const auto first =
          std::partition_point(stages.begin(), left, [&](int32_t stage) {
            return state_
                       ->MemoryOf(layout, list.kinds[k], stage, recompute,
                                  stream_bytes)
                       .total() > memory_limit;
          });
      for (auto stage = first; stage != left; ++stage) {
        chosen[static_cast<size_t>(*stage)] = recompute;
      }
      left = first;
    }
    if (left != stages.begin()) return std::nullopt;
  }
  return chosen;
}

}  // namespace millrace
