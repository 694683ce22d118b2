#include "planner/cost/graph_times.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "planner/lower/graph.h"

namespace millrace {
namespace {

void AddOp(const GraphOp& op, double seconds, bool is_forward,
           GraphSeconds* sum) {
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
  // The second layer stands for all: the first one adds nothing to the stream
  // that it reads.
  ModelSpec two_layers = model;
  two_layers.num_layers = 2;
  const Layout plain{.tensor = layout.tensor,
                     .micro_batch = layout.micro_batch,
                     .precision = layout.precision,
                     .recompute = recompute,
                     .copy_engines = layout.copy_engines};
  const Graph graph = BuildTrainingGraph(two_layers, plain, 0);
  GraphCut cut;
  const auto add = [&](const GraphOp& op, bool is_forward) {
    // The host lane loads ahead.
    if (op.kind == OpKind::kLoadBatch || absl::StartsWith(op.name, "layers.0/"))
      return;
    GraphSeconds& sum = absl::StartsWith(op.name, "layers.1/")   ? cut.layer
                        : absl::StartsWith(op.name, "embedding") ? cut.embedding
                                                                 : cut.head;
    AddOp(op, cost.Seconds(plain, op.kind, op.attributes), is_forward, &sum);
  };
  for (const GraphOp& op : graph.forward) add(op, /*is_forward=*/true);
  for (const GraphOp& op : graph.backward) add(op, /*is_forward=*/false);
  return cut;
}

CutTimes TimesOf(const GraphCut& cut, double contention,
                 const OverlapFactors& overlap) {
  return {.dense = TimeOf(cut.layer, contention, overlap),
          .experts = {},
          .embedding = TimeOf(cut.embedding, contention, overlap),
          .head = TimeOf(cut.head, contention, overlap)};
}

}  // namespace millrace
