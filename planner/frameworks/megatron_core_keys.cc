#include "planner/frameworks/megatron_core_keys.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"

namespace millrace {
namespace {

// A flag for which no key of the job stands alone. A null name: the framework
// has no such key.
struct CoreFlag {
  const char* flag;
  const char* bridge;
  const char* nemo;
  CoreValue value = CoreValue::kSame;
};

constexpr CoreFlag kFlags[] = {
    // Model.
    {"position-embedding-type", "model.position_embedding_type",
     "model.config.position_embedding_type"},
    {"rotary-percent", "model.rotary_percent", "model.config.rotary_percent"},
    {"normalization", "model.normalization", "model.config.normalization"},
    {"swiglu", "model.gated_linear_unit", "model.config.gated_linear_unit",
     CoreValue::kOn},
    // NeMo's command line cannot name functions; its recipes choose one.
    {"squared-relu", "model.activation_func", nullptr, CoreValue::kSquared},
    {"untie-embeddings-and-output-weights",
     "model.share_embeddings_and_output_weights",
     "model.config.share_embeddings_and_output_weights", CoreValue::kOff},
    {"disable-bias-linear", "model.add_bias_linear",
     "model.config.add_bias_linear", CoreValue::kOff},
    {"add-qkv-bias", "model.add_qkv_bias", "model.config.add_qkv_bias",
     CoreValue::kOn},
    {"qk-layernorm", "model.qk_layernorm", "model.config.qk_layernorm",
     CoreValue::kOn},
    {"attention-dropout", "model.attention_dropout",
     "model.config.attention_dropout"},
    {"hidden-dropout", "model.hidden_dropout", "model.config.hidden_dropout"},
    {"window-size", "model.window_size", "model.config.window_size"},
    {"mtp-num-layers", "model.mtp_num_layers", "model.config.mtp_num_layers"},
    {"padded-vocab-size", "model.vocab_size", "model.config.vocab_size"},
    {"vocab-size", "tokenizer.vocab_size", nullptr},
    {"tokenizer-type", "tokenizer.tokenizer_type", nullptr},
    {"make-vocab-size-divisible-by", "model.make_vocab_size_divisible_by",
     "model.config.make_vocab_size_divisible_by"},
    {"multi-latent-attention", "model.multi_latent_attention",
     "model.config.multi_latent_attention", CoreValue::kOn},
    {"q-lora-rank", "model.q_lora_rank", "model.config.q_lora_rank"},
    {"kv-lora-rank", "model.kv_lora_rank", "model.config.kv_lora_rank"},
    {"qk-head-dim", "model.qk_head_dim", "model.config.qk_head_dim"},
    {"qk-pos-emb-head-dim", "model.qk_pos_emb_head_dim",
     "model.config.qk_pos_emb_head_dim"},
    {"v-head-dim", "model.v_head_dim", "model.config.v_head_dim"},
    {"rotary-scaling-factor", "model.rotary_scaling_factor",
     "model.config.rotary_scaling_factor"},
    {"num-experts", "model.num_moe_experts", "model.config.num_moe_experts"},
    {"moe-router-topk", "model.moe_router_topk",
     "model.config.moe_router_topk"},
    {"moe-ffn-hidden-size", "model.moe_ffn_hidden_size",
     "model.config.moe_ffn_hidden_size"},
    {"moe-shared-expert-intermediate-size",
     "model.moe_shared_expert_intermediate_size",
     "model.config.moe_shared_expert_intermediate_size"},
    {"moe-layer-freq", "model.moe_layer_freq", "model.config.moe_layer_freq",
     CoreValue::kPattern},
    {"moe-grouped-gemm", "model.moe_grouped_gemm",
     "model.config.moe_grouped_gemm", CoreValue::kOn},
    {"moe-token-dispatcher-type", "model.moe_token_dispatcher_type",
     "model.config.moe_token_dispatcher_type"},
    // Layout.
    {"sequence-parallel", "model.sequence_parallel",
     "trainer.strategy.sequence_parallel", CoreValue::kOn},
    {"num-virtual-stages-per-pipeline-rank",
     "model.virtual_pipeline_model_parallel_size",
     "trainer.strategy.virtual_pipeline_model_parallel_size"},
    {"decoder-first-pipeline-num-layers",
     "model.num_layers_in_first_pipeline_stage",
     "trainer.strategy.num_layers_in_first_pipeline_stage"},
    {"decoder-last-pipeline-num-layers",
     "model.num_layers_in_last_pipeline_stage",
     "trainer.strategy.num_layers_in_last_pipeline_stage"},
    {"pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout",
     "trainer.strategy.pipeline_model_parallel_layout"},
    {"use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping",
     "trainer.strategy.use_tp_pp_dp_mapping", CoreValue::kOn},
    {"overlap-grad-reduce", "ddp.overlap_grad_reduce",
     "trainer.strategy.ddp.overlap_grad_reduce", CoreValue::kOn},
    {"overlap-param-gather", "ddp.overlap_param_gather",
     "trainer.strategy.ddp.overlap_param_gather", CoreValue::kOn},
    {"use-distributed-optimizer", "ddp.use_distributed_optimizer",
     "optim.config.use_distributed_optimizer", CoreValue::kOn},
    {"recompute-granularity", "model.recompute_granularity",
     "model.config.recompute_granularity"},
    {"recompute-method", "model.recompute_method",
     "model.config.recompute_method"},
    {"recompute-num-layers", "model.recompute_num_layers",
     "model.config.recompute_num_layers"},
    {"recompute-modules", "model.recompute_modules",
     "model.config.recompute_modules", CoreValue::kWords},
    // Training.
    {"train-samples", "train.train_samples", nullptr},
    {"rampup-batch-size", "train.rampup_batch_size", "data.rampup_batch_size"},
    {"lr-decay-style", "scheduler.lr_decay_style", nullptr},
    {"lr-decay-iters", "scheduler.lr_decay_iters",
     "optim.lr_scheduler.max_steps"},
    {"lr-warmup-fraction", "scheduler.lr_warmup_fraction",
     "optim.lr_scheduler.warmup_ratio"},
    {"eval-interval", "validation.eval_interval", "trainer.val_check_interval"},
    {"eval-iters", "validation.eval_iters", "trainer.limit_val_batches"},
    {"data-path", "dataset.data_path", "data.paths", CoreValue::kWords},
    {"save", "checkpoint.save", "log.log_dir"},
    // Launcher.
    {"nnodes", "nnodes", "trainer.num_nodes"},
    {"nproc-per-node", "nproc-per-node", "trainer.devices"},
    {"world-size", "world-size", nullptr},
};

const char* NameIn(Framework framework, const CoreFlag& flag) {
  const char* name =
      framework == MegatronBridgeAdapter() ? flag.bridge : flag.nemo;
  return name == nullptr ? "" : name;
}

// Returns the name of a flag that stands for a key of the job, by the tables of
// both frameworks.
const char* TableName(Framework framework, absl::string_view flag) {
  for (const FrameworkKey& theirs : MegatronAdapter()->keys) {
    if (flag != theirs.name) continue;
    for (const FrameworkKey& own : framework->keys) {
      if (absl::string_view(own.job_path) == theirs.job_path) return own.name;
    }
  }
  return nullptr;
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

CoreKey CoreKeyOf(Framework framework, absl::string_view flag) {
  CHECK(IsOnCore(framework));
  if (const char* name = TableName(framework, flag); name != nullptr) {
    return {name, CoreValue::kSame};
  }
  for (const CoreFlag& known : kFlags) {
    if (flag == known.flag) return {NameIn(framework, known), known.value};
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
    for (const CoreFlag& flag : kFlags) {
      if (entry.key == NameIn(framework, flag)) {
        entry.value = FlagValue(flag.value, entry.value, is_gated);
      }
    }
    changed.entries.push_back(std::move(entry));
  }
  return changed;
}

}  // namespace millrace
