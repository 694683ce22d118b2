#include "planner/cost/layer_work.h"

namespace millrace {
namespace {

double AsDouble(int64_t value) { return static_cast<double>(value); }

// Parameters of attention that the tensor axis cuts, and those it does not.
double ShardedAttention(const ModelSpec& model) {
  const LatentAttention& mla = model.mla;
  const double output = AsDouble(model.hidden * model.attended_width());
  if (mla.kv_rank == 0) {
    return output + AsDouble((model.hidden + (model.qkv_bias ? 1 : 0)) *
                             model.qkv_width());
  }
  const int64_t query_input =
      mla.query_rank > 0 ? mla.query_rank : model.hidden;
  return output + AsDouble(query_input * model.query_width() +
                           mla.kv_rank * model.num_heads *
                               (mla.nope_head_dim + mla.value_head_dim));
}

double WholeAttention(const ModelSpec& model) {
  const LatentAttention& mla = model.mla;
  if (mla.kv_rank == 0) {
    return AsDouble((model.qk_norm ? 2 * model.head_dim : 0) +
                    (model.linear_bias ? model.hidden : 0));
  }
  return AsDouble((mla.query_rank + mla.kv_rank) * (model.hidden + 1) +
                  mla.rope_head_dim * model.hidden);
}

}  // namespace

RankParameters ParametersOfLayer(const ModelSpec& model, const Layout& layout,
                                 LayerKind kind) {
  const auto tensor = AsDouble(layout.tensor);
  const int64_t expert = (model.num_inner_projections() + 1) * model.hidden;
  RankParameters parameters;
  parameters.dense = ShardedAttention(model) / tensor + WholeAttention(model) +
                     AsDouble(model.num_layer_norms() * model.norm_width());
  if (kind != LayerKind::kExperts) {
    parameters.dense += AsDouble(expert * model.ffn_hidden) / tensor;
    if (model.linear_bias) {
      parameters.dense +=
          AsDouble(model.num_inner_projections() * model.ffn_hidden) / tensor +
          AsDouble(model.hidden);
    }
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
  return {.dense = AsDouble((model.vocab_size + model.learned_positions) *
                            model.hidden) /
                   layout.tensor};
}

RankParameters ParametersOfHead(const ModelSpec& model, const Layout& layout) {
  RankParameters parameters{.dense = AsDouble(model.norm_width())};
  // A pipeline's last stage has a copy of a tied embedding.
  if (!model.ties_embedding || layout.pipeline > 1) {
    parameters.dense +=
        AsDouble(model.vocab_size * model.hidden) / layout.tensor;
  }
  return parameters;
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
