#include "planner/program/parameters.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/units.h"

namespace millrace {
namespace {

Parameter Matrix(std::string name, int64_t rows, int64_t cols,
                 TensorShard shard) {
  return {.name = std::move(name),
          .rows = rows,
          .cols = cols,
          .is_vector = false,
          .shard = shard};
}

Parameter Vector(std::string name, int64_t cols, TensorShard shard) {
  return {.name = std::move(name),
          .rows = 1,
          .cols = cols,
          .is_vector = true,
          .shard = shard};
}

Parameter OfNorm(std::string name, int64_t width) {
  Parameter parameter =
      Vector(std::move(name), width, TensorShard::kReplicated);
  parameter.is_of_norm = true;
  return parameter;
}

// A norm of the stream: its weight and, in LayerNorm, its bias.
void AddStreamNorm(const ModelSpec& model, const std::string& name,
                   std::vector<Parameter>* all) {
  all->push_back(OfNorm(absl::StrCat(name, ".weight"), model.hidden));
  if (model.norm != NormKind::kLayer) return;
  all->push_back(OfNorm(absl::StrCat(name, ".bias"), model.hidden));
}

bool IsBias(absl::string_view name) { return absl::EndsWith(name, ".bias"); }

std::vector<Parameter> EmbeddingParameters(const ModelSpec& model) {
  return {Matrix("model.embed_tokens.weight", model.vocab_size, model.hidden,
                 TensorShard::kRows)};
}

std::vector<Parameter> PositionParameters(const ModelSpec& model) {
  if (model.learned_positions == 0) return {};
  return {Matrix("model.embed_positions.weight", model.learned_positions,
                 model.hidden, TensorShard::kRows)};
}

// In canonical order; norms and matrices mixed.
std::vector<Parameter> LayerParameters(const ModelSpec& model, int64_t layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const int64_t h = model.hidden;
  auto rows = [&](absl::string_view name, int64_t num_rows) {
    return Matrix(absl::StrCat(prefix, name, ".weight"), num_rows, h,
                  TensorShard::kRows);
  };
  auto columns = [&](absl::string_view name, int64_t num_cols) {
    return Matrix(absl::StrCat(prefix, name, ".weight"), h, num_cols,
                  TensorShard::kColumns);
  };
  // As the rows of its matrix are cut.
  auto bias = [&](absl::string_view name, int64_t num_rows) {
    return Vector(absl::StrCat(prefix, name, ".bias"), num_rows,
                  TensorShard::kColumns);
  };
  auto whole_bias = [&](absl::string_view name) {
    return Vector(absl::StrCat(prefix, name, ".bias"), h,
                  TensorShard::kReplicated);
  };
  std::vector<Parameter> all;
  const BlockNorms attention = NormsOfBlock(model, /*is_attention=*/true);
  const BlockNorms feed_forward = NormsOfBlock(model, /*is_attention=*/false);
  const auto norm = [&](const char* name) {
    if (name == nullptr) return;
    AddStreamNorm(model, absl::StrCat(prefix, name), &all);
  };
  norm(attention.input);
  all.push_back(rows("self_attn.q_proj", model.query_width()));
  all.push_back(rows("self_attn.k_proj", model.kv_width()));
  all.push_back(rows("self_attn.v_proj", model.kv_width()));
  if (model.qkv_bias) {
    all.push_back(bias("self_attn.q_proj", model.query_width()));
    all.push_back(bias("self_attn.k_proj", model.kv_width()));
    all.push_back(bias("self_attn.v_proj", model.kv_width()));
  }
  if (model.qk_norm) {
    for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"}) {
      all.push_back(
          OfNorm(absl::StrCat(prefix, name, ".weight"), model.head_dim));
    }
  }
  all.push_back(columns("self_attn.o_proj", model.query_width()));
  if (model.linear_bias) all.push_back(whole_bias("self_attn.o_proj"));
  norm(attention.output);
  norm(feed_forward.input);
  const std::vector<absl::string_view> inner =
      model.num_inner_projections() == 2
          ? std::vector<absl::string_view>{"mlp.gate_proj", "mlp.up_proj"}
          : std::vector<absl::string_view>{"mlp.up_proj"};
  for (const absl::string_view name : inner) {
    all.push_back(rows(name, model.ffn_hidden));
  }
  if (model.linear_bias) {
    for (const absl::string_view name : inner) {
      all.push_back(bias(name, model.ffn_hidden));
    }
  }
  all.push_back(columns("mlp.down_proj", model.ffn_hidden));
  if (model.linear_bias) all.push_back(whole_bias("mlp.down_proj"));
  norm(feed_forward.output);
  return all;
}

std::vector<Parameter> FinalNorm(const ModelSpec& model) {
  std::vector<Parameter> all;
  AddStreamNorm(model, "model.norm", &all);
  return all;
}

std::vector<Parameter> HeadParameters(const ModelSpec& model) {
  return {Matrix(model.head_name(), model.vocab_size, model.hidden,
                 TensorShard::kRows)};
}

// k, v and up continue the matrix of the slot before them: one GEMM reads both.
// So do their biases.
bool ContinuesFusedMatrix(absl::string_view before, absl::string_view name) {
  constexpr std::pair<const char*, const char*> kPairs[] = {
      {"q_proj.", "k_proj."},
      {"k_proj.", "v_proj."},
      {"gate_proj.", "up_proj."}};
  for (const char* kind : {"weight", "bias"}) {
    for (const auto& [first, second] : kPairs) {
      if (absl::EndsWith(before, absl::StrCat(first, kind)) &&
          absl::EndsWith(name, absl::StrCat(second, kind))) {
        return true;
      }
    }
  }
  return false;
}

enum class BucketKind : uint8_t { kMatrices, kBiases, kWholeBiases, kNorms };

BucketKind KindOf(const Parameter& parameter) {
  if (!parameter.is_vector) return BucketKind::kMatrices;
  if (parameter.is_of_norm) return BucketKind::kNorms;
  return parameter.shard == TensorShard::kReplicated ? BucketKind::kWholeBiases
                                                     : BucketKind::kBiases;
}

// Lays slots and buckets out one after the other.
class StageParametersBuilder {
 public:
  explicit StageParametersBuilder(const Layout& layout) : layout_(layout) {}

  void AddBucket(std::string name, const std::vector<Parameter>& parameters,
                 BucketKind kind, bool in_float8 = false) {
    Bucket bucket{.name = std::move(name),
                  .offset = stage_.num_elements,
                  .num_elements = 0,
                  .weight_decay = kind == BucketKind::kMatrices,
                  .tensor_replicated = kind == BucketKind::kNorms ||
                                       kind == BucketKind::kWholeBiases,
                  .is_read_all_along = kind != BucketKind::kMatrices,
                  .is_copy = false,
                  .slots = {},
                  .float8_matrices = {}};
    int64_t end = bucket.offset;
    std::vector<int64_t> begins;  // Of matrices.
    absl::string_view before;
    for (const Parameter& parameter : parameters) {
      const ParameterBox box = TensorBox(parameter, layout_.tensor, 0);
      // Every operand of an op starts at its alignment.
      if (!ContinuesFusedMatrix(before, parameter.name)) {
        end =
            RoundUp(end, in_float8 ? kFloat8BucketAlignment : kBucketAlignment);
        begins.push_back(end - bucket.offset);
      }
      before = parameter.name;
      bucket.slots.push_back(static_cast<int32_t>(stage_.slots.size()));
      stage_.slots.push_back({.parameter = parameter,
                              .local_rows = box.row_end - box.row_begin,
                              .local_cols = box.col_end - box.col_begin,
                              .offset = end});
      end += box.num_elements();
    }
    bucket.num_elements =
        RoundUp(end - bucket.offset, layout_.data * BucketAlignment(layout_));
    if (in_float8) bucket.float8_matrices = std::move(begins);
    stage_.num_elements += bucket.num_elements;
    stage_.num_optimizer_elements +=
        bucket.num_elements /
        (layout_.shards_optimizer() ? layout_.group_data() : 1);
    stage_.buckets.push_back(std::move(bucket));
  }

  Bucket& last_bucket() { return stage_.buckets.back(); }

  StageParameters Build() && { return std::move(stage_); }

 private:
  const Layout& layout_;
  StageParameters stage_{.slots = {},
                         .buckets = {},
                         .num_elements = 0,
                         .num_optimizer_elements = 0};
};

}  // namespace

std::vector<Parameter> ModelParameters(const ModelSpec& model) {
  std::vector<Parameter> all = EmbeddingParameters(model);
  for (Parameter& parameter : PositionParameters(model)) {
    all.push_back(std::move(parameter));
  }
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (Parameter& parameter : LayerParameters(model, layer)) {
      all.push_back(std::move(parameter));
    }
  }
  for (Parameter& parameter : FinalNorm(model)) {
    all.push_back(std::move(parameter));
  }
  if (!model.ties_embedding) all.push_back(HeadParameters(model).front());
  return all;
}

BlockNorms NormsOfBlock(const ModelSpec& model, bool is_attention) {
  if (!model.output_norms) {
    return {is_attention ? "input_layernorm" : "post_attention_layernorm",
            nullptr};
  }
  return is_attention
             ? BlockNorms{"input_layernorm", "post_attention_layernorm"}
             : BlockNorms{"pre_feedforward_layernorm",
                          "post_feedforward_layernorm"};
}

float InitialVectorValue(const ModelSpec& model, absl::string_view name) {
  return IsBias(name) || model.norm_adds_one ? 0.0f : 1.0f;
}

ParameterBox TensorBox(const Parameter& parameter, int32_t tensor_size,
                       int32_t tensor_idx) {
  ParameterBox box{.row_begin = 0,
                   .row_end = parameter.rows,
                   .col_begin = 0,
                   .col_end = parameter.cols};
  switch (parameter.shard) {
    case TensorShard::kReplicated:
      break;
    case TensorShard::kRows: {
      CHECK(parameter.rows % tensor_size == 0) << parameter.name;
      const int64_t rows = parameter.rows / tensor_size;
      box.row_begin = rows * tensor_idx;
      box.row_end = box.row_begin + rows;
      break;
    }
    case TensorShard::kColumns: {
      CHECK(parameter.cols % tensor_size == 0) << parameter.name;
      const int64_t cols = parameter.cols / tensor_size;
      box.col_begin = cols * tensor_idx;
      box.col_end = box.col_begin + cols;
      break;
    }
  }
  return box;
}

bool HasPadding(const StageParameters& parameters, const Bucket& bucket) {
  int64_t used = 0;
  for (int32_t idx : bucket.slots) {
    used += parameters.slots[idx].local_rows * parameters.slots[idx].local_cols;
  }
  return used != bucket.num_elements;
}

bool IsInFloat8(const ModelSpec& model, const Layout& layout, int64_t layer) {
  return layout.gemm_format == GemmFormat::kFloat8 &&
         !model.is_stored_layer(layer);
}

int64_t BucketAlignment(const Layout& layout) {
  return std::max(layout.gemm_format == GemmFormat::kFloat8
                      ? kFloat8BucketAlignment
                      : kBucketAlignment,
                  DTypeNumbers(Describe(layout.moments).exp_avg));
}

StageParameters BuildStageParameters(const ModelSpec& model,
                                     const Layout& layout, int32_t stage) {
  StageParametersBuilder builder(layout);
  std::vector<Parameter> norms, biases, whole_biases;
  constexpr BucketKind kMatrices = BucketKind::kMatrices;
  if (stage == 0) {
    builder.AddBucket("embedding", EmbeddingParameters(model), kMatrices);
    builder.last_bucket().is_read_all_along =
        model.ties_embedding && layout.pipeline == 1;
    if (model.learned_positions > 0) {
      builder.AddBucket("positions", PositionParameters(model), kMatrices);
    }
  }
  const LayerRange layers = StageLayers(model, layout, stage);
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    std::vector<Parameter> matrices;
    for (Parameter& parameter : LayerParameters(model, layer)) {
      const BucketKind kind = KindOf(parameter);
      (kind == BucketKind::kMatrices      ? matrices
       : kind == BucketKind::kBiases      ? biases
       : kind == BucketKind::kWholeBiases ? whole_biases
                                          : norms)
          .push_back(std::move(parameter));
    }
    builder.AddBucket(absl::StrCat("layers.", layer), matrices, kMatrices,
                      IsInFloat8(model, layout, layer));
  }
  if (stage == layout.pipeline - 1) {
    for (Parameter& parameter : FinalNorm(model)) {
      norms.push_back(std::move(parameter));
    }
    if (!model.ties_embedding || layout.pipeline > 1) {
      builder.AddBucket("head", HeadParameters(model), kMatrices);
      builder.last_bucket().is_copy = model.ties_embedding;
    }
  }
  if (!biases.empty()) builder.AddBucket("biases", biases, BucketKind::kBiases);
  if (!whole_biases.empty()) {
    builder.AddBucket("whole_biases", whole_biases, BucketKind::kWholeBiases);
  }
  builder.AddBucket("norms", norms, BucketKind::kNorms);
  return std::move(builder).Build();
}

}  // namespace millrace
