#include "planner/lower/graph.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/graph/layer_graph.h"
#include "planner/lower/graph_blocks.h"
#include "planner/lower/graph_builder.h"
#include "planner/lower/graph_ends.h"
#include "planner/lower/graph_shards.h"
#include "planner/lower/graph_step.h"

namespace millrace {
namespace {

// The ops of a stage's layers and ends (planner/graph).
struct StageOps {
  LayerGraph first_layer;
  std::array<LayerGraph, kNumLayerKinds> layers;  // Those that the stage has.
  LayerGraph embedding;                           // First stage only.
  LayerGraph head;                                // Last stage only.
};

StageOps OpsOfStage(const GraphBuilder& builder, LossUse use) {
  Layout layout = builder.layout();
  layout.recompute = layout.recompute_of(builder.stage());
  const ModelSpec& model = builder.model();
  const Implementation our_style;
  const LayerRange range = StageLayers(model, layout, builder.stage());
  StageOps ops;
  ops.first_layer = GraphOfLayer(model, layout, KindOfLayer(model, range.begin),
                                 our_style, StreamInput::kWhole);
  for (int64_t layer = range.begin + 1; layer < range.end; ++layer) {
    const LayerKind kind = KindOfLayer(model, layer);
    LayerGraph& graph = ops.layers[static_cast<size_t>(kind)];
    if (graph.ops.empty()) {
      graph = GraphOfLayer(model, layout, kind, our_style);
    }
  }
  if (builder.is_first_stage()) {
    ops.embedding = GraphOfEmbedding(model, layout, our_style);
  }
  if (builder.is_last_stage()) {
    ops.head = GraphOfHead(model, layout, our_style, use);
  }
  return ops;
}

// The values that one micro-batch's forward pass leaves for its backward pass.
struct ForwardPass {
  StageInput input;
  std::vector<LayerEmitter> layers;
  LossHead head;  // Last stage only.
};

ForwardPass EmitForward(GraphBuilder& builder, const StageOps& ops) {
  builder.EmitTo(&builder.graph().forward);
  ForwardPass pass;
  pass.input = EmitStageInput(builder, ops.embedding);
  ResidualStream stream{.residual = pass.input.stream};
  const LayerRange range =
      StageLayers(builder.model(), builder.layout(), builder.stage());
  for (int64_t layer = range.begin; layer < range.end; ++layer) {
    const LayerKind kind = KindOfLayer(builder.model(), layer);
    pass.layers.emplace_back(layer == range.begin
                                 ? ops.first_layer
                                 : ops.layers[static_cast<size_t>(kind)],
                             layer, pass.input.document_starts);
    pass.layers.back().EmitForward(builder, &stream);
  }
  if (builder.is_last_stage()) {
    pass.head = EmitLossHead(builder, ops.head, pass.input, stream);
  } else {
    EmitSendToNext(builder, stream);
  }
  InsertParameterGathers(builder, builder.graph().sharded.forward_parameters,
                         &builder.graph().forward);
  return pass;
}

// The embedding's gradient is the largest and its reduction the last: it hides
// under the first layer's weight gradients, unless these already hide
// communication over the tensor axis.
bool ReducesEmbeddingEarly(const GraphBuilder& builder) {
  return builder.is_first_stage() && builder.layout().tensor == 1;
}

void EmitBackward(GraphBuilder& builder, const StageOps& stage_ops,
                  ForwardPass& pass) {
  std::vector<GraphOp>& ops = builder.graph().backward;
  builder.EmitTo(&ops);
  TensorId d_stream =
      builder.is_last_stage()
          ? EmitLossHeadBackward(builder, stage_ops.head, pass.input, pass.head)
          : EmitReceiveGradient(builder);
  for (size_t i = pass.layers.size(); i-- > 0;) {
    if (i == 0 && ReducesEmbeddingEarly(builder)) {
      builder.EmitDeferred();
      builder.HoldDeferred();
    }
    d_stream = pass.layers[i].EmitBackward(builder, d_stream);
    builder.LastDeferred().completes_bucket =
        builder.BucketIndex(absl::StrCat("layers.", pass.layers[i].layer()));
  }
  // All layers have norms and biases.
  for (const char* bucket : {"norms", "biases", "whole_biases"}) {
    builder.CompleteAtLast(bucket, &ops);
  }
  EmitStageInputBackward(builder, stage_ops.embedding, pass.input, d_stream);
  InsertParameterGathers(builder, builder.graph().sharded.backward_parameters,
                         &ops);
  InsertGradientZeroing(builder, &ops);
}

}  // namespace

int64_t GraphTensor::bytes() const {
  int64_t num_elements = 1;
  for (int64_t dim : dims) num_elements *= dim;
  return num_elements * DTypeBytes(dtype);
}

Graph BuildTrainingGraph(const ModelSpec& model, const Layout& layout,
                         int32_t stage) {
  GraphBuilder builder(model, layout, stage);
  builder.AddPersistentTensors(ProgramKind::kTraining);
  builder.EmitTo(&builder.graph().prologue);
  EmitZeroScalars(builder);
  EmitParameters(builder);
  const StageOps ops = OpsOfStage(builder, LossUse::kTraining);
  ForwardPass pass = EmitForward(builder, ops);
  EmitBackward(builder, ops, pass);
  EmitOptimizer(builder);
  return std::move(builder).Build();
}

Graph BuildValidationGraph(const ModelSpec& model, const Layout& layout,
                           int32_t stage) {
  GraphBuilder builder(model, layout, stage);
  builder.AddPersistentTensors(ProgramKind::kValidation);
  builder.EmitTo(&builder.graph().prologue);
  EmitZeroScalars(builder);
  EmitParameters(builder);
  const StageOps ops = OpsOfStage(builder, LossUse::kValidation);
  EmitForward(builder, ops);
  builder.EmitTo(&builder.graph().epilogue);
  EmitReduceScalars(builder);
  return std::move(builder).Build();
}

Graph BuildPublishGraph(const ModelSpec& model, const Layout& layout,
                        int32_t stage) {
  GraphBuilder builder(model, layout, stage);
  builder.AddPersistentTensors(ProgramKind::kPublish);
  if (RecipeOf(layout).has_masters()) {
    builder.EmitTo(&builder.graph().prologue);
    EmitCastParameters(builder);
  }
  return std::move(builder).Build();
}

}  // namespace millrace
