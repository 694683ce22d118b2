#include "planner/frameworks/megatron_core_keys.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"

namespace millrace {
namespace {

// A flag of Megatron-LM and its names in the frameworks on the core. A name
// that ends in a dot goes on as the flag, with underscores. Null: the framework
// has no such key.
struct CoreFlag {
  const char* flag;
  const char* bridge;
  const char* nemo;
  CoreValue value = CoreValue::kSame;
};

// A flag for which a key of the job stands alone.
struct JobFlag {
  const char* job_path;
  const char* flag;
  const char* bridge;
  const char* nemo;
  const char* default_text = nullptr;  // Megatron-LM's.
  CoreFlag names() const { return {flag, bridge, nemo}; }
};

constexpr JobFlag kJobFlags[] = {
    {"layout.tensor", "tensor-model-parallel-size", "model.",
     "trainer.strategy.", "1"},
    {"layout.pipeline", "pipeline-model-parallel-size", "model.",
     "trainer.strategy.", "1"},
    {"layout.context", "context-parallel-size", "model.", "trainer.strategy.",
     "1"},
    {"layout.expert", "expert-model-parallel-size", "model.",
     "trainer.strategy.", "1"},
    {"layout.expert_tensor", "expert-tensor-parallel-size", "model.",
     "trainer.strategy."},
    {"layout.micro_batch", "micro-batch-size", "train.", "data."},
    {"training.global_batch", "global-batch-size", "train.", "data."},
    {"model.layers", "num-layers", "model.", "model.config."},
    {"model.hidden", "hidden-size", "model.", "model.config."},
    {"model.ffn_hidden", "ffn-hidden-size", "model.", "model.config."},
    {"model.heads", "num-attention-heads", "model.", "model.config."},
    {"model.kv_heads", "num-query-groups", "model.", "model.config."},
    {"model.head_dim", "kv-channels", "model.", "model.config."},
    {"model.sequence_length", "seq-length", "dataset.", "data."},
    {"model.rope_theta", "rotary-base", "model.", "model.config.", "10000"},
    {"model.norm_epsilon", "norm-epsilon", "model.layernorm_epsilon",
     "model.config.layernorm_epsilon", "1e-05"},
    {"model.init_std", "init-method-std", "model.", "model.config.", "0.02"},
    {"training.steps", "train-iters", "train.", "trainer.max_steps"},
    {"training.optimizer.learning_rate", "lr", "optimizer.", "optim.config."},
    {"training.optimizer.min_learning_rate", "min-lr", "optimizer.",
     "optim.lr_scheduler.", "0"},
    {"training.optimizer.warmup_steps", "lr-warmup-iters", "scheduler.",
     "optim.lr_scheduler.warmup_steps", "0"},
    {"training.optimizer.beta1", "adam-beta1", "optimizer.", "optim.config.",
     "0.9"},
    {"training.optimizer.beta2", "adam-beta2", "optimizer.", "optim.config.",
     "0.999"},
    {"training.optimizer.epsilon", "adam-eps", "optimizer.", "optim.config.",
     "1e-08"},
    {"training.optimizer.weight_decay", "weight-decay", "optimizer.",
     "optim.config.", "0.01"},
    {"training.gradient_clip_norm", "clip-grad", "optimizer.", "optim.config.",
     "1"},
    {"training.seed", "seed", "rng.", nullptr, "1234"},
    {"checkpoint.interval_steps", "save-interval", "checkpoint.",
     "log.ckpt.every_n_train_steps", "0"},
};

constexpr CoreFlag kOtherFlags[] = {
    // Model.
    {"position-embedding-type", "model.", "model.config."},
    {"rotary-percent", "model.", "model.config."},
    {"normalization", "model.", "model.config."},
    {"swiglu", "model.gated_linear_unit", "model.config.gated_linear_unit",
     CoreValue::kOn},
    // NeMo's command line cannot name functions; its recipes choose one.
    {"squared-relu", "model.activation_func", nullptr, CoreValue::kSquared},
    {"untie-embeddings-and-output-weights",
     "model.share_embeddings_and_output_weights",
     "model.config.share_embeddings_and_output_weights", CoreValue::kOff},
    {"disable-bias-linear", "model.add_bias_linear",
     "model.config.add_bias_linear", CoreValue::kOff},
    {"add-qkv-bias", "model.", "model.config.", CoreValue::kOn},
    {"qk-layernorm", "model.", "model.config.", CoreValue::kOn},
    {"attention-dropout", "model.", "model.config."},
    {"hidden-dropout", "model.", "model.config."},
    {"window-size", "model.", "model.config."},
    {"mtp-num-layers", "model.", "model.config."},
    {"padded-vocab-size", "model.vocab_size", "model.config.vocab_size"},
    {"vocab-size", "tokenizer.", nullptr},
    {"tokenizer-type", "tokenizer.", nullptr},
    {"make-vocab-size-divisible-by", "model.", "model.config."},
    {"multi-latent-attention", "model.", "model.config.", CoreValue::kOn},
    {"q-lora-rank", "model.", "model.config."},
    {"kv-lora-rank", "model.", "model.config."},
    {"qk-head-dim", "model.", "model.config."},
    {"qk-pos-emb-head-dim", "model.", "model.config."},
    {"v-head-dim", "model.", "model.config."},
    {"rotary-scaling-factor", "model.", "model.config."},
    {"num-experts", "model.num_moe_experts", "model.config.num_moe_experts"},
    {"moe-router-topk", "model.", "model.config."},
    {"moe-ffn-hidden-size", "model.", "model.config."},
    {"moe-shared-expert-intermediate-size", "model.", "model.config."},
    {"moe-layer-freq", "model.", "model.config.", CoreValue::kPattern},
    {"moe-grouped-gemm", "model.", "model.config.", CoreValue::kOn},
    {"moe-token-dispatcher-type", "model.", "model.config."},
    // Layout.
    {"sequence-parallel", "model.", "trainer.strategy.", CoreValue::kOn},
    {"num-virtual-stages-per-pipeline-rank",
     "model.virtual_pipeline_model_parallel_size",
     "trainer.strategy.virtual_pipeline_model_parallel_size"},
    {"decoder-first-pipeline-num-layers",
     "model.num_layers_in_first_pipeline_stage",
     "trainer.strategy.num_layers_in_first_pipeline_stage"},
    {"decoder-last-pipeline-num-layers",
     "model.num_layers_in_last_pipeline_stage",
     "trainer.strategy.num_layers_in_last_pipeline_stage"},
    {"pipeline-model-parallel-layout", "model.", "trainer.strategy."},
    {"use-tp-pp-dp-mapping", "dist.", "trainer.strategy.", CoreValue::kOn},
    {"overlap-grad-reduce", "ddp.", "trainer.strategy.ddp.", CoreValue::kOn},
    {"overlap-param-gather", "ddp.", "trainer.strategy.ddp.", CoreValue::kOn},
    {"use-distributed-optimizer", "ddp.", "optim.config.", CoreValue::kOn},
    {"num-distributed-optimizer-instances", "ddp.", "trainer.strategy.ddp."},
    {"recompute-granularity", "model.", "model.config."},
    {"recompute-method", "model.", "model.config."},
    {"recompute-num-layers", "model.", "model.config."},
    {"recompute-modules", "model.", "model.config.", CoreValue::kWords},
    // Training.
    {"train-samples", "train.", nullptr},
    {"rampup-batch-size", "train.", "data."},
    {"lr-decay-style", "scheduler.", nullptr},
    {"lr-decay-iters", "scheduler.", "optim.lr_scheduler.max_steps"},
    {"lr-warmup-fraction", "scheduler.", "optim.lr_scheduler.warmup_ratio"},
    {"eval-interval", "validation.", "trainer.val_check_interval"},
    {"eval-iters", "validation.", "trainer.limit_val_batches"},
    {"data-path", "dataset.", "data.paths", CoreValue::kWords},
    {"save", "checkpoint.", "log.log_dir"},
    // Launcher.
    {"nnodes", "nnodes", "trainer.num_nodes"},
    {"nproc-per-node", "nproc-per-node", "trainer.devices"},
    {"world-size", "world-size", nullptr},
};

// Returns the flag's own name in a dialect; empty if it has none.
std::string NameIn(const CoreFlag& flag, MegatronDialect dialect) {
  if (dialect == MegatronDialect::kFlags) return flag.flag;
  const char* name =
      dialect == MegatronDialect::kBridge ? flag.bridge : flag.nemo;
  if (name == nullptr) return "";
  return absl::EndsWith(name, ".")
             ? absl::StrCat(name, absl::StrReplaceAll(flag.flag, {{"-", "_"}}))
             : name;
}

MegatronDialect DialectOf(Framework framework) {
  return framework == MegatronBridgeAdapter() ? MegatronDialect::kBridge
                                              : MegatronDialect::kNemo;
}

bool IsTrue(absl::string_view value) {
  return absl::EqualsIgnoreCase(value, "true");
}
bool IsFalse(absl::string_view value) {
  return absl::EqualsIgnoreCase(value, "false");
}
// Removes the brackets, commas and quotes of a list.
std::string ListWords(absl::string_view value) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(value, absl::ByAnyChar("[], '\""), absl::SkipEmpty());
  return absl::StrJoin(words, " ");
}

// Returns the value that the flag would have.
std::string FlagValue(CoreValue kind, const std::string& value, bool is_gated) {
  switch (kind) {
    case CoreValue::kOn:
      return IsTrue(value) ? "True" : IsFalse(value) ? kSwitchOff : value;
    case CoreValue::kOff:
      return IsFalse(value) ? "True" : IsTrue(value) ? kSwitchOff : value;
    case CoreValue::kSquared:
      if (absl::StrContains(value, "squared_relu") || value == "relu2") {
        return "True";
      }
      // The value belongs to another flag, or to none.
      return absl::EndsWith(value, is_gated ? "silu" : "gelu") ? kSwitchOff
                                                               : value;
    case CoreValue::kWords:
    case CoreValue::kPattern:
      return ListWords(value);
    case CoreValue::kSame:
      break;
  }
  return value;
}

}  // namespace

bool IsOnCore(Framework framework) {
  return framework == MegatronBridgeAdapter() || framework == NemoAdapter();
}

std::vector<FrameworkKey> KeysIn(MegatronDialect dialect) {
  // Recipes set values of their own, so no key of theirs has a known default.
  const bool has_defaults = dialect == MegatronDialect::kFlags;
  std::vector<FrameworkKey> keys;
  for (const JobFlag& known : kJobFlags) {
    std::string name = NameIn(known.names(), dialect);
    if (name.empty()) continue;
    keys.push_back({known.job_path, std::move(name),
                    has_defaults ? known.default_text : nullptr});
  }
  return keys;
}

CoreKey CoreKeyOf(Framework framework, absl::string_view flag) {
  CHECK(IsOnCore(framework));
  for (const JobFlag& known : kJobFlags) {
    if (flag != known.flag) continue;
    return {NameIn(known.names(), DialectOf(framework)), CoreValue::kSame};
  }
  for (const CoreFlag& known : kOtherFlags) {
    if (flag != known.flag) continue;
    return {NameIn(known, DialectOf(framework)), known.value};
  }
  return {};
}

Settings WithFlagValues(Framework framework, const Settings& settings) {
  Settings changed{.file_name = settings.file_name,
                   .is_complete = settings.is_complete};
  const CoreKey gate = CoreKeyOf(framework, "swiglu");
  const Setting* gated = settings.Find(gate.name);
  const bool is_gated = gated != nullptr && IsTrue(gated->value);
  for (Setting entry : settings.entries) {
    // Megatron-Bridge writes a function this way.
    entry.key = std::string(absl::StripSuffix(entry.key, "._target_"));
    for (const CoreFlag& flag : kOtherFlags) {
      if (entry.key == NameIn(flag, DialectOf(framework))) {
        entry.value = FlagValue(flag.value, entry.value, is_gated);
      }
    }
    changed.entries.push_back(std::move(entry));
  }
  return changed;
}

}  // namespace millrace
