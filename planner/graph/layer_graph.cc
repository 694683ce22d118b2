#include "planner/graph/layer_graph.h"

#include <algorithm>
#include <utility>

#include "planner/graph/layer_writer.h"
#include "planner/program/op_table.h"
#include "planner/program/workspace.h"

namespace millrace {
namespace {

// The head as frameworks compute it: logits of all tokens, then the loss in
// passes over them.
void WriteWholeLoss(LayerWriter& writer) {
  const ModelSpec& model = writer.model();
  const int64_t tokens = writer.tokens();
  const int64_t vocab_rows = model.vocab_size / writer.layout().tensor;
  writer.Linear(Piece::kProduct, {.tokens = tokens,
                                  .out = vocab_rows,
                                  .in = model.hidden,
                                  .low_precision = false});
  writer.GatherStatistics();
  const double bytes =
      writer.style().logit_bytes * AsDouble(tokens * vocab_rows);
  constexpr int32_t kLaunches = 4;
  writer.Traffic(OpKind::kElementwise, Piece::kProduct, bytes, bytes,
                 kLaunches);
}

// Nothing of the ends is recomputed but logits that were not kept.
Layout WithoutRecompute(Layout layout) {
  layout.recompute = Recompute::kNone;
  return layout;
}

}  // namespace

LayerKind KindOfLayer(const ModelSpec& model, int64_t layer) {
  if (layer >= model.num_dense_layers()) return LayerKind::kExperts;
  return model.is_global_layer(layer) ? LayerKind::kGlobal : LayerKind::kDense;
}

LayerGraph GraphOfLayer(const ModelSpec& model, const Layout& layout,
                        LayerKind kind, const Implementation& style,
                        StreamInput input) {
  LayerWriter writer(model, layout, style);
  if (kind == LayerKind::kGlobal) writer.AttendGlobally();
  WriteAttention(writer, input);
  if (kind == LayerKind::kExperts) {
    WriteExperts(writer);
  } else {
    WriteFeedForward(writer);
  }
  writer.OutputNorm(Piece::kLast);
  return std::move(writer).Build();
}

LayerGraph GraphOfEmbedding(const ModelSpec& model, const Layout& layout,
                            const Implementation& style) {
  const Layout without_recompute = WithoutRecompute(layout);
  LayerWriter writer(model, without_recompute, style);
  writer.Embedding();
  writer.LeaveTensor(Piece::kLast, model.hidden);
  if (style.dropout) {
    writer.Keep(Piece::kProduct, AsDouble(writer.norm_tokens() * model.hidden));
  }
  writer.Work(writer.element_bytes() *
              AsDouble(writer.tokens() * model.hidden));
  return std::move(writer).Build();
}

LayerGraph GraphOfHead(const ModelSpec& model, const Layout& layout,
                       const Implementation& style, LossUse use) {
  const Layout without_recompute = WithoutRecompute(layout);
  LayerWriter writer(model, without_recompute, style);
  const int64_t tokens = writer.tokens();
  const int64_t gathered = tokens * model.hidden;
  writer.KeepInput(AsDouble(writer.norm_tokens() * model.hidden));
  writer.Norm(writer.norm_tokens());
  writer.KeepElements(Piece::kNorm, AsDouble(gathered));
  if (layout.tensor > 1 && style.sequence_parallel) {
    writer.Collective(LayerStep::kGather, OpKind::kAllGather, Piece::kProduct,
                      gathered);
    writer.CollectiveBackward(LayerStep::kGather, OpKind::kReduceScatter,
                              Phase::kInputGradient, gathered);
  } else if (layout.tensor > 1) {
    writer.CollectiveBackward(LayerStep::kGather, OpKind::kAllReduce,
                              Phase::kInputGradient, gathered);
  }
  const int64_t vocab_rows = model.vocab_size / layout.tensor;
  if (style.chunks_logits) {
    writer.ChunkedLoss(use);
    writer.Work(writer.element_bytes() *
                AsDouble(ChunkTokens(layout.precision, tokens, vocab_rows) *
                             vocab_rows +
                         gathered));
  } else {
    WriteWholeLoss(writer);
    writer.Work(style.logit_bytes * AsDouble(tokens * vocab_rows) +
                writer.element_bytes() * AsDouble(gathered));
  }
  return std::move(writer).Build();
}

bool HasPlanOnlyOps(const ModelSpec& model) {
  const Layout layout;
  const auto has_them = [](const LayerGraph& graph) {
    return std::any_of(graph.ops.begin(), graph.ops.end(),
                       [](const LayerOp& op) { return IsPlanOnly(op.kind); });
  };
  return (model.num_dense_layers() > 0 &&
          has_them(GraphOfLayer(model, layout, LayerKind::kDense, {}))) ||
         (model.num_global_layers() > 0 &&
          has_them(GraphOfLayer(model, layout, LayerKind::kGlobal, {}))) ||
         (model.num_expert_layers() > 0 &&
          has_them(GraphOfLayer(model, layout, LayerKind::kExperts, {}))) ||
         has_them(GraphOfEmbedding(model, layout, {})) ||
         has_them(GraphOfHead(model, layout, {}));
}

double StreamBytes(const ModelSpec& model, const Layout& layout,
                   const Implementation& style) {
  const int64_t tokens =
      layout.micro_batch * model.sequence_length / layout.context;
  const int64_t on_rank =
      style.sequence_parallel ? tokens / layout.tensor : tokens;
  return AsDouble(on_rank * model.hidden *
                  DTypeBytes(ActivationType(layout.precision)));
}

}  // namespace millrace
