#include "planner/lower/graph.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/lower/graph_blocks.h"
#include "planner/lower/graph_builder.h"
#include "planner/lower/graph_ends.h"
#include "planner/lower/graph_shards.h"
#include "planner/lower/graph_step.h"

namespace millrace {
namespace {

struct Layer {
  AttentionBlock attention;
  FeedForwardBlock feed_forward;
};

// What one micro-batch's forward pass leaves for its backward pass.
struct ForwardPass {
  StageInput input;
  std::vector<Layer> layers;
  LossHead head;  // Last stage only.
};

ForwardPass EmitForward(GraphBuilder& builder, const LossOptions& loss) {
  builder.EmitTo(&builder.graph().forward);
  ForwardPass pass;
  pass.input = EmitStageInput(builder);
  ResidualStream stream{.residual = pass.input.stream};
  const LayerRange range =
      StageLayers(builder.model(), builder.layout(), builder.stage());
  for (int64_t layer = range.begin; layer < range.end; ++layer) {
    Layer saved;
    saved.attention =
        EmitAttention(builder, layer, pass.input.document_starts, &stream);
    saved.feed_forward = EmitFeedForward(builder, layer, &stream);
    pass.layers.push_back(saved);
  }
  if (builder.is_last_stage()) {
    pass.head = EmitLossHead(builder, pass.input, stream, loss);
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

void EmitBackward(GraphBuilder& builder, const ForwardPass& pass,
                  const LossOptions& loss) {
  std::vector<GraphOp>& ops = builder.graph().backward;
  const Recompute recompute = builder.layout().recompute_of(builder.stage());
  builder.EmitTo(&ops);
  TensorId d_stream =
      builder.is_last_stage()
          ? EmitLossHeadBackward(builder, pass.input, pass.head, loss)
          : EmitReceiveGradient(builder);
  for (size_t i = pass.layers.size(); i-- > 0;) {
    if (i == 0 && ReducesEmbeddingEarly(builder)) {
      builder.EmitDeferred();
      builder.HoldDeferred();
    }
    Layer layer = pass.layers[i];
    RecomputeForFeedForward(builder, recompute, pass.input.document_starts,
                            &layer.attention, &layer.feed_forward);
    d_stream = EmitFeedForwardBackward(builder, layer.feed_forward, d_stream);
    RecomputeForAttention(builder, recompute, pass.input.document_starts,
                          &layer.attention);
    d_stream = EmitAttentionBackward(builder, layer.attention,
                                     pass.input.document_starts, d_stream);
    builder.LastDeferred().completes_bucket =
        builder.BucketIndex(absl::StrCat("layers.", layer.attention.layer));
  }
  // The first layer's first norm is the last to be differentiated.
  for (size_t i = ops.size(); i-- > 0;) {
    if (ops[i].kind != OpKind::kRmsNormBackward) continue;
    ops[i].completes_bucket = builder.BucketIndex("norms");
    break;
  }
  EmitStageInputBackward(builder, pass.input, d_stream);
  InsertParameterGathers(builder, builder.graph().sharded.backward_parameters,
                         &ops);
  InsertGradientZeroing(builder, &ops);
}

double TokenScale(const ModelSpec& model, int64_t num_sequences) {
  return 1.0 / static_cast<double>(num_sequences * model.sequence_length);
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
  EmitGatherParameters(builder);
  const LossOptions loss{
      .token_scale = TokenScale(model, layout.global_batch()),
      .forward_only = false};
  const ForwardPass pass = EmitForward(builder, loss);
  EmitBackward(builder, pass, loss);
  EmitOptimizer(builder);
  return std::move(builder).Build();
}

Graph BuildValidationGraph(const ModelSpec& model, const Layout& layout,
                           int32_t stage) {
  GraphBuilder builder(model, layout, stage);
  builder.AddPersistentTensors(ProgramKind::kValidation);
  builder.EmitTo(&builder.graph().prologue);
  EmitZeroScalars(builder);
  EmitGatherParameters(builder);
  EmitForward(builder, {.token_scale = TokenScale(
                            model, int64_t{layout.micro_batch} * layout.data),
                        .forward_only = true});
  builder.EmitTo(&builder.graph().epilogue);
  EmitReduceScalars(builder);
  return std::move(builder).Build();
}

Graph BuildPublishGraph(const ModelSpec& model, const Layout& layout,
                        int32_t stage) {
  GraphBuilder builder(model, layout, stage);
  builder.AddPersistentTensors(ProgramKind::kPublish);
  if (layout.precision == Precision::kBfloat16) {
    builder.EmitTo(&builder.graph().prologue);
    EmitCastParameters(builder);
  }
  return std::move(builder).Build();
}

}  // namespace millrace
