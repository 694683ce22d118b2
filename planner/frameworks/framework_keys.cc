#include "planner/frameworks/framework_keys.h"

#include "base/check.h"

namespace millrace {
namespace {

constexpr FrameworkKey kMegatronKeys[] = {
    {"layout.tensor", "tensor-model-parallel-size", "1"},
    {"layout.pipeline", "pipeline-model-parallel-size", "1"},
    {"layout.context", "context-parallel-size", "1"},
    {"layout.expert", "expert-model-parallel-size", "1"},
    {"layout.expert_tensor", "expert-tensor-parallel-size"},
    {"layout.micro_batch", "micro-batch-size"},
    {"training.global_batch", "global-batch-size"},
    {"model.layers", "num-layers"},
    {"model.hidden", "hidden-size"},
    {"model.ffn_hidden", "ffn-hidden-size"},
    {"model.heads", "num-attention-heads"},
    {"model.kv_heads", "num-query-groups"},
    {"model.head_dim", "kv-channels"},
    {"model.sequence_length", "seq-length"},
    {"model.rope_theta", "rotary-base", "10000"},
    {"model.norm_epsilon", "norm-epsilon", "1e-05"},
    {"model.init_std", "init-method-std", "0.02"},
    {"training.steps", "train-iters"},
    {"training.optimizer.learning_rate", "lr"},
    {"training.optimizer.min_learning_rate", "min-lr", "0"},
    {"training.optimizer.warmup_steps", "lr-warmup-iters", "0"},
    {"training.optimizer.beta1", "adam-beta1", "0.9"},
    {"training.optimizer.beta2", "adam-beta2", "0.999"},
    {"training.optimizer.epsilon", "adam-eps", "1e-08"},
    {"training.optimizer.weight_decay", "weight-decay", "0.01"},
    {"training.gradient_clip_norm", "clip-grad", "1"},
    {"training.seed", "seed", "1234"},
    {"checkpoint.interval_steps", "save-interval", "0"},
};

// Recipes have values of their own, so that no default is known here.
constexpr FrameworkKey kBridgeKeys[] = {
    {"layout.tensor", "model.tensor_model_parallel_size"},
    {"layout.pipeline", "model.pipeline_model_parallel_size"},
    {"layout.context", "model.context_parallel_size"},
    {"layout.expert", "model.expert_model_parallel_size"},
    {"layout.expert_tensor", "model.expert_tensor_parallel_size"},
    {"layout.micro_batch", "train.micro_batch_size"},
    {"training.global_batch", "train.global_batch_size"},
    {"model.layers", "model.num_layers"},
    {"model.hidden", "model.hidden_size"},
    {"model.ffn_hidden", "model.ffn_hidden_size"},
    {"model.heads", "model.num_attention_heads"},
    {"model.kv_heads", "model.num_query_groups"},
    {"model.head_dim", "model.kv_channels"},
    {"model.sequence_length", "dataset.seq_length"},
    {"model.rope_theta", "model.rotary_base"},
    {"model.norm_epsilon", "model.layernorm_epsilon"},
    {"model.init_std", "model.init_method_std"},
    {"training.steps", "train.train_iters"},
    {"training.optimizer.learning_rate", "optimizer.lr"},
    {"training.optimizer.min_learning_rate", "optimizer.min_lr"},
    {"training.optimizer.warmup_steps", "scheduler.lr_warmup_iters"},
    {"training.optimizer.beta1", "optimizer.adam_beta1"},
    {"training.optimizer.beta2", "optimizer.adam_beta2"},
    {"training.optimizer.epsilon", "optimizer.adam_eps"},
    {"training.optimizer.weight_decay", "optimizer.weight_decay"},
    {"training.gradient_clip_norm", "optimizer.clip_grad"},
    {"training.seed", "rng.seed"},
    {"checkpoint.interval_steps", "checkpoint.save_interval"},
};

constexpr FrameworkKey kNemoKeys[] = {
    {"layout.tensor", "trainer.strategy.tensor_model_parallel_size"},
    {"layout.pipeline", "trainer.strategy.pipeline_model_parallel_size"},
    {"layout.context", "trainer.strategy.context_parallel_size"},
    {"layout.expert", "trainer.strategy.expert_model_parallel_size"},
    {"layout.expert_tensor", "trainer.strategy.expert_tensor_parallel_size"},
    {"layout.micro_batch", "data.micro_batch_size"},
    {"training.global_batch", "data.global_batch_size"},
    {"model.layers", "model.config.num_layers"},
    {"model.hidden", "model.config.hidden_size"},
    {"model.ffn_hidden", "model.config.ffn_hidden_size"},
    {"model.heads", "model.config.num_attention_heads"},
    {"model.kv_heads", "model.config.num_query_groups"},
    {"model.head_dim", "model.config.kv_channels"},
    {"model.sequence_length", "data.seq_length"},
    {"model.rope_theta", "model.config.rotary_base"},
    {"model.norm_epsilon", "model.config.layernorm_epsilon"},
    {"model.init_std", "model.config.init_method_std"},
    {"training.steps", "trainer.max_steps"},
    {"training.optimizer.learning_rate", "optim.config.lr"},
    {"training.optimizer.min_learning_rate", "optim.lr_scheduler.min_lr"},
    {"training.optimizer.warmup_steps", "optim.lr_scheduler.warmup_steps"},
    {"training.optimizer.beta1", "optim.config.adam_beta1"},
    {"training.optimizer.beta2", "optim.config.adam_beta2"},
    {"training.optimizer.epsilon", "optim.config.adam_eps"},
    {"training.optimizer.weight_decay", "optim.config.weight_decay"},
    {"training.gradient_clip_norm", "optim.config.clip_grad"},
    {"checkpoint.interval_steps", "log.ckpt.every_n_train_steps"},
};

constexpr FrameworkKey kTorchtitanKeys[] = {
    {"training.steps", "training.steps", "10000"},
    {"training.global_batch", "training.global_batch_size"},
    {"model.sequence_length", "training.seq_len", "2048"},
    {"training.gradient_clip_norm", "training.max_norm", "1.0"},
    {"training.optimizer.learning_rate", "optimizer.lr", "0.0008"},
    {"training.optimizer.beta1", "optimizer.beta1", "0.9"},
    {"training.optimizer.beta2", "optimizer.beta2", "0.95"},
    {"training.optimizer.epsilon", "optimizer.eps", "1e-08"},
    {"training.optimizer.weight_decay", "optimizer.weight_decay", "0.1"},
    {"training.optimizer.warmup_steps", "lr_scheduler.warmup_steps", "200"},
    {"layout.tensor", "parallelism.tensor_parallel_degree", "1"},
    {"layout.pipeline", "parallelism.pipeline_parallel_degree", "1"},
    {"layout.context", "parallelism.context_parallel_degree", "1"},
    {"layout.expert", "parallelism.expert_parallel_degree", "1"},
    {"layout.expert_tensor", "parallelism.expert_tensor_parallel_degree", "1"},
    {"training.seed", "debug.seed"},
};

constexpr FrameworkKey kDeepSpeedKeys[] = {
    {"training.global_batch", "train_batch_size"},
    {"layout.micro_batch", "train_micro_batch_size_per_gpu"},
    {"training.gradient_clip_norm", "gradient_clipping"},
    {"layout.zero", "zero_optimization.stage"},
    {"training.optimizer.learning_rate", "optimizer.params.lr"},
    {"training.optimizer.epsilon", "optimizer.params.eps"},
    {"training.optimizer.weight_decay", "optimizer.params.weight_decay"},
};

constexpr FrameworkKey kHuggingFaceKeys[] = {
    {"model.vocab_size", "vocab_size"},
    {"model.hidden", "hidden_size"},
    {"model.layers", "num_hidden_layers"},
    {"model.heads", "num_attention_heads"},
    {"model.kv_heads", "num_key_value_heads"},
    {"model.head_dim", "head_dim"},
    {"model.ffn_hidden", "intermediate_size"},
    {"model.sequence_length", "max_position_embeddings"},
    {"model.norm_epsilon", "rms_norm_eps", "1e-06"},
    {"model.init_std", "initializer_range", "0.02"},
};

// Widths inside the feed-forward block follow from the rule in torchtitan's
// FeedForward: 2/3 of 4 x dim, times ffn_dim_multiplier, up to multiple_of.
constexpr TorchtitanFlavor kTorchtitanFlavors[] = {
    {"debugmodel",
     {.vocab_size = 2048,
      .hidden = 256,
      .num_layers = 6,
      .num_heads = 16,
      .num_kv_heads = 16,
      .head_dim = 16,
      .ffn_hidden = 768,
      .rope_theta = 500000}},
    {"8B",
     {.vocab_size = 128256,
      .hidden = 4096,
      .num_layers = 32,
      .num_heads = 32,
      .num_kv_heads = 8,
      .head_dim = 128,
      .ffn_hidden = 14336,
      .rope_theta = 500000}},
    {"70B",
     {.vocab_size = 128256,
      .hidden = 8192,
      .num_layers = 80,
      .num_heads = 64,
      .num_kv_heads = 8,
      .head_dim = 128,
      .ffn_hidden = 28672,
      .rope_theta = 500000}},
    {"405B",
     {.vocab_size = 128256,
      .hidden = 16384,
      .num_layers = 126,
      .num_heads = 128,
      .num_kv_heads = 8,
      .head_dim = 128,
      .ffn_hidden = 53248,
      .rope_theta = 500000}},
};

struct FrameworkFacts {
  const char* name;
  const char* title;
  const char* version;
  std::span<const FrameworkKey> keys;
};

const FrameworkFacts& FactsOf(Framework framework) {
  static const FrameworkFacts kFacts[] = {
      {"megatron", "Megatron-LM", "core 0.12 and later", kMegatronKeys},
      {"megatron-bridge", "Megatron-Bridge", "v0.6.0", kBridgeKeys},
      {"nemo", "NeMo", "2.4.0", kNemoKeys},
      {"torchtitan", "torchtitan", "v0.2.2", kTorchtitanKeys},
      {"deepspeed", "DeepSpeed", "0.16.4 and later", kDeepSpeedKeys},
      {"huggingface", "Hugging Face Transformers", "config.json of 4.x and 5.x",
       kHuggingFaceKeys},
  };
  const size_t index = static_cast<size_t>(framework);
  CHECK(index < std::size(kFacts)) << "unknown framework " << index;
  return kFacts[index];
}

}  // namespace

std::span<const FrameworkKey> FrameworkKeys(Framework framework) {
  return FactsOf(framework).keys;
}

const char* FrameworkTitle(Framework framework) {
  return FactsOf(framework).title;
}

const char* FrameworkVersion(Framework framework) {
  return FactsOf(framework).version;
}

std::optional<Framework> FrameworkFromName(absl::string_view name) {
  for (const Framework framework :
       {Framework::kMegatron, Framework::kMegatronBridge, Framework::kNemo,
        Framework::kTorchtitan, Framework::kDeepSpeed,
        Framework::kHuggingFace}) {
    if (name == FactsOf(framework).name) return framework;
  }
  return std::nullopt;
}

std::span<const TorchtitanFlavor> TorchtitanFlavors() {
  return kTorchtitanFlavors;
}

}  // namespace millrace
