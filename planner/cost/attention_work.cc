#include "planner/cost/layer_work_builder.h"

namespace millrace {
namespace {

int64_t LocalHeads(const LayerBuilder& builder) {
  return builder.model().num_heads / builder.layout().tensor;
}

int64_t LocalKvHeads(const LayerBuilder& builder) {
  return builder.model().num_kv_heads / builder.layout().tensor;
}

// Query, key and value by one product from the normed stream.
void AddPlainProjections(LayerBuilder& builder) {
  const ModelSpec& model = builder.model();
  const int64_t tokens = builder.tokens();
  const int64_t query = LocalHeads(builder) * model.head_dim;
  const int64_t kv = LocalKvHeads(builder) * model.head_dim;
  builder.KeepNormed(model.hidden);
  builder.EnterTensor(Piece::kQkv, model.hidden);
  const auto per_token = AsDouble(tokens);
  if (builder.RepeatsSecondProducts()) {
    // Query, key, value: the second is computed again, and what follows from
    // the others is made anew from their outputs.
    builder.Linear(Piece::kQkv, {tokens, query + kv, model.hidden});
    builder.Linear(Piece::kSecondProduct, {tokens, kv, model.hidden});
    builder.KeepElements(Piece::kQkv, per_token * AsDouble(query + kv));
    builder.KeepElements(Piece::kSecondProduct, per_token * AsDouble(kv));
  } else {
    builder.Linear(Piece::kQkv, {tokens, query + 2 * kv, model.hidden});
    builder.KeepElements(Piece::kQkv, per_token * AsDouble(query + 2 * kv));
  }
  const double rotated = 2 * per_token * AsDouble(query + kv);
  builder.Elementwise(Piece::kRotary, rotated, rotated);
}

// DeepSeek-V2 (2024), section 2.1. The projections to the latent vectors are
// whole on every tensor rank and work on its share of the tokens.
void AddLatentProjections(LayerBuilder& builder) {
  const ModelSpec& model = builder.model();
  const LatentAttention& mla = model.mla;
  const int64_t tokens = builder.tokens();
  const int64_t norm_tokens = builder.norm_tokens();
  const int64_t heads = LocalHeads(builder);
  const int64_t kv_latent = mla.kv_rank + mla.rope_head_dim;

  builder.Keep(Piece::kNorm, AsDouble(norm_tokens * model.hidden) *
                                 builder.product_input_bytes());
  if (mla.query_rank > 0) {
    builder.Linear(Piece::kProduct,
                   {norm_tokens, mla.query_rank, model.hidden});
  }
  builder.Linear(Piece::kProduct, {norm_tokens, kv_latent, model.hidden});
  const int64_t normed = mla.query_rank + mla.kv_rank;
  builder.KeepElements(Piece::kProduct,
                       AsDouble(norm_tokens * (normed + mla.rope_head_dim)));
  const auto latent = AsDouble(norm_tokens * normed);
  builder.Elementwise(Piece::kNorm, 2 * latent, 3 * latent);
  builder.KeepNormed(normed);

  builder.EnterTensor(Piece::kQkv, normed + mla.rope_head_dim);
  if (mla.query_rank > 0) {
    builder.Linear(Piece::kLatentProjection,
                   {tokens, heads * model.head_dim, mla.query_rank});
  } else {
    builder.EnterTensor(Piece::kProduct, model.hidden);
    builder.Linear(Piece::kProduct,
                   {tokens, heads * model.head_dim, model.hidden});
  }
  builder.Linear(
      Piece::kLatentProjection,
      {tokens, heads * (mla.nope_head_dim + mla.value_head_dim), mla.kv_rank});
  // Queries turn in place; keys are put together from their parts.
  const auto rows = AsDouble(tokens * heads);
  const double passes = AsDouble(2 * mla.rope_head_dim + 2 * model.head_dim);
  builder.Elementwise(Piece::kLatentProjection, rows * passes, rows * passes);
  builder.KeepElements(
      mla.query_rank > 0 ? Piece::kLatentProjection : Piece::kProduct,
      rows * AsDouble(model.head_dim));
  builder.KeepElements(Piece::kLatentProjection,
                       rows * AsDouble(model.head_dim + mla.value_head_dim));
}

// Each rank's queries see the keys and values of all ranks of the axis; what
// the axis passes round is [tokens of all, keys and values].
void AddContextExchange(LayerBuilder& builder) {
  const Layout& layout = builder.layout();
  if (layout.context == 1) return;
  const ModelSpec& model = builder.model();
  const double elements = AsDouble(builder.tokens()) * layout.context *
                          AsDouble(LocalKvHeads(builder) *
                                   (model.head_dim + model.value_head_dim()));
  if (builder.implementation().context_ring) {
    builder.Communicate(Piece::kAttention, CommAxis::kContext, CommKind::kRing,
                        elements);
    // Keys and values once more, and their gradients with them.
    builder.CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kContext,
                                CommKind::kRing, 2 * elements);
    return;
  }
  builder.Communicate(Piece::kAttention, CommAxis::kContext,
                      CommKind::kAllGather, elements);
  builder.CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kContext,
                              CommKind::kAllGather, elements);
  builder.CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kContext,
                              CommKind::kReduceScatter, elements);
}

// The matrix of scores, for attention without flash: softmax in place, then
// dropout, which keeps its mask and output.
void AddScores(LayerBuilder& builder) {
  const ModelSpec& model = builder.model();
  const double pairs = AsDouble(builder.tokens() * LocalHeads(builder)) *
                       AsDouble(model.sequence_length);
  const bool dropout = builder.implementation().dropout;
  builder.KeepElements(Piece::kAttention, pairs);
  if (dropout)
    builder.Keep(Piece::kAttention, (1 + builder.element_bytes()) * pairs);
  // Scale, mask and softmax in one pass, dropout in another.
  builder.Elementwise(Piece::kAttention, (dropout ? 4.5 : 2) * pairs,
                      (dropout ? 5.5 : 3) * pairs);
}

}  // namespace

void AddAttention(LayerBuilder& builder) {
  const ModelSpec& model = builder.model();
  const Layout& layout = builder.layout();
  const Implementation& implementation = builder.implementation();
  const int64_t tokens = builder.tokens();
  const auto normed = AsDouble(builder.norm_tokens() * model.hidden);
  const int64_t attended = LocalHeads(builder) * model.value_head_dim();

  builder.Begin(LayerPart::kAttention);
  builder.KeepInput(normed);
  builder.Norm(builder.norm_tokens(), model.hidden);
  if (model.mla.kv_rank > 0) {
    AddLatentProjections(builder);
  } else {
    AddPlainProjections(builder);
  }

  AddContextExchange(builder);
  const bool flash = implementation.flash_attention;
  builder.Attention({.phase = WorkPhase::kForward,
                     .num_sequences = layout.micro_batch,
                     .num_heads = LocalHeads(builder),
                     .num_kv_heads = LocalKvHeads(builder),
                     .query_tokens = model.sequence_length / layout.context,
                     .key_tokens = model.sequence_length,
                     .head_dim = model.head_dim,
                     .value_head_dim = model.value_head_dim(),
                     .causal_share = flash ? 0.5 : 1.0,
                     .flash = flash});
  if (flash) {
    constexpr double kStatisticBytes = 4;  // Log of the sum of exponentials.
    builder.Keep(Piece::kAttention,
                 kStatisticBytes * AsDouble(tokens * LocalHeads(builder)));
  } else {
    AddScores(builder);
  }
  // Both attention's backward pass and the output product's read it.
  const auto attended_elements = AsDouble(tokens * attended);
  builder.KeepElements(Piece::kAttended, attended_elements);
  if (builder.product_input_bytes() < builder.element_bytes()) {
    builder.Keep(Piece::kAttended,
                 attended_elements * builder.product_input_bytes());
  }

  builder.Linear(Piece::kOutput, {tokens, model.hidden, attended});
  builder.LeaveTensor(Piece::kOutputSum, model.hidden);
  if (implementation.dropout) builder.Keep(Piece::kProduct, normed);

  // Backward: gradients of output, attended, query, key and value and input,
  // and the query's in fp32.
  const int64_t projected =
      LocalHeads(builder) * model.head_dim +
      LocalKvHeads(builder) * (model.head_dim + model.value_head_dim());
  builder.Work(
      builder.element_bytes() *
          AsDouble(tokens * (2 * model.hidden + attended + projected)) +
      4 * AsDouble(tokens * LocalHeads(builder) * model.head_dim));
}

}  // namespace millrace
