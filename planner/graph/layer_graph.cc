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
  const bool is_stored = model.is_stored_layer(layer);
  if (model.is_global_layer(layer)) {
    return is_stored ? LayerKind::kStoredGlobal : LayerKind::kGlobal;
  }
  return is_stored ? LayerKind::kStoredDense : LayerKind::kDense;
}

std::vector<LayerKind> KindsOfLayers(const ModelSpec& model) {
  std::vector<LayerKind> kinds;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const LayerKind kind = KindOfLayer(model, layer);
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
      kinds.push_back(kind);
    }
  }
  return kinds;
}

LayerGraph GraphOfLayer(const ModelSpec& model, const Layout& layout,
                        LayerKind kind, const Implementation& style,
                        StreamInput input) {
  Layout own = layout;
  if (kind == LayerKind::kStoredDense || kind == LayerKind::kStoredGlobal) {
    own.gemm_format = GemmFormat::kAsStored;
  }
  LayerWriter writer(model, own, style);
  if (kind == LayerKind::kStoredDense || kind == LayerKind::kStoredGlobal) {
    writer.AttendToStored();
  }
  if (kind == LayerKind::kGlobal || kind == LayerKind::kStoredGlobal) {
    writer.AttendGlobally();
  }
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
  const std::vector<LayerKind> kinds = KindsOfLayers(model);
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](LayerKind kind) {
                       return has_them(GraphOfLayer(model, layout, kind, {}));
                     }) ||
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
