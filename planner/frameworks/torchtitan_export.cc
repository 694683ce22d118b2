#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "planner/frameworks/torchtitan.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

// Writes pairs of section.key and value as TOML, section by section.
std::string TomlText(const KeyValues& pairs) {
  std::vector<KeyValues::Entry> sections;
  for (const auto& [path, value] : pairs.entries()) {
    const std::vector<std::string> words =
        absl::StrSplit(path, absl::MaxSplits('.', 1));
    auto section =
        std::ranges::find(sections, words[0], &KeyValues::Entry::first);
    if (section == sections.end()) {
      section = sections.insert(sections.end(), {words[0], ""});
    }
    absl::StrAppend(&section->second, words[1], " = ", value, "\n");
  }
  std::string text;
  for (const auto& [name, lines] : sections) {
    absl::StrAppend(&text, "\n[", name, "]\n", lines);
  }
  return text;
}

// TOML takes a number with a dot or an exponent as a float, any other as an
// integer.
std::string TomlReal(std::string text) {
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// The name that torchtitan's source would give a model, and the arguments that
// create it.
struct TitanModel {
  std::string name;       // The family's name.
  std::string table;      // Python's name for the family's flavors.
  std::string arguments;  // For the class of the family's arguments.
};

TitanModel LlamaModel(const ModelSpec& model) {
  // The multiplier is large enough that the width rounds up to multiple_of.
  const int64_t base = 8 * model.hidden / 3;
  const std::string multiplier =
      base <= model.ffn_hidden
          ? ""
          : absl::StrCat(
                ", ffn_dim_multiplier=",
                NumberToText(0.75 * static_cast<double>(model.ffn_hidden) /
                             static_cast<double>(base)));
  return {"llama3", "llama3_args",
          absl::StrCat("TransformerModelArgs(dim=", model.hidden, ", n_layers=",
                       model.num_layers, ", n_heads=", model.num_heads,
                       ", n_kv_heads=", model.num_kv_heads,
                       ", vocab_size=", model.vocab_size,
                       ", multiple_of=", model.ffn_hidden, multiplier,
                       ", norm_eps=", NumberToText(model.norm_epsilon),
                       ", rope_theta=", NumberToText(model.rope_theta), ")")};
}

std::string ExpertArguments(const MixtureOfExperts& moe) {
  return absl::StrCat("MoEArgs(num_experts=", moe.num_experts,
                      ", num_shared_experts=", moe.num_shared_experts,
                      ", top_k=", moe.experts_per_token,
                      ", score_func=\"softmax\", score_before_experts=False)");
}

TitanModel QwenModel(const ModelSpec& model) {
  const std::string experts =
      model.moe.num_experts == 0
          ? ""
          : absl::StrCat(
                ", moe_enabled=True, moe_inter_dim=", model.moe.expert_hidden,
                ", moe_args=", ExpertArguments(model.moe));
  return {
      "qwen3", "qwen3_args",
      absl::StrCat(
          "Qwen3ModelArgs(dim=", model.hidden, ", n_layers=", model.num_layers,
          ", n_heads=", model.num_heads, ", n_kv_heads=", model.num_kv_heads,
          ", head_dim=", model.head_dim, ", vocab_size=", model.vocab_size,
          ", hidden_dim=", model.ffn_hidden,
          ", qk_norm=", model.qk_norm ? "True" : "False",
          ", norm_eps=", NumberToText(model.norm_epsilon),
          ", rope_theta=", NumberToText(model.rope_theta),
          ", enable_weight_tying=", model.ties_embedding ? "True" : "False",
          experts, ")")};
}

TitanModel DeepSeekModel(const ModelSpec& model) {
  const LatentAttention& mla = model.mla;
  const bool has_experts = model.moe.num_experts > 0;
  const std::string experts =
      has_experts ? absl::StrCat(", moe_inter_dim=", model.moe.expert_hidden,
                                 ", moe_args=", ExpertArguments(model.moe))
                  : "";
  return {"deepseek_v3", "deepseekv3_args",
          absl::StrCat(
              "DeepSeekV3ModelArgs(dim=", model.hidden,
              ", n_layers=", model.num_layers, ", n_dense_layers=",
              has_experts ? model.moe.num_dense_layers : model.num_layers,
              ", n_heads=", model.num_heads, ", vocab_size=", model.vocab_size,
              ", inter_dim=", model.ffn_hidden,
              ", q_lora_rank=", mla.query_rank, ", kv_lora_rank=", mla.kv_rank,
              ", qk_nope_head_dim=", mla.nope_head_dim, ", qk_rope_head_dim=",
              mla.rope_head_dim, ", v_head_dim=", mla.value_head_dim,
              ", norm_eps=", NumberToText(model.norm_epsilon),
              ", rope_theta=", NumberToText(model.rope_theta),
              ", rope_factor=1.0", experts, ")")};
}

absl::Status NoWords(absl::string_view key, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, ": ", why, "; export to megatron"));
}

// Finds the family of torchtitan's that can be this model.
absl::StatusOr<TitanModel> ModelOf(const ModelSpec& model,
                                   const Layout& layout) {
  if (model.feed_forward != FeedForward::kSwiglu) {
    return NoWords("model.feed_forward",
                   absl::StrCat("torchtitan's models have SwiGLU, not ",
                                FeedForwardName(model.feed_forward)));
  }
  if (model.mla.kv_rank > 0) {
    if (model.ties_embedding) {
      return NoWords("model.ties_embedding",
                     "torchtitan's deepseek_v3 has a head of its own");
    }
    return DeepSeekModel(model);
  }
  if (model.moe.num_experts > 0 && model.moe.num_dense_layers > 0) {
    return NoWords("model.moe.num_dense_layers",
                   "torchtitan's qwen3 has experts in all layers or in none");
  }
  if (model.ties_embedding && layout.pipeline > 1) {
    return NoWords("model.ties_embedding",
                   "torchtitan's qwen3 ties its embedding on one stage only, "
                   "and layout.pipeline is above 1");
  }
  if (model.moe.num_experts > 0 || model.ties_embedding || model.qk_norm) {
    return QwenModel(model);
  }
  if (model.head_dim * model.num_heads != model.hidden) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.head_dim: torchtitan's llama3 has heads of hidden / heads = ",
        model.hidden, " / ", model.num_heads, " numbers, not of ",
        model.head_dim, "; leave head_dim out"));
  }
  return LlamaModel(model);
}

std::string FlavorName(Export& out, const TitanModel& titan) {
  const ModelSpec& model = out.job.model;
  for (const TorchtitanFlavor& flavor : TorchtitanFlavors()) {
    ModelSpec known = flavor.model;
    known.sequence_length = model.sequence_length;
    known.init_std = model.init_std;
    if (known == model) return flavor.name;
  }
  out.differences.push_back(
      absl::StrCat("the model: torchtitan knows models by flavor. Add to ",
                   titan.table, " in torchtitan/models/", titan.name,
                   "/__init__.py: \"", out.job.name, "\": ", titan.arguments));
  return out.job.name;
}

// Lists the layers of every chunk by name.
std::string StageModules(const Export& out) {
  std::vector<std::string> stages;
  const std::vector<LayerRange> chunks = out.Chunks();
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    const LayerRange range = chunks[chunk];
    std::vector<std::string> modules;
    if (chunk == 0) modules.push_back("\"tok_embeddings\"");
    for (int64_t layer = range.begin; layer < range.end; ++layer) {
      modules.push_back(absl::StrCat("\"layers.", layer, "\""));
    }
    if (chunk == chunks.size() - 1) {
      modules.push_back("\"norm\"");
      modules.push_back("\"output\"");
    }
    stages.push_back(absl::StrCat("[", absl::StrJoin(modules, ", "), "]"));
  }
  return absl::StrCat("[", absl::StrJoin(stages, ", "), "]");
}

void AddTorchtitanLayout(Export& out, KeyValues& toml) {
  const Layout& layout = out.layout;
  // Torchtitan spreads experts over the sharded part of the data axis. A data
  // axis without sharding must be the only axis (a context axis counts as
  // sharding too).
  const bool spreads_experts = layout.expert > 1;
  const bool stands_alone = layout.pipeline == 1 && layout.tensor == 1;
  const bool sharded =
      layout.data > 1 && (layout.shards_optimizer() || spreads_experts ||
                          (!stands_alone && layout.context == 1));
  const int32_t groups = layout.shards_optimizer() ? layout.data_groups : 1;
  toml.Set("parallelism.data_parallel_replicate_degree",
           absl::StrCat(sharded ? groups : layout.data));
  toml.Set("parallelism.data_parallel_shard_degree",
           absl::StrCat(sharded ? layout.data / groups : 1));
  if (layout.shards_parameters()) {
    toml.SetText("parallelism.fsdp_reshard_after_forward", "always");
  } else if (sharded || layout.context > 1) {
    toml.SetText("parallelism.fsdp_reshard_after_forward", "never");
  }
  if (layout.shards_optimizer() && !layout.shards_gradients()) {
    out.differences.push_back(
        "ZeRO 1: torchtitan's FSDP shards parameters and gradients besides "
        "the optimizer state; with fsdp_reshard_after_forward = \"never\" it "
        "gathers parameters once a micro-batch");
  }
  if (sharded && !layout.shards_optimizer()) {
    out.differences.push_back(absl::StrCat(
        "ZeRO 0 ",
        spreads_experts ? "with experts spread over ranks: torchtitan spreads "
                          "them over data_parallel_shard_degree"
                        : "beside other axes: torchtitan replicates over the "
                          "data axis alone, so data_parallel_shard_degree",
        ", which shards the optimizer state too"));
  }
  if (layout.context > 1) {
    out.differences.push_back(
        "the context axis: torchtitan's FSDP shards parameters, gradients and "
        "optimizer state over it too");
  }
  // Without a pipeline, micro-batches are gradient accumulation.
  toml.Set("training.local_batch_size",
           absl::StrCat(layout.pipeline > 1
                            ? layout.micro_batch * layout.num_microbatches
                            : layout.micro_batch));
  if (layout.pipeline == 1) return;
  toml.Set("parallelism.pipeline_parallel_microbatch_size",
           absl::StrCat(layout.micro_batch));
  toml.SetText("parallelism.pipeline_parallel_schedule",
               layout.interleave > 1 ? "Interleaved1F1B" : "1F1B");
  toml.Set("parallelism.module_fqns_per_model_part", StageModules(out));
  if (layout.data > 1) {
    out.differences.push_back(
        "rank order: torchtitan puts the pipeline axis outermost, the plan "
        "the data axis; on several hosts that moves traffic to other links");
  }
}

void AddTorchtitanPrecision(Export& out, KeyValues& toml) {
  toml.SetText("training.dtype", "float32");
  toml.SetText(
      "training.mixed_precision_param",
      out.layout.precision == Precision::kBfloat16 ? "bfloat16" : "float32");
  switch (out.layout.gemm_format) {
    case GemmFormat::kAsStored:
      break;
    case GemmFormat::kFloat8: {
      const bool has_experts = out.job.model.moe.num_experts > 0;
      toml.Set("model.converters", has_experts
                                       ? "[\"quantize.linear.float8\", "
                                         "\"quantize.grouped_mm.float8\"]"
                                       : "[\"quantize.linear.float8\"]");
      toml.SetText("quantize.linear.float8.recipe_name", "tensorwise");
      toml.Set("quantize.linear.float8.filter_fqns",
               has_experts ? "[\"output\", \"router.gate\"]" : "[\"output\"]");
      if (has_experts) {
        toml.Set("quantize.grouped_mm.float8.fqns", "[\"experts\"]");
      }
      toml.Set("compile.enable", "true");
      out.assumptions.push_back(
          "8-bit products need torchao, and are fast only in compiled modules: "
          "compile.enable");
      break;
    }
    case GemmFormat::kFloat8Blocks:
      out.differences.push_back(
          "fp8_blockwise: torchtitan has no dense 8-bit products with scales "
          "for blocks on Hopper, so that bf16 ones run; they are slower than "
          "planned");
      break;
    case GemmFormat::kFloat4:
      out.differences.push_back(
          "fp4: torchtitan has no 4-bit products, so that bf16 ones run; they "
          "are slower than planned");
      break;
  }
}

void AddTorchtitanSchedule(const Export& out, KeyValues& toml) {
  const OptimizerSpec& optimizer = out.job.training.optimizer;
  if (optimizer.decay == LearningRateDecay::kNone) {
    toml.Set("lr_scheduler.decay_ratio", "0.0");
  } else {
    toml.SetText("lr_scheduler.decay_type",
                 out.Value("training.optimizer.decay"));
  }
  toml.Set("lr_scheduler.min_lr_factor",
           TomlReal(NumberToText(optimizer.min_learning_rate /
                                 optimizer.learning_rate)));
}

}  // namespace

absl::StatusOr<std::string> ExportTorchtitan(Export out) {
  ASSIGN_OR_RETURN(const TitanModel titan, ModelOf(out.job.model, out.layout));
  KeyValues toml;
  toml.SetText("model.name", titan.name);
  toml.SetText("model.flavor", FlavorName(out, titan));
  for (const FrameworkKey& key : TorchtitanAdapter()->keys) {
    const std::string value = out.Value(key.job_path);
    const bool never_clips = key.name == "training.max_norm" &&
                             out.job.training.gradient_clip_norm == 0;
    toml.Set(key.name, never_clips                ? "inf"
                       : out.IsReal(key.job_path) ? TomlReal(value)
                                                  : value);
  }
  toml.SetText("optimizer.name", "AdamW");
  AddTorchtitanSchedule(out, toml);
  AddTorchtitanLayout(out, toml);
  AddTorchtitanPrecision(out, toml);
  const Recompute recompute = out.layout.recompute;
  const bool is_selective =
      recompute != Recompute::kNone && recompute != Recompute::kFull;
  toml.SetText("activation_checkpoint.mode",
               is_selective ? "selective" : RecomputeName(recompute));
  if (is_selective) {
    toml.SetText("activation_checkpoint.selective_ac_option", "op");
    out.differences.push_back(absl::StrCat(
        "recompute ", RecomputeName(recompute),
        ": torchtitan chooses by its own policy among all ops, every second "
        "matrix product too"));
  }
  if (out.job.checkpoint.interval_steps > 0) {
    toml.Set("checkpoint.enable", "true");
    toml.Set("checkpoint.interval", out.Value("checkpoint.interval_steps"));
  }
  out.differences.push_back(
      "initial weights (model.init_std) and decay of norm weights: torchtitan "
      "has its own initialization and decays every parameter");
  if (titan.name == "llama3") {
    out.differences.push_back(
        "plain rotary positions: torchtitan's llama3 scales them as Llama 3.1 "
        "does");
  }
  out.assumptions.push_back(
      "training.dataset and model.hf_assets_path (the tokenizer) are yours to "
      "set: the data section has no counterpart");
  return absl::StrCat(HashComment(out), "# Start: ", TorchrunCommand(out),
                      " -m torchtitan.train --job.config_file THIS_FILE\n",
                      TomlText(toml));
}

}  // namespace millrace
