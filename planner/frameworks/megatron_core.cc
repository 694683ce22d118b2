// Megatron-Bridge and NeMo. The flags of Megatron-LM become overrides KEY=VALUE
// of one of their recipes.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/frameworks/megatron.h"
#include "planner/frameworks/megatron_core_keys.h"

namespace millrace {
namespace {

// Writes one override a line, each as a word of the shell.
std::string ShellText(const KeyValues& overrides) {
  std::vector<std::string> words;
  for (const auto& [key, value] : overrides.entries()) {
    const std::string word = absl::StrCat(key, "=", value);
    const bool special =
        word.find_first_of(" ()[]*|'\"$&;<>`\\") != std::string::npos;
    words.push_back(special ? ShellQuoted(word) : word);
  }
  return absl::StrJoin(words, " \\\n  ");
}

// How each command line writes an absent value.
const char* Nothing(Framework framework) {
  return framework == NemoAdapter() ? "None" : "null";
}

std::string ListOfTexts(const std::vector<std::string>& texts) {
  return absl::StrCat("[\"", absl::StrJoin(texts, "\",\""), "\"]");
}

std::string LayerPattern(const ModelSpec& model) {
  std::vector<const char*> layers(model.num_layers, "1");
  for (int64_t i = 0; i < model.moe.num_dense_layers; ++i) layers[i] = "0";
  return absl::StrCat("[", absl::StrJoin(layers, ","), "]");
}

std::string OverrideValue(const Export& out, CoreValue kind,
                          const std::string& flag_value) {
  switch (kind) {
    case CoreValue::kSame:
      return flag_value;
    case CoreValue::kOn:
      return "true";
    case CoreValue::kOff:
      return "false";
    case CoreValue::kSquared:
      return "squared_relu";
    case CoreValue::kWords:
      return ListOfTexts(absl::StrSplit(flag_value, ' '));
    case CoreValue::kPattern:
      return LayerPattern(out.job.model);
  }
  CHECK(false) << "unknown value " << static_cast<int>(kind);
  return "";
}

// Overrides keys that Megatron-LM sets by leaving a flag out, since a recipe
// may have set them otherwise.
void AddAbsent(const Export& out, KeyValues& overrides) {
  const ModelSpec& model = out.job.model;
  const std::string nothing = Nothing(out.framework);
  auto set = [&](const char* flag, const std::string& value) {
    const CoreKey key = CoreKeyOf(out.framework, flag);
    CHECK(!key.name.empty()) << flag;
    overrides.SetDefault(key.name, value);
  };
  set("num-query-groups", absl::StrCat(model.num_kv_heads));
  set("rotary-percent", "1.0");
  set("swiglu", "false");
  set("disable-bias-linear", "true");
  set("untie-embeddings-and-output-weights", "true");
  if (model.mla.kv_rank > 0) set("q-lora-rank", nothing);
  set("num-experts", nothing);
  if (model.moe.num_experts > 0) {
    set("moe-layer-freq", "1");
    set("moe-shared-expert-intermediate-size", nothing);
  }
  set("sequence-parallel", "false");
  set("num-virtual-stages-per-pipeline-rank", nothing);
  set("pipeline-model-parallel-layout", nothing);
  set("overlap-grad-reduce", "false");
  set("overlap-param-gather", "false");
  set("use-distributed-optimizer", "false");
  set("expert-tensor-parallel-size", nothing);
  for (const char* flag : {"recompute-granularity", "recompute-method",
                           "recompute-num-layers", "recompute-modules"}) {
    set(flag, nothing);
  }
}

absl::StatusOr<KeyValues> CoreOverrides(Export& out) {
  ASSIGN_OR_RETURN(const KeyValues flags, MegatronFlagsOf(out));
  KeyValues overrides;
  for (const auto& [flag, value] : flags.entries()) {
    const CoreKey key = CoreKeyOf(out.framework, flag);
    if (key.name.empty()) continue;  // Each framework adds its own words later.
    overrides.Set(key.name, OverrideValue(out, key.value, value));
  }
  AddAbsent(out, overrides);
  return overrides;
}

// --- Megatron-Bridge ---

void AddBridgePrecision(Export& out, KeyValues& overrides) {
  switch (out.layout.gemm_format) {
    case GemmFormat::kAsStored:
      overrides.Set(
          "mixed_precision",
          out.layout.precision == Precision::kBfloat16 ? "bf16_mixed" : "null");
      break;
    case GemmFormat::kFloat8:
      overrides.Set("mixed_precision", "bf16_with_fp8_current_scaling_mixed");
      out.differences.push_back(
          "fp8: this precision recipe leaves the products of the first and of "
          "the last layer in bf16");
      break;
    case GemmFormat::kFloat8Blocks:
      overrides.Set("mixed_precision",
                    "bf16_with_fp8_subchannel_scaling_mixed");
      break;
    case GemmFormat::kFloat4:
      overrides.Set("mixed_precision", "bf16_with_nvfp4_mixed");
      break;
  }
}

std::string BridgeData(Export& out, KeyValues& overrides) {
  overrides.Set("tokenizer.tokenizer_type", "NullTokenizer");
  overrides.Set("tokenizer.vocab_size",
                absl::StrCat(out.job.model.vocab_size - 1));
  overrides.Set("model.vocab_size", absl::StrCat(out.job.model.vocab_size));
  overrides.Set("model.make_vocab_size_divisible_by", "1");
  if (out.job.data.indexed.empty()) {
    out.differences.push_back(
        "data.text: Megatron-Bridge reads tokens prepared beforehand; replace "
        "--dataset mock by --dataset megatron-indexed and dataset.data_path");
    return "mock";
  }
  overrides.Set("dataset.data_path", ListOfTexts(out.indexed_prefixes()));
  return "megatron-indexed";
}

// --- NeMo ---

absl::StatusOr<std::string> NemoRecipe(const ModelSpec& model) {
  const bool swiglu = model.feed_forward == FeedForward::kSwiglu;
  if (!swiglu && (model.moe.num_experts > 0 || model.mla.kv_rank > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.feed_forward: NeMo takes the activation from its recipe, and "
        "none with experts or latent attention has ",
        FeedForwardName(model.feed_forward), "; export to megatron"));
  }
  if (model.mla.kv_rank > 0) return "deepseek_v2_lite";
  if (model.moe.num_experts > 0) return "mixtral_8x7b";
  switch (model.feed_forward) {
    case FeedForward::kSwiglu:
      break;
    case FeedForward::kGelu:
      return "gpt3_175b";
    case FeedForward::kSquaredRelu:
      return "nemotron4_15b";
    case FeedForward::kGeglu:
    case FeedForward::kGeluErf:
      break;  // Refused before; see export.cc.
  }
  return "llama3_8b";
}

void AddNemoPrecision(Export& out, KeyValues& overrides) {
  if (out.layout.precision == Precision::kFloat32) {
    out.differences.push_back(
        "training.precision fp32: the precision plugin of NeMo's recipes "
        "computes in bf16; trainer.plugins=None takes it away");
    overrides.Set("trainer.plugins", "None");
    return;
  }
  switch (out.layout.gemm_format) {
    case GemmFormat::kAsStored:
      break;
    case GemmFormat::kFloat8:
      overrides.Set("trainer.plugins.fp8", "hybrid");
      overrides.Set("trainer.plugins.fp8_recipe", "tensorwise");
      break;
    case GemmFormat::kFloat8Blocks:
      overrides.Set("trainer.plugins.fp8", "e4m3");
      overrides.Set("trainer.plugins.fp8_recipe", "blockwise");
      break;
    case GemmFormat::kFloat4:
      out.differences.push_back(
          "fp4: NeMo has no 4-bit products, so that bf16 ones run; they are "
          "slower than planned");
      break;
  }
}

void AddNemoOwn(Export& out, KeyValues& overrides) {
  const ModelSpec& model = out.job.model;
  overrides.Set("model.config.seq_length", absl::StrCat(model.sequence_length));
  overrides.Set("model.config.vocab_size", absl::StrCat(model.vocab_size));
  overrides.Set("model.config.make_vocab_size_divisible_by", "1");
  overrides.Set("trainer.num_nodes", absl::StrCat(out.num_hosts));
  overrides.Set("trainer.devices", absl::StrCat(out.devices_per_host));
  if (out.job.checkpoint.interval_steps > 0) {
    // Either steps or minutes.
    overrides.Set("log.ckpt.train_time_interval", "None");
  }
  AddNemoPrecision(out, overrides);
  if (out.job.training.optimizer.decay != LearningRateDecay::kCosine) {
    out.differences.push_back(
        "training.optimizer.decay: the recipe's scheduler is "
        "CosineAnnealingScheduler; another one is chosen in Python");
  }
  if (out.job.training.seed != 0) {
    out.differences.push_back(
        "training.seed: NeMo's recipes have no key for it");
  }
  out.differences.push_back(
      "the data section: the recipe's mock data stay; put a "
      "PreTrainingDataModule in their place");
}

absl::StatusOr<std::string> ExportMegatronBridge(Export out) {
  ASSIGN_OR_RETURN(KeyValues overrides, CoreOverrides(out));
  const bool latent = out.job.model.mla.kv_rank > 0;
  const bool swiglu = out.job.model.feed_forward == FeedForward::kSwiglu;
  overrides.SetDefault("model.activation_func", swiglu ? "silu" : "gelu");
  overrides.Set("optimizer.use_distributed_optimizer",
                out.layout.zero >= 1 ? "true" : "false");
  if (out.job.checkpoint.interval_steps > 0) {
    overrides.Set("checkpoint.save", out.checkpoint_folder());
  }
  AddBridgePrecision(out, overrides);
  const std::string dataset = BridgeData(out, overrides);
  const std::string recipe = latent ? "deepseek_v2_lite_pretrain_config"
                                    : "vanilla_gpt_pretrain_config";
  out.assumptions.push_back(
      latent
          ? "what is not overridden is as in the recipe of DeepSeek-V2-Lite, "
            "which is the smallest with latent attention: scores and groups "
            "of its router among them"
          : "what is not overridden is as in the recipe, whose values are "
            "Megatron-LM's defaults");
  return absl::StrCat(HashComment(out), TorchrunCommand(out),
                      " scripts/training/run_recipe.py \\\n  --recipe ", recipe,
                      " --mode pretrain --dataset ", dataset, " \\\n  ",
                      ShellText(overrides), "\n");
}

absl::StatusOr<std::string> ExportNemo(Export out) {
  ASSIGN_OR_RETURN(const std::string recipe, NemoRecipe(out.job.model));
  ASSIGN_OR_RETURN(KeyValues overrides, CoreOverrides(out));
  AddNemoOwn(out, overrides);
  out.assumptions.push_back(
      absl::StrCat("what is not overridden is as in NeMo's recipe ", recipe,
                   ", from which the model takes its activation"));
  return absl::StrCat(HashComment(out), "nemo llm pretrain --yes --factory ",
                      recipe, " \\\n  ", ShellText(overrides), "\n");
}

}  // namespace

Framework MegatronBridgeAdapter() {
  static const std::vector<FrameworkKey> keys =
      KeysIn(MegatronDialect::kBridge);
  static const FrameworkAdapter adapter = {
      .name = "megatron-bridge",
      .title = "Megatron-Bridge",
      .version = "v0.6.0",
      .configuration = "overrides or the YAML of a run",
      .keys = keys,
      .read = ReadOverrideSettings,
      .take = ImportMegatron,
      .write = ExportMegatronBridge,
      .unwritten_options = kNewestOptions,
  };
  return &adapter;
}
Framework NemoAdapter() {
  static const std::vector<FrameworkKey> keys = KeysIn(MegatronDialect::kNemo);
  static const FrameworkAdapter adapter = {
      .name = "nemo",
      .title = "NeMo",
      .version = "2.4.0",
      .configuration = "overrides or the YAML of a run",
      .keys = keys,
      .read = ReadOverrideSettings,
      .take = ImportMegatron,
      .write = ExportNemo,
      .unwritten_options = kNewestOptions,
      .start_on_hosts = "an executor of NeMo-Run starts it on all of them",
  };
  return &adapter;
}

}  // namespace millrace
