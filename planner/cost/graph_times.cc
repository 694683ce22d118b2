#include "planner/cost/graph_times.h"

#include <algorithm>

#include "planner/graph/layer_graph.h"

namespace millrace {
namespace {

void AddOp(const LayerOp& op, double seconds, GraphSeconds* sum) {
  const bool is_forward = op.phase == Phase::kForward;
  if (IsCollective(op.kind)) {
    (is_forward ? sum->forward_comm : sum->backward_comm) += seconds;
  } else if (op.phase == Phase::kForward) {
    sum->forward += seconds;
  } else if (op.phase == Phase::kRecompute) {
    sum->recompute += seconds;
  } else if (op.phase == Phase::kInputGradient) {
    sum->input_gradient += seconds;
  } else {
    sum->weight_gradient += seconds;
  }
}

LayerTime TimeOf(const GraphSeconds& sum, double contention,
                 const OverlapFactors& overlap) {
  const double weight_gradient = contention * sum.weight_gradient;
  const double recompute = contention * sum.recompute;
  const double hidden = std::min(
      sum.backward_comm, (recompute + weight_gradient) / overlap.communication);
  LayerTime time;
  time.forward = {.compute = contention * sum.forward,
                  .tensor = sum.forward_comm};
  time.recompute = {.compute = recompute};
  time.input_gradient = {.compute = contention * sum.input_gradient,
                         .tensor = sum.backward_comm - hidden};
  time.weight_gradient =
      weight_gradient + (overlap.compute - 1) * hidden * overlap.communication;
  return time;
}

}  // namespace

bool HasGraph(const ModelSpec& model, const Layout& layout) {
  return model.is_llama() && layout.context == 1 && layout.expert == 1 &&
         layout.expert_tensor == 1 &&
         layout.gemm_format == GemmFormat::kAsStored;
}

GraphCut SumGraph(const ModelSpec& model, const Layout& layout,
                  Recompute recompute, const CostModel& cost) {
  const Layout plain{.tensor = layout.tensor,
                     .micro_batch = layout.micro_batch,
                     .precision = layout.precision,
                     .recompute = recompute,
                     .copy_engines = layout.copy_engines};
  const auto sum_of = [&](const LayerGraph& graph) {
    GraphSeconds sum;
    for (const LayerOp& op : graph.ops) {
      AddOp(op, cost.Seconds(plain, op.kind, op.attributes), &sum);
    }
    return sum;
  };
  return {.layer = sum_of(GraphOfLayer(model, plain, LayerKind::kDense, {})),
          .embedding = sum_of(GraphOfEmbedding(model, plain, {})),
          .head = sum_of(GraphOfHead(model, plain, {}))};
}

CutTimes TimesOf(const GraphCut& cut, double contention,
                 const OverlapFactors& overlap) {
  return {.dense = TimeOf(cut.layer, contention, overlap),
          .experts = {},
          .embedding = TimeOf(cut.embedding, contention, overlap),
          .head = TimeOf(cut.head, contention, overlap)};
}

}  // namespace millrace
