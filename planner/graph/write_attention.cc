#include "planner/graph/layer_writer.h"

namespace millrace {
namespace {

int64_t LocalHeads(const LayerWriter& writer) {
  return writer.model().num_heads / writer.layout().tensor;
}

int64_t LocalKvHeads(const LayerWriter& writer) {
  return writer.model().num_kv_heads / writer.layout().tensor;
}

// Query, key and value by one product from the normed stream.
void WritePlainProjections(LayerWriter& writer) {
  const ModelSpec& model = writer.model();
  const int64_t tokens = writer.tokens();
  const int64_t query = LocalHeads(writer) * model.head_dim;
  const int64_t kv = LocalKvHeads(writer) * model.head_dim;
  writer.KeepNormed(model.hidden);
  writer.EnterTensor(Piece::kQkv, model.hidden);
  const double per_token = AsDouble(tokens);
  if (writer.RecomputesSecondProducts()) {
    // Query, key, value: the second product is recomputed. Ops that follow from
    // the others are recomputed from their outputs.
    writer.Linear(Piece::kQkv, {.tokens = tokens,
                                .out = query + kv,
                                .in = model.hidden,
                                .bias = model.qkv_bias});
    writer.Linear(Piece::kSecondProduct, {.tokens = tokens,
                                          .out = kv,
                                          .in = model.hidden,
                                          .bias = model.qkv_bias});
    writer.KeepElements(Piece::kQkv, per_token * AsDouble(query + kv));
    writer.KeepElements(Piece::kSecondProduct, per_token * AsDouble(kv));
  } else {
    writer.Linear(Piece::kQkv, {.tokens = tokens,
                                .out = query + 2 * kv,
                                .in = model.hidden,
                                .bias = model.qkv_bias});
    writer.KeepElements(Piece::kQkv, per_token * AsDouble(query + 2 * kv));
  }
  writer.Rope(Piece::kRotary);
}

// DeepSeek-V2 (2024), section 2.1. The projections to the latent vectors are
// whole on every tensor rank and work on its share of the tokens.
void WriteLatentProjections(LayerWriter& writer) {
  const ModelSpec& model = writer.model();
  const LatentAttention& mla = model.mla;
  const int64_t tokens = writer.tokens();
  const int64_t norm_tokens = writer.norm_tokens();
  const int64_t heads = LocalHeads(writer);
  const int64_t kv_latent = mla.kv_rank + mla.rope_head_dim;

  writer.Keep(Piece::kNorm, AsDouble(norm_tokens * model.hidden) *
                                writer.product_input_bytes());
  if (mla.query_rank > 0) {
    writer.Linear(Piece::kProduct, {norm_tokens, mla.query_rank, model.hidden});
  }
  writer.Linear(Piece::kProduct, {norm_tokens, kv_latent, model.hidden});
  const int64_t normed = mla.query_rank + mla.kv_rank;
  writer.KeepElements(Piece::kProduct,
                      AsDouble(norm_tokens * (normed + mla.rope_head_dim)));
  const double latent = AsDouble(norm_tokens * normed);
  writer.Elementwise(OpKind::kElementwise, Piece::kNorm, 2 * latent,
                     3 * latent);
  writer.KeepNormed(normed);

  writer.EnterTensor(Piece::kQkv, normed + mla.rope_head_dim);
  if (mla.query_rank > 0) {
    writer.Linear(Piece::kLatentProjection,
                  {tokens, heads * model.head_dim, mla.query_rank});
  } else {
    writer.EnterTensor(Piece::kProduct, model.hidden);
    writer.Linear(Piece::kProduct,
                  {tokens, heads * model.head_dim, model.hidden});
  }
  writer.Linear(
      Piece::kLatentProjection,
      {tokens, heads * (mla.nope_head_dim + mla.value_head_dim), mla.kv_rank});
  // Queries are rotated in place. Keys are put together from their parts.
  const double rows = AsDouble(tokens * heads);
  const double passes = AsDouble(2 * mla.rope_head_dim + 2 * model.head_dim);
  writer.Elementwise(OpKind::kElementwise, Piece::kLatentProjection,
                     rows * passes, rows * passes);
  writer.KeepElements(
      mla.query_rank > 0 ? Piece::kLatentProjection : Piece::kProduct,
      rows * AsDouble(model.head_dim));
  writer.KeepElements(Piece::kLatentProjection,
                      rows * AsDouble(model.head_dim + mla.value_head_dim));
}

// Each rank's queries see the keys and values of all ranks of the context axis.
// The axis passes round or gathers [tokens of all ranks, keys and values].
void WriteContextExchange(LayerWriter& writer) {
  const Layout& layout = writer.layout();
  if (layout.context == 1) return;
  const ModelSpec& model = writer.model();
  const double elements = AsDouble(writer.tokens()) * layout.context *
                          AsDouble(LocalKvHeads(writer) *
                                   (model.head_dim + model.value_head_dim()));
  if (!writer.style().context_ring) {
    writer.Exchange(OpKind::kContextGather, Piece::kAttention, elements);
    writer.ExchangeBackward(OpKind::kContextReduceScatter, elements);
    writer.ExchangeBackward(OpKind::kContextGather, elements);
    return;
  }
  writer.Exchange(OpKind::kContextRing, Piece::kAttention, elements);
  // Keys and values once more, and their gradients with them.
  writer.ExchangeBackward(OpKind::kContextRing, 2 * elements);
  // After each part of the ring, the output so far is scaled and added to in
  // fp32. Backward, the gradient of the queries is (Liu et al., 2023).
  constexpr double kBytes = 4 + 4 + 2;  // Sum in, sum out, part in.
  const double bytes =
      kBytes * layout.context *
      AsDouble(writer.tokens() * LocalHeads(writer) * model.value_head_dim());
  writer.Traffic(OpKind::kElementwise, Piece::kAttention, bytes, bytes,
                 /*launches=*/0);
}

// The matrix of scores, for attention without flash: softmax in place, then
// dropout, which keeps its mask and output.
void WriteScores(LayerWriter& writer) {
  const ModelSpec& model = writer.model();
  const double pairs = AsDouble(writer.tokens() * LocalHeads(writer)) *
                       AsDouble(model.sequence_length);
  const bool dropout = writer.style().dropout;
  writer.KeepElements(Piece::kAttention, pairs);
  if (dropout) {
    writer.Keep(Piece::kAttention, (1 + writer.element_bytes()) * pairs);
  }
  // Scale, mask and softmax in one pass, dropout in another.
  writer.Elementwise(OpKind::kElementwise, Piece::kAttention,
                     (dropout ? 4.5 : 2) * pairs, (dropout ? 5.5 : 3) * pairs);
}

}  // namespace

void WriteAttention(LayerWriter& writer, StreamInput input) {
  const ModelSpec& model = writer.model();
  const int64_t tokens = writer.tokens();
  const double normed = AsDouble(writer.norm_tokens() * model.hidden);
  const int64_t attended = LocalHeads(writer) * model.value_head_dim();

  writer.BeginBlock(LayerBlock::kAttention);
  writer.Begin(LayerPart::kAttention);
  writer.KeepInput(normed);
  writer.Norm(writer.norm_tokens(), input);
  if (model.mla.kv_rank > 0) {
    WriteLatentProjections(writer);
  } else {
    WritePlainProjections(writer);
  }

  WriteContextExchange(writer);
  writer.Attention();
  if (writer.style().flash_attention) {
    constexpr double kStatisticBytes = 4;  // Log of the sum of exponentials.
    writer.Keep(Piece::kAttention,
                kStatisticBytes * AsDouble(tokens * LocalHeads(writer)));
  } else {
    WriteScores(writer);
  }
  // Both attention's backward pass and the output product's read it.
  const double attended_elements = AsDouble(tokens * attended);
  writer.KeepElements(Piece::kAttended, attended_elements);
  if (writer.product_input_bytes() < writer.element_bytes()) {
    writer.Keep(Piece::kAttended,
                attended_elements * writer.product_input_bytes());
  }

  writer.Linear(Piece::kOutput, {.tokens = tokens,
                                 .out = model.hidden,
                                 .in = attended,
                                 .bias = model.linear_bias});
  writer.LeaveTensor(Piece::kOutputSum, model.hidden);
  writer.OutputNorm(Piece::kOutputSum);
  if (writer.style().dropout) writer.Keep(Piece::kProduct, normed);

  // Backward: gradients of output, attended, query, key and value and input,
  // and the query's in fp32.
  const int64_t projected =
      LocalHeads(writer) * model.head_dim +
      LocalKvHeads(writer) * (model.head_dim + model.value_head_dim());
  writer.Work(writer.element_bytes() *
                  AsDouble(tokens * (2 * model.hidden + attended + projected)) +
              writer.copy_bytes() * AsDouble(tokens * projected) +
              4 * AsDouble(tokens * LocalHeads(writer) * model.head_dim));
}

}  // namespace millrace
