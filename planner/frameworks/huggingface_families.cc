#include "planner/frameworks/huggingface_families.h"

namespace millrace {
namespace {

const FrameworkKey kHuggingFaceKeys[] = {
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

// Keys that a family has beside the common ones, or instead of them. Those
// without a default are required.
const FrameworkKey kMixtralKeys[] = {
    {"model.kv_heads", "num_key_value_heads"},
    {"model.moe.num_experts", "num_local_experts"},
    {"model.moe.experts_per_token", "num_experts_per_tok"},
    {"model.moe.expert_hidden", "intermediate_size"},
    {"model.norm_epsilon", "rms_norm_eps", "1e-05"},
};
const FrameworkKey kQwen3MoeKeys[] = {
    {"model.kv_heads", "num_key_value_heads"},
    {"model.moe.num_experts", "num_experts"},
    {"model.moe.experts_per_token", "num_experts_per_tok"},
    {"model.moe.expert_hidden", "moe_intermediate_size"},
};
// Every head has its own key and value, whatever num_key_value_heads says.
const FrameworkKey kDeepSeekKeys[] = {
    {"model.moe.num_experts", "n_routed_experts"},
    {"model.moe.experts_per_token", "num_experts_per_tok"},
    {"model.moe.expert_hidden", "moe_intermediate_size"},
    {"model.moe.num_shared_experts", "n_shared_experts"},
    {"model.moe.num_dense_layers", "first_k_dense_replace"},
    {"model.mla.kv_rank", "kv_lora_rank"},
    {"model.mla.query_rank", "q_lora_rank", "0"},
    {"model.mla.nope_head_dim", "qk_nope_head_dim"},
    {"model.mla.rope_head_dim", "qk_rope_head_dim"},
    {"model.mla.value_head_dim", "v_head_dim"},
    {"model.kv_heads", "num_attention_heads"},
};
const FrameworkKey kNemotronKeys[] = {
    {"model.norm_epsilon", "norm_eps", "1e-05"},
};
const FrameworkKey kGpt2Keys[] = {
    {"model.hidden", "n_embd"},
    {"model.layers", "n_layer"},
    {"model.heads", "n_head"},
    {"model.kv_heads", "n_head"},
    {"model.norm_epsilon", "layer_norm_epsilon", "1e-05"},
};
const FrameworkKey kGroupedKeys[] = {
    {"model.kv_heads", "num_key_value_heads"},
};
const FrameworkKey kQwen3Keys[] = {
    {"model.kv_heads", "num_key_value_heads"},
    {"model.head_dim", "head_dim", "128"},
};

const FrameworkKey kGemma2Keys[] = {
    {"model.kv_heads", "num_key_value_heads", "4"},
    {"model.head_dim", "head_dim", "256"},
    {"model.query_pre_attn_scalar", "query_pre_attn_scalar", "256"},
    {"model.attention_softcap", "attn_logit_softcapping", "50"},
    {"model.logit_softcap", "final_logit_softcapping", "30"},
};
const FrameworkKey kGemma3Keys[] = {
    {"model.kv_heads", "num_key_value_heads", "4"},
    {"model.head_dim", "head_dim", "256"},
    {"model.query_pre_attn_scalar", "query_pre_attn_scalar", "256"},
    {"model.attention_softcap", "attn_logit_softcapping", "0"},
    {"model.logit_softcap", "final_logit_softcapping", "0"},
};

constexpr char kFirstLayersDense[] =
    "ours has experts in all layers but the first ones";
constexpr UsualValue kQwen3MoeUsual[] = {
    {"decoder_sparse_step", "1", kFirstLayersDense},
    {"mlp_only_layers", "", kFirstLayersDense},
};
constexpr UsualValue kDeepSeekUsual[] = {
    {"moe_layer_freq", "1", kFirstLayersDense},
};

constexpr UsualValue kGpt2Usual[] = {
    {"scale_attn_weights", "true", "ours divides scores by the head's width"},
    {"scale_attn_by_inverse_layer_idx", "false",
     "ours divides scores alike in all layers"},
};

constexpr UsualValue kGemmaUsual[] = {
    {"use_bidirectional_attention", "false",
     "ours attends to earlier tokens only"},
};

constexpr char kLayerNorms[] =
    "planned as a model with RMSNorm, rotary positions and no biases, which "
    "has nearly the same work";

const Family kFamilies[] = {
    {.type = "llama", .architecture = "LlamaForCausalLM"},
    {.type = "mistral",
     .architecture = "MistralForCausalLM",
     .keys = kGroupedKeys,
     .window = "4096"},
    {.type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .naming = TensorNaming::kFused,
     .rotates_part = true},
    {.type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .feed_forward = FeedForward::kGeglu,
     .keys = kGemma2Keys,
     .usual = kGemmaUsual,
     .activation = "hidden_activation",
     .ties_embedding = true,
     .window = "4096",
     .global_period = 2,
     .norm_adds_one = true,
     .output_norms = true,
     .scales_embedding = true},
    {.type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .feed_forward = FeedForward::kGeglu,
     .keys = kGemma3Keys,
     .usual = kGemmaUsual,
     .activation = "hidden_activation",
     .theta = "1000000",
     .ties_embedding = true,
     .qk_norm = true,
     .window = "4096",
     .global_period = 6,
     .sliding_theta = "10000",
     .norm_adds_one = true,
     .output_norms = true,
     .scales_embedding = true},
    {.type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .keys = kGroupedKeys,
     .qkv_bias = true,
     .window = "4096",
     .window_is_optional = true},
    {.type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .keys = kQwen3Keys,
     .qk_norm = true,
     .window = "4096",
     .window_is_optional = true},
    {.type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .keys = kMixtralKeys,
     .theta = "1000000"},
    {.type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .keys = kQwen3MoeKeys,
     .usual = kQwen3MoeUsual,
     .qk_norm = true,
     .window = "4096",
     .window_is_optional = true},
    {.type = "deepseek_v2",
     .architecture = "DeepseekV2ForCausalLM",
     .keys = kDeepSeekKeys,
     .usual = kDeepSeekUsual},
    {.type = "deepseek_v3",
     .architecture = "DeepseekV3ForCausalLM",
     .keys = kDeepSeekKeys,
     .usual = kDeepSeekUsual},
    {.type = "nemotron",
     .architecture = "NemotronForCausalLM",
     .feed_forward = FeedForward::kSquaredRelu,
     .keys = kNemotronKeys,
     .approximation = kLayerNorms},
    {.type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .feed_forward = FeedForward::kGelu,
     .keys = kGpt2Keys,
     .usual = kGpt2Usual,
     .length = "n_positions",
     .default_length = "1024",
     .ffn_hidden = "n_inner",
     .default_ffn = 4,
     .activation = "activation_function",
     .ties_embedding = true,
     .qkv_bias = true,
     .linear_bias = true,
     .norm = NormKind::kLayer,
     .learns_positions = true,
     .naming = TensorNaming::kGpt2},
};

}  // namespace

std::span<const FrameworkKey> HuggingFaceKeys() { return kHuggingFaceKeys; }

std::span<const Family> HuggingFaceFamilies() { return kFamilies; }

}  // namespace millrace
