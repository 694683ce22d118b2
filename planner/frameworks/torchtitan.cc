#include "planner/frameworks/torchtitan.h"

namespace millrace {
namespace {

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

// The widths of the feed-forward block follow torchtitan's FeedForward: 2/3 of
// 4 x dim, times ffn_dim_multiplier, rounded up to multiple_of.
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

constexpr FrameworkAdapter kTorchtitan = {
    .name = "torchtitan",
    .title = "torchtitan",
    .version = "v0.2.2",
    .configuration = "a TOML file",
    .keys = kTorchtitanKeys,
    .read = ReadTomlSettings,
    .take = ImportTorchtitan,
    .write = ExportTorchtitan,
};

}  // namespace

Framework TorchtitanAdapter() { return &kTorchtitan; }

std::span<const TorchtitanFlavor> TorchtitanFlavors() {
  return kTorchtitanFlavors;
}

}  // namespace millrace
