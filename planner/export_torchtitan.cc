#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "planner/export_parts.h"
#include "planner/yaml_tree.h"

namespace millrace {
namespace {

// (section.key, value as TOML) pairs, written section by section.
class TomlText {
 public:
  void Add(const std::string& path, const std::string& value) {
    const std::vector<std::string> words =
        absl::StrSplit(path, absl::MaxSplits('.', 1));
    auto section = std::find_if(
        sections_.begin(), sections_.end(),
        [&](const auto& entry) { return entry.first == words[0]; });
    if (section == sections_.end()) {
      section = sections_.insert(sections_.end(), {words[0], ""});
    }
    absl::StrAppend(&section->second, words[1], " = ", value, "\n");
  }
  void AddText(const std::string& path, absl::string_view value) {
    Add(path, absl::StrCat("\"", value, "\""));
  }
  std::string ToString() const {
    std::string text;
    for (const auto& [name, lines] : sections_) {
      absl::StrAppend(&text, "\n[", name, "]\n", lines);
    }
    return text;
  }

 private:
  std::vector<std::pair<std::string, std::string>> sections_;
};

// A TOML number with a dot or an exponent is a float, any other an integer.
std::string TomlReal(std::string text) {
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string FlavorName(Export& out) {
  const ModelSpec& model = out.job.model;
  for (const TorchtitanFlavor& flavor : TorchtitanFlavors()) {
    ModelSpec known = flavor.model;
    known.sequence_length = model.sequence_length;
    known.init_std = model.init_std;
    if (known == model) return flavor.name;
  }
  // A multiplier that makes the width round up to multiple_of itself.
  const int64_t base = 8 * model.hidden / 3;
  const std::string multiplier =
      base <= model.ffn_hidden
          ? ""
          : absl::StrCat(
                ", ffn_dim_multiplier=",
                NumberToText(0.75 * static_cast<double>(model.ffn_hidden) /
                             static_cast<double>(base)));
  out.differences.push_back(absl::StrCat(
      "the model: torchtitan knows models by flavor. Add to llama3_args in "
      "torchtitan/models/llama3/__init__.py: \"",
      out.job.name, "\": TransformerModelArgs(dim=", model.hidden,
      ", n_layers=", model.num_layers, ", n_heads=", model.num_heads,
      ", n_kv_heads=", model.num_kv_heads, ", vocab_size=", model.vocab_size,
      ", multiple_of=", model.ffn_hidden, multiplier,
      ", norm_eps=", NumberToText(model.norm_epsilon),
      ", rope_theta=", NumberToText(model.rope_theta), ")"));
  return out.job.name;
}

// The layers of every stage by name.
std::string StageModules(const Export& out) {
  std::vector<std::string> stages;
  for (int32_t stage = 0; stage < out.layout.pipeline; ++stage) {
    const LayerRange range = StageLayers(out.job.model, out.layout, stage);
    std::vector<std::string> modules;
    if (stage == 0) modules.push_back("\"tok_embeddings\"");
    for (int64_t layer = range.begin; layer < range.end; ++layer) {
      modules.push_back(absl::StrCat("\"layers.", layer, "\""));
    }
    if (stage == out.layout.pipeline - 1) {
      modules.push_back("\"norm\"");
      modules.push_back("\"output\"");
    }
    stages.push_back(absl::StrCat("[", absl::StrJoin(modules, ", "), "]"));
  }
  return absl::StrCat("[", absl::StrJoin(stages, ", "), "]");
}

void AddTorchtitanLayout(Export& out, TomlText& toml) {
  const Layout& layout = out.layout;
  const bool sharded = layout.shards_optimizer();
  toml.Add("parallelism.data_parallel_replicate_degree",
           absl::StrCat(sharded ? 1 : layout.data));
  toml.Add("parallelism.data_parallel_shard_degree",
           absl::StrCat(sharded ? layout.data : 1));
  if (layout.shards_parameters()) {
    toml.AddText("parallelism.fsdp_reshard_after_forward", "always");
  } else if (sharded) {
    toml.AddText("parallelism.fsdp_reshard_after_forward", "never");
  }
  if (sharded && !layout.shards_gradients()) {
    out.differences.push_back(
        "ZeRO 1: torchtitan's FSDP shards parameters and gradients besides "
        "the optimizer state; with fsdp_reshard_after_forward = \"never\" it "
        "gathers parameters once a micro-batch");
  }
  // Without a pipeline, micro-batches are gradient accumulation.
  toml.Add("training.local_batch_size",
           absl::StrCat(layout.pipeline > 1
                            ? layout.micro_batch * layout.num_microbatches
                            : layout.micro_batch));
  if (layout.pipeline == 1) return;
  toml.Add("parallelism.pipeline_parallel_microbatch_size",
           absl::StrCat(layout.micro_batch));
  toml.AddText("parallelism.pipeline_parallel_schedule", "1F1B");
  toml.Add("parallelism.module_fqns_per_model_part", StageModules(out));
  if (layout.data > 1) {
    out.differences.push_back(
        "rank order: torchtitan puts the pipeline axis outermost, the plan "
        "the data axis; on several hosts that moves traffic to other links");
  }
}

void AddTorchtitanSchedule(const JobSpec& job, TomlText& toml) {
  const OptimizerSpec& optimizer = job.training.optimizer;
  switch (optimizer.decay) {
    case LearningRateDecay::kNone:
      toml.Add("lr_scheduler.decay_ratio", "0.0");
      break;
    case LearningRateDecay::kLinear:
      toml.AddText("lr_scheduler.decay_type", "linear");
      break;
    case LearningRateDecay::kCosine:
      toml.AddText("lr_scheduler.decay_type", "cosine");
      break;
  }
  toml.Add("lr_scheduler.min_lr_factor",
           TomlReal(NumberToText(optimizer.min_learning_rate /
                                 optimizer.learning_rate)));
}

}  // namespace

absl::StatusOr<std::string> ExportTorchtitan(Export out) {
  const ModelSpec& model = out.job.model;
  if (model.head_dim * model.num_heads != model.hidden) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.head_dim: torchtitan's llama3 has heads of hidden / heads = ",
        model.hidden, " / ", model.num_heads, " numbers, not of ",
        model.head_dim, "; leave head_dim out"));
  }
  const std::string precision =
      out.job.training.precision == "bf16" ? "bfloat16" : "float32";
  TomlText toml;
  toml.AddText("model.name", "llama3");
  toml.AddText("model.flavor", FlavorName(out));
  for (const FrameworkKey& key : FrameworkKeys(Framework::kTorchtitan)) {
    const std::string value = out.Value(key.job_path);
    const bool never_clips =
        absl::string_view(key.name) == "training.max_norm" &&
        out.job.training.gradient_clip_norm == 0;
    toml.Add(key.name, never_clips                ? "inf"
                       : out.IsReal(key.job_path) ? TomlReal(value)
                                                  : value);
  }
  toml.AddText("optimizer.name", "AdamW");
  AddTorchtitanSchedule(out.job, toml);
  AddTorchtitanLayout(out, toml);
  toml.AddText("training.dtype", "float32");
  toml.AddText("training.mixed_precision_param", precision);
  toml.AddText("activation_checkpoint.mode",
               RecomputeName(out.layout.recompute));
  if (out.layout.recompute == Recompute::kSelective) {
    toml.AddText("activation_checkpoint.selective_ac_option", "op");
    out.differences.push_back(
        "recompute selective: torchtitan chooses among all ops, matrix "
        "products too; the plan computes outputs of norms and SwiGLU again");
  }
  if (out.job.checkpoint.interval_steps > 0) {
    toml.Add("checkpoint.enable", "true");
    toml.Add("checkpoint.interval", out.Value("checkpoint.interval_steps"));
  }
  out.differences.push_back(
      "initial weights (model.init_std) and decay of norm weights: torchtitan "
      "has its own initialization and decays every parameter");
  out.differences.push_back(
      "plain rotary positions: torchtitan's llama3 scales them as Llama 3.1 "
      "does");
  out.assumptions.push_back(
      "training.dataset and model.hf_assets_path (the tokenizer) are yours to "
      "set: the data section has no counterpart");
  return absl::StrCat(
      HashComment(out, Framework::kTorchtitan),
      "# Start: torchrun --nproc-per-node ", out.layout.num_ranks(),
      " -m torchtitan.train --job.config_file THIS_FILE\n", toml.ToString());
}

}  // namespace millrace
