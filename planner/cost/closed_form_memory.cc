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

StepMemory StepModel::PredictMemory(const Layout& layout) {
  const StageList& list = state_->Stages(layout);
  const double stream_bytes =
      StreamBytes(state_->model, layout, state_->implementation);
  StepMemory most;
  const auto add = [&](const StageKind& kind, int32_t stage) {
    const StepMemory memory = state_->MemoryOf(
        layout, kind, stage, layout.recompute_of(stage), stream_bytes);
    if (memory.total() > most.total()) most = memory;
  };
  if (layout.recompute_by_stage.empty()) {
    for (const StageKind& kind : list.kinds) add(kind, kind.first);
    return most;
  }
  for (int32_t s = 0; s < layout.pipeline; ++s) {
    const int32_t kind = list.kind_of_stage[static_cast<size_t>(s)];
    add(list.kinds[static_cast<size_t>(kind)], s);
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
  Layout variant = layout;
  std::vector<StepMemory> most(zeros.size());  // Of the fullest kind of stage.
  std::vector<StepMemory> least(zeros.size());
  for (const StageKind& kind : state_->Stages(layout).kinds) {
    for (size_t r = 0; r < recomputes.size(); ++r) {
      const StageLoad load = LoadOfStage(
          state_->cuts.Loads(layout, recomputes[r]), kind, stream_bytes);
      for (size_t z = 0; z < zeros.size(); ++z) {
        variant.zero = zeros[z];
        const StepMemory memory = MemoryOfStage(
            variant, state_->implementation,
            state_->cost.profile().memory_overhead, load, kind.first);
        if (r == 0 || memory.total() < least[z].total()) least[z] = memory;
      }
    }
    for (size_t z = 0; z < zeros.size(); ++z) {
      if (least[z].total() > most[z].total()) most[z] = least[z];
    }
  }
  return *std::min_element(most.begin(), most.end(),
                           [](const StepMemory& a, const StepMemory& b) {
                             return a.total() < b.total();
                           });
}

StepMemory StepModel::LeastInterleavedMemory(
    const Layout& layout, std::span<const int32_t> zeros,
    std::span<const Recompute> recomputes) {
  const ModelSpec& model = state_->model;
  Layout variant = layout;
  // Every stage holds one micro-batch at least, as the last with one chunk.
  variant.schedule = Schedule::kOneForwardOneBackward;
  variant.interleave = 1;
  StageLoad mean;
  for (const Recompute recompute : recomputes) {
    StageLoad load =
        MeanLoad(state_->cuts.Loads(layout, recompute), model, layout.pipeline);
    if (recompute != recomputes.front()) {
      // Some stages may compute more again than others.
      load.activation_bytes =
          std::min(load.activation_bytes, mean.activation_bytes);
      load.layer_working_bytes =
          std::min(load.layer_working_bytes, mean.layer_working_bytes);
    }
    mean = load;
  }
  mean.stream_bytes = StreamBytes(model, layout, state_->implementation);
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
    // Of stages alike the later hold no more micro-batches.
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
