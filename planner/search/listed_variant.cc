#include "planner/search/listed_variant.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "base/status_macros.h"
#include "planner/cost/layer_time.h"
#include "planner/cost/stage_time.h"
#include "planner/graph/layer_graph.h"
#include "planner/lower/graph.h"
#include "planner/lower/lower.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

// Marks the step tensors that `ops` touch, as wholes.
void MarkTouched(const Graph& graph, std::span<const GraphOp> ops,
                 bool weight_gradients_alone, std::vector<bool>* touched) {
  touched->resize(graph.tensors.size());
  for (const GraphOp& op : ops) {
    if (weight_gradients_alone && op.phase != Phase::kWeightGradient) continue;
    for (const auto* ids : {&op.inputs, &op.outputs}) {
      for (const TensorId id : *ids) {
        if (graph.tensors[id].persistent_offset_bytes != kStepTensor) continue;
        const TensorId parent = graph.tensors[id].parent;
        (*touched)[parent < 0 ? id : parent] = true;
      }
    }
  }
}

// Fills in the bytes that one micro-batch holds between its passes.
void FillBytes(const Graph& graph, ListedStage* stage) {
  std::vector<bool> forward, backward, weight_gradients;
  MarkTouched(graph, graph.forward, false, &forward);
  MarkTouched(graph, graph.backward, false, &backward);
  MarkTouched(graph, graph.backward, true, &weight_gradients);
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const int64_t bytes = graph.tensors[i].bytes();
    if (forward[i] && backward[i]) stage->activation_bytes += bytes;
    if (weight_gradients[i]) stage->weight_gradient_bytes += bytes;
  }
}

int32_t Microseconds(double seconds) {
  constexpr double kMost = 1e9;
  return static_cast<int32_t>(
      std::clamp(std::round(seconds * 1e6), 1.0, kMost));
}

// Seconds of a stage's passes of one micro-batch, from the times of its ops.
// Communication of the backward pass hides under recomputing.
struct PassSeconds {
  double forward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
};
PassSeconds PassesOfStage(const ModelSpec& model, const Layout& layout,
                          int32_t stage, const CostModel& cost) {
  Layout uniform = layout;
  uniform.recompute = layout.recompute_of(stage);
  uniform.recompute_by_stage.clear();
  PassSeconds passes;
  double recompute = 0, backward_comm = 0;
  const auto add = [&](const LayerGraph& graph, int64_t num_layers) {
    const PricedLayer layer = PriceMeasuredLayer(graph, uniform, cost);
    const auto count = static_cast<double>(num_layers);
    const PhaseTime& forward = layer.of(Phase::kForward);
    passes.forward += count * (forward.compute() + forward.tensor);
    passes.input_gradient += count * layer.of(Phase::kInputGradient).compute();
    passes.weight_gradient +=
        count * layer.of(Phase::kWeightGradient).compute();
    recompute += count * layer.of(Phase::kRecompute).compute();
    for (const Phase phase :
         {Phase::kRecompute, Phase::kInputGradient, Phase::kWeightGradient}) {
      backward_comm += count * layer.of(phase).tensor;
    }
  };
  const LayerRange range = StageLayers(model, layout, stage);
  LayerCounts counts;
  for (int64_t layer = range.begin; layer < range.end; ++layer) {
    counts.Count(KindOfLayer(model, layer));
  }
  for (const LayerKind kind : KindsOfLayers(model)) {
    if (counts.of(kind) == 0) continue;
    add(GraphOfLayer(model, uniform, kind, {}), counts.of(kind));
  }
  if (stage == 0) add(GraphOfEmbedding(model, uniform, {}), 1);
  if (stage == layout.pipeline - 1) add(GraphOfHead(model, uniform, {}), 1);
  passes.input_gradient += std::max(recompute, backward_comm);
  return passes;
}

// Seconds of the stream of one micro-batch from one stage to the next.
double TransferSeconds(const ModelSpec& model, const Layout& layout,
                       const CostModel& cost) {
  double longest = 0;
  for (const GraphOp& op : BuildTrainingGraph(model, layout, 0).forward) {
    if (op.kind != OpKind::kSend) continue;
    longest = std::max(longest, cost.Seconds(layout, op.kind, op.attributes));
  }
  return longest;
}

int64_t LeastBytes(const ListedStage& stage) {
  return std::max(stage.activation_bytes, stage.weight_gradient_bytes);
}

// The bytes that both arenas hold beside the micro-batches under way, by 1F1B's
// Programs.
absl::StatusOr<std::vector<int64_t>> BytesBeside(const ModelSpec& model,
                                                 Layout layout,
                                                 const std::stop_token& stop) {
  const std::vector<ListedStage> stages =
      std::exchange(layout.listed_stages, {});
  layout.listed_transfer_us = 0;
  layout.schedule = Schedule::kOneForwardOneBackward;
  // Stages hold no more in a step of more micro-batches.
  layout.SetMicrobatches(
      std::min(layout.most_microbatches(), 4 * layout.pipeline));
  ASSIGN_OR_RETURN(const std::vector<Program> programs,
                   BuildTrainingPrograms(model, layout, stop));
  std::vector<int64_t> bytes;
  for (const Program& program : programs) {
    const int32_t alive =
        std::min(layout.pipeline - program.stage, layout.most_microbatches());
    bytes.push_back(program.persistent_arena_bytes +
                    std::max<int64_t>(
                        0, program.step_arena_bytes -
                               alive * stages[program.stage].activation_bytes));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::optional<Layout>> ListScheduledVariant(
    const ModelSpec& model, Layout layout, const CostModel& cost,
    int64_t arena_bytes, const std::stop_token& stop) {
  if (layout.pipeline == 1 || layout.shards_gradients()) return std::nullopt;
  layout.listed_stages.clear();
  std::vector<ListedStage> stages(layout.pipeline);
  RETURN_IF_ERROR(
      ParallelFor(layout.pipeline, NumComputeThreads(), [&](int64_t i) {
        const auto stage = static_cast<int32_t>(i);
        const PassSeconds passes = PassesOfStage(model, layout, stage, cost);
        stages[i] = {
            .forward_us = Microseconds(passes.forward),
            .input_gradient_us = Microseconds(passes.input_gradient),
            .weight_gradient_us = Microseconds(passes.weight_gradient)};
        FillBytes(BuildTrainingGraph(model, layout, stage), &stages[i]);
        return absl::OkStatus();
      }));
  layout.listed_stages = std::move(stages);
  layout.listed_transfer_us =
      Microseconds(TransferSeconds(model, layout, cost));
  layout.schedule = Schedule::kListScheduled;
  ASSIGN_OR_RETURN(const std::vector<int64_t> beside,
                   BytesBeside(model, layout, stop));
  for (int32_t s = 0; s < layout.pipeline; ++s) {
    ListedStage& stage = layout.listed_stages[s];
    // With two micro-batches for each stage none waits for another any more
    // (Qi et al., 2024, ZB-H2).
    stage.memory_bytes =
        std::min(arena_bytes - beside[s],
                 std::min(layout.most_microbatches(), 2 * layout.pipeline) *
                     LeastBytes(stage));
  }
  for (int i = 0; i < kSearchBudget.list_schedule_tries; ++i) {
    for (const ListedStage& stage : layout.listed_stages) {
      if (stage.memory_bytes < LeastBytes(stage)) return std::nullopt;
    }
    ASSIGN_OR_RETURN(const std::vector<Program> programs,
                     BuildTrainingPrograms(model, layout, stop));
    bool fits = true;
    for (const Program& program : programs) {
      const int64_t over = program.persistent_arena_bytes +
                           program.step_arena_bytes - arena_bytes;
      if (over <= 0) continue;
      fits = false;
      layout.listed_stages[program.stage].memory_bytes -= over;
    }
    if (fits) return layout;
  }
  return std::nullopt;
}

}  // namespace millrace
