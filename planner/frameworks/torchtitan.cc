#include "planner/frameworks/torchtitan.h"

namespace millrace {
namespace {

const FrameworkKey kTorchtitanKeys[] = {
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

struct LlamaDims {
  int64_t vocab_size, hidden, layers, heads, kv_heads, ffn_hidden;
};

constexpr TorchtitanFlavor Flavor(const char* name, const LlamaDims& dims) {
  return {name,
          {.vocab_size = dims.vocab_size,
           .hidden = dims.hidden,
           .num_layers = dims.layers,
           .num_heads = dims.heads,
           .num_kv_heads = dims.kv_heads,
           .head_dim = dims.hidden / dims.heads,
           .ffn_hidden = dims.ffn_hidden,
           .rope_theta = 500000}};
}

// The widths of the feed-forward block follow torchtitan's FeedForward: 2/3 of
// 4 x dim, times ffn_dim_multiplier, rounded up to multiple_of.
constexpr TorchtitanFlavor kTorchtitanFlavors[] = {
    Flavor("debugmodel", {2048, 256, 6, 16, 16, 768}),
    Flavor("8B", {128256, 4096, 32, 32, 8, 14336}),
    Flavor("70B", {128256, 8192, 80, 64, 8, 28672}),
    Flavor("405B", {128256, 16384, 126, 128, 8, 53248}),
};

constexpr const char* kTorchtitanUnwritten[] = {"model.rope_scaling.kind",
                                                "model.sliding_window",
                                                "model.rotary_dim",
                                                "model.norm_adds_one",
                                                "model.output_norms",
                                                "model.scales_embedding",
                                                "model.attention_softcap",
                                                "model.query_pre_attn_scalar",
                                                "model.logit_softcap",
                                                "model.qkv_bias",
                                                "model.linear_bias",
                                                "model.learned_positions",
                                                "model.norm",
                                                "training.attention",
                                                "training.bf16_end_layers"};

constexpr FrameworkAdapter kTorchtitan = {
    .name = "torchtitan",
    .title = "torchtitan",
    .version = "v0.2.2",
    .configuration = "a TOML file",
    .keys = kTorchtitanKeys,
    .read = ReadTomlSettings,
    .take = ImportTorchtitan,
    .write = ExportTorchtitan,
    .unwritten_options = kTorchtitanUnwritten,
};

}  // namespace

Framework TorchtitanAdapter() { return &kTorchtitan; }

std::span<const TorchtitanFlavor> TorchtitanFlavors() {
  return kTorchtitanFlavors;
}

}  // namespace millrace
