#include "planner/cost/recompute_ladder.h"

#include <vector>

#include "planner/lower/graph.h"

namespace millrace {
namespace {

// Bytes that the forward pass leaves for the backward pass.
double KeptBytes(const Graph& graph) {
  std::vector<bool> is_made(graph.tensors.size());
  for (const GraphOp& op : graph.forward) {
    for (const TensorId output : op.outputs) {
      is_made[static_cast<size_t>(output)] = true;
    }
  }
  double bytes = 0;
  for (const GraphOp& op : graph.backward) {
    for (const TensorId input : op.inputs) {
      const auto idx = static_cast<size_t>(input);
      if (!is_made[idx]) continue;
      is_made[idx] = false;  // Counted.
      const GraphTensor& tensor = graph.tensors[idx];
      if (tensor.persistent_offset_bytes == kStepTensor) {
        bytes += static_cast<double>(tensor.bytes());
      }
    }
  }
  return bytes;
}

}  // namespace

std::vector<RecomputeCandidate> PriceRecompute(const ModelSpec& model,
                                               const Layout& layout,
                                               const CostModel& cost) {
  ModelSpec one_layer = model;
  one_layer.num_layers = 1;
  Layout plain{.tensor = layout.tensor,
               .micro_batch = layout.micro_batch,
               .precision = layout.precision,
               .copy_engines = layout.copy_engines};
  return RecomputeCandidates([&](Recompute set) {
    plain.recompute = set;
    const Graph graph = BuildTrainingGraph(one_layer, plain, 0);
    RecomputeCandidate left{.op = set, .bytes = KeptBytes(graph)};
    for (const GraphOp& op : graph.backward) {
      if (op.phase != Phase::kRecompute) continue;
      left.seconds += cost.Seconds(plain, op.kind, op.attributes);
    }
    return left;
  });
}

}  // namespace millrace
