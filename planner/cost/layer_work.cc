#include "planner/cost/layer_work.h"

#include "planner/cost/layer_work_builder.h"
#include "planner/lower/graph.h"

namespace millrace {
namespace {

// Parameters of attention that the tensor axis cuts, and those it does not.
double ShardedAttention(const ModelSpec& model) {
  const LatentAttention& mla = model.mla;
  const double output = AsDouble(model.hidden * model.attended_width());
  if (mla.kv_rank == 0) {
    return output + AsDouble(model.hidden * model.qkv_width());
  }
  const int64_t query_input =
      mla.query_rank > 0 ? mla.query_rank : model.hidden;
  return output + AsDouble(query_input * model.query_width() +
                           mla.kv_rank * model.num_heads *
                               (mla.nope_head_dim + mla.value_head_dim));
}

double WholeAttention(const ModelSpec& model) {
  const LatentAttention& mla = model.mla;
  if (mla.kv_rank == 0) return 0;
  return AsDouble((mla.query_rank + mla.kv_rank) * (model.hidden + 1) +
                  mla.rope_head_dim * model.hidden);
}

}  // namespace

double FlopsOf(const GemmWork& gemm) {
  return 2 * AsDouble(gemm.m) * AsDouble(gemm.n) * AsDouble(gemm.k) *
         AsDouble(gemm.count);
}

double FlopsOf(const AttentionWork& attention) {
  const double pairs = AsDouble(attention.num_sequences) *
                       AsDouble(attention.num_heads) *
                       AsDouble(attention.query_tokens) *
                       AsDouble(attention.key_tokens) * attention.causal_share;
  const auto query_key = AsDouble(attention.head_dim);
  const auto value = AsDouble(attention.value_head_dim);
  if (attention.phase != WorkPhase::kInputGradient) {
    return 2 * pairs * (query_key + value);
  }
  return 2 * pairs * ((attention.flash ? 3 : 2) * query_key + 2 * value);
}

LayerKind KindOfLayer(const ModelSpec& model, int64_t layer) {
  return layer < model.num_dense_layers() ? LayerKind::kDense
                                          : LayerKind::kExperts;
}

LayerWork WorkOfLayer(const ModelSpec& model, const Layout& layout,
                      LayerKind kind, const Implementation& implementation) {
  LayerBuilder builder(model, layout, implementation);
  AddAttention(builder);
  if (kind == LayerKind::kDense) {
    AddFeedForward(builder);
  } else {
    AddExperts(builder);
  }
  return std::move(builder).Build();
}

LayerWork WorkOfEmbedding(const ModelSpec& model, const Layout& layout,
                          const Implementation& implementation) {
  LayerBuilder builder(model, layout, implementation);
  LayerWork work;
  const double elements = AsDouble(builder.tokens() * model.hidden);
  const double bytes = builder.element_bytes();
  constexpr double kGradientBytes = 8;  // fp32, read and written.
  work.bandwidth = {{.phase = WorkPhase::kForward,
                     .bytes = 2 * bytes * elements,
                     .launches = 1},
                    {.phase = WorkPhase::kWeightGradient,
                     .bytes = (bytes + kGradientBytes) * elements,
                     .launches = 1}};
  if (layout.tensor > 1) {
    const bool shares = implementation.sequence_parallel;
    work.comm.push_back(
        {.phase = WorkPhase::kForward,
         .axis = CommAxis::kTensor,
         .kind = shares ? CommKind::kReduceScatter : CommKind::kAllReduce,
         .bytes = bytes * elements});
    if (shares) {
      work.comm.push_back({.phase = WorkPhase::kInputGradient,
                           .axis = CommAxis::kTensor,
                           .kind = CommKind::kAllGather,
                           .bytes = bytes * elements});
    }
  }
  if (implementation.dropout) {
    work.activation_bytes = builder.norm_tokens() * model.hidden;
  }
  work.working_bytes = static_cast<int64_t>(bytes * elements);
  return work;
}

LayerWork WorkOfHead(const ModelSpec& model, const Layout& layout,
                     const Implementation& implementation) {
  // Nothing of the head is computed again but logits that were not kept.
  Layout without_recompute = layout;
  without_recompute.recompute = Recompute::kNone;
  LayerBuilder builder(model, without_recompute, implementation);
  const int64_t tokens = builder.tokens();
  const int64_t vocab_rows = model.vocab_size / layout.tensor;
  const auto stream = AsDouble(builder.norm_tokens() * model.hidden);
  builder.KeepInput(stream);
  builder.Norm(builder.norm_tokens(), model.hidden);
  builder.KeepElements(Piece::kNorm, AsDouble(tokens * model.hidden));
  builder.Linear(Piece::kProduct, {.tokens = tokens,
                                   .out = vocab_rows,
                                   .in = model.hidden,
                                   .low_precision = false});
  // Statistics or losses of each token from every tensor rank, in fp32.
  const double statistics = AsDouble(3 * tokens * layout.tensor) * 4;
  if (layout.tensor > 1) {
    const auto gathered = AsDouble(tokens * model.hidden);
    if (implementation.sequence_parallel) {
      builder.Communicate(Piece::kProduct, CommAxis::kTensor,
                          CommKind::kAllGather, gathered);
      builder.CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kTensor,
                                  CommKind::kReduceScatter, gathered);
    } else {
      builder.CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kTensor,
                                  CommKind::kAllReduce, gathered);
    }
    builder.Communicate(Piece::kProduct, CommAxis::kTensor,
                        CommKind::kAllGather,
                        statistics / builder.element_bytes());
  }

  const auto logits = AsDouble(tokens * vocab_rows);
  const double hidden_gradient =
      builder.element_bytes() * AsDouble(tokens * model.hidden);
  if (!implementation.chunks_logits) {
    const double bytes = implementation.logit_bytes * logits;
    builder.Bandwidth(Piece::kProduct, bytes, bytes, 4);
    builder.Work(bytes + hidden_gradient);
    return std::move(builder).Build();
  }
  const int64_t chunk = ChunkTokens(layout.precision, tokens, vocab_rows);
  // Read for the statistics, read and overwritten for the gradient.
  builder.Bandwidth(Piece::kProduct, builder.element_bytes() * logits,
                    2 * builder.element_bytes() * logits,
                    static_cast<int32_t>((tokens + chunk - 1) / chunk));
  builder.Work(builder.element_bytes() * AsDouble(chunk * vocab_rows) +
               hidden_gradient);
  LayerWork work = std::move(builder).Build();
  // Between the statistics' exchange and the gradient, one chunk can be kept.
  const bool keeps_logits =
      layout.tensor == 1 ||
      (layout.precision == Precision::kBfloat16 && chunk >= tokens);
  if (!keeps_logits) {
    work.gemms.push_back({.phase = WorkPhase::kRecompute,
                          .m = tokens,
                          .n = vocab_rows,
                          .k = model.hidden,
                          .low_precision = false});
  }
  return work;
}

RankParameters ParametersOfLayer(const ModelSpec& model, const Layout& layout,
                                 LayerKind kind) {
  const auto tensor = AsDouble(layout.tensor);
  const int64_t expert = (model.num_inner_projections() + 1) * model.hidden;
  RankParameters parameters;
  parameters.dense = ShardedAttention(model) / tensor + WholeAttention(model) +
                     AsDouble(2 * model.hidden);
  if (kind == LayerKind::kDense) {
    parameters.dense += AsDouble(expert * model.ffn_hidden) / tensor;
    return parameters;
  }
  const MixtureOfExperts& moe = model.moe;
  parameters.dense +=
      AsDouble(moe.num_experts * model.hidden) +
      AsDouble(moe.num_shared_experts * expert * moe.expert_hidden) / tensor;
  parameters.experts = AsDouble(moe.num_experts / layout.expert) *
                       AsDouble(expert * moe.expert_hidden) /
                       layout.expert_tensor;
  return parameters;
}

RankParameters ParametersOfEmbedding(const ModelSpec& model,
                                     const Layout& layout) {
  return {.dense = AsDouble(model.vocab_size * model.hidden) / layout.tensor};
}

RankParameters ParametersOfHead(const ModelSpec& model, const Layout& layout) {
  RankParameters parameters{.dense = AsDouble(model.hidden)};
  // A pipeline's last stage has a copy of a tied embedding.
  if (!model.ties_embedding || layout.pipeline > 1) {
    parameters.dense +=
        AsDouble(model.vocab_size * model.hidden) / layout.tensor;
  }
  return parameters;
}

double StreamBytes(const ModelSpec& model, const Layout& layout,
                   const Implementation& implementation) {
  const LayerBuilder builder(model, layout, implementation);
  return builder.element_bytes() *
         AsDouble(builder.norm_tokens() * model.hidden);
}

int32_t NumExpertReplicas(const Layout& layout) {
  return layout.data * layout.context * layout.tensor /
         (layout.expert * layout.expert_tensor);
}

std::vector<LayerRange> ChunkLayers(const ModelSpec& model,
                                    const Layout& layout,
                                    const Implementation& implementation) {
  std::vector<LayerRange> chunks;
  if (layout.interleave == 1 && implementation.balances_stages) {
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      chunks.push_back(StageLayers(model, layout, stage));
    }
    return chunks;
  }
  const int64_t num_chunks = int64_t{layout.pipeline} * layout.interleave;
  const int64_t even = model.num_layers / num_chunks;
  const int64_t remainder = model.num_layers % num_chunks;
  // Inner chunks take one more layer first, the latest first; then the first,
  // with the embedding, then the last, with the head.
  auto turn_of = [&](int64_t chunk) {
    if (chunk == num_chunks - 1) return num_chunks - 1;
    return chunk == 0 ? num_chunks - 2 : num_chunks - 2 - chunk;
  };
  int64_t begin = 0;
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const int64_t end = begin + even + (turn_of(chunk) < remainder ? 1 : 0);
    chunks.push_back({.begin = begin, .end = end});
    begin = end;
  }
  return chunks;
}

}  // namespace millrace
