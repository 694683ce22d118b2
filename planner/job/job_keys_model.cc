#include "planner/job/job_key_rows.h"

namespace millrace {
namespace {

const JobKey kModelKeys[] = {
    {KEY(name),
     .doc = "Names the run directory. Letters, digits, '.', '_' and '-'.",
     .required = true},

    {.path = "model.family",
     .field = [](JobSpec&) -> JobField { return FixedChoice{}; },
     .doc = "Pre-norm RMSNorm, rotary positions, grouped-query attention, "
            "SwiGLU, no biases, untied embedding and head, but for what other "
            "keys of model change.",
     .choices = "llama"},
    {NAMED_KEY("model.from", model_from),
     .doc = "The folder of a Hugging Face model, whose weights training starts "
            "from (docs/models.md). Its config.json sets the other keys of "
            "model but sequence_length; a key that says something else is an "
            "error. Empty: random weights."},
    {NAMED_KEY("model.fingerprint", model_fingerprint),
     .doc = "Follows from names, sizes and headers of the weights' files. A "
            "run fills it in; a job that gives it refuses other weights."},
    {KEY(model.vocab_size),
     .doc = "Rows of embedding and head. A trained tokenizer gets this size.",
     .required = true, .range = {1, kMaximumInt32}},
    {KEY(model.hidden), .doc = "Width of the residual stream.",
     .required = true, .range = {1, kMaximumInt32}},
    {NAMED_KEY("model.layers", model.num_layers), .doc = "Transformer layers.",
     .required = true, .range = {1, 10000}},
    {NAMED_KEY("model.heads", model.num_heads),
     .doc = "Query heads. A multiple of kv_heads and of the tensor axis.",
     .required = true, .range = {1, 1 << 20}},
    {NAMED_KEY("model.kv_heads", model.num_kv_heads),
     .doc = "Key-value heads. A multiple of the tensor axis.",
     .range = {1, 1 << 20}, .default_note = "default heads"},
    {KEY(model.head_dim), .doc = "Width of one head. Even.",
     .range = {2, 1 << 20},
     .default_note = "default hidden / heads, or nope + rope of mla"},
    {KEY(model.ffn_hidden),
     .doc = "Width inside the feed-forward block of dense layers. A multiple "
            "of the tensor axis.",
     .range = {0, kMaximumInt32},
     .default_note = "required, unless all layers have experts"},
    {KEY(model.feed_forward),
     .doc = "What the feed-forward block computes between its projections. "
            "gelu is GPT-2's, in its tanh form; gelu_erf is the exact one; "
            "geglu is Gemma's, the tanh form of one projection times the "
            "other. relu2 is only planned so far.",
     .choices = "swiglu|gelu|relu2|geglu|gelu_erf"},
    {KEY(model.ties_embedding),
     .doc = "true: the head is the embedding's transpose, one weight for "
            "both."},
    {KEY(model.qkv_bias),
     .doc = "true: the products that give query, key and value have biases, "
            "as in Qwen2."},
    {KEY(model.linear_bias),
     .doc = "true: attention's output product and the feed-forward block's "
            "products have biases, as in GPT-2."},
    {KEY(model.qk_norm),
     .doc = "true: RMSNorm of each query head and each key head, with one "
            "weight of head_dim for each, before they are rotated, as in "
            "Qwen3."},
    {KEY(model.sliding_window),
     .doc = "Tokens that a token attends to, itself the last of them. 0: all "
            "before it.",
     .range = {0, kMaximumInt32}},
    {KEY(model.global_layer_period),
     .doc = "Every so many-th layer has no window: of 2 each second one, as in "
            "Gemma 2. 0: all layers are alike.",
     .range = {0, 10000}},
    {KEY(model.sliding_rope_theta),
     .doc = "Base of the rotary positions of layers with a window, which are "
            "then not scaled, as in Gemma 3. 0: they are as in the layers "
            "without."},
    {KEY(model.norm_adds_one),
     .doc = "true: RMSNorms multiply by 1 + weight, as in Gemma; weights start "
            "at 0."},
    {KEY(model.output_norms),
     .doc = "true: norms also of what attention and the feed-forward block "
            "add to the stream, as in Gemma 2."},
    {KEY(model.scales_embedding),
     .doc = "true: the embedding's rows are multiplied by the square root of "
            "hidden, as in Gemma."},
    {KEY(model.query_pre_attn_scalar),
     .doc = "Attention's scores are divided by the square root of this. 0: of "
            "head_dim."},
    {KEY(model.attention_softcap),
     .doc = "Attention's scores x become softcap tanh(x / softcap), as in "
            "Gemma 2. 0: they stay."},
    {KEY(model.logit_softcap), .doc = "The same of the head's logits."},
    {KEY(model.moe.num_experts),
     .doc = "Experts of a layer, of which each token goes to some. 0: layers "
            "are dense. Above 0 only planned so far.",
     .range = {0, 1 << 20}},
    {KEY(model.moe.experts_per_token), .doc = "Experts that a token goes to.",
     .range = {0, 1 << 20}},
    {KEY(model.moe.expert_hidden), .doc = "Width inside one expert.",
     .range = {0, kMaximumInt32}},
    {KEY(model.moe.num_shared_experts),
     .doc = "Experts beside these that see every token.",
     .range = {0, 1 << 20}},
    {KEY(model.moe.num_dense_layers),
     .doc = "The first layers, without experts, of width ffn_hidden.",
     .range = {0, 10000}},
    {KEY(model.mla.kv_rank),
     .doc = "Width of the latent vector that keys and values come from. 0: "
            "plain attention. Above 0 only planned so far.",
     .range = {0, kMaximumInt32}},
    {KEY(model.mla.query_rank),
     .doc = "Width of the latent vector that queries come from. 0: none.",
     .range = {0, kMaximumInt32}},
    {KEY(model.mla.nope_head_dim),
     .doc = "Width of a query or key head without position.",
     .range = {0, 1 << 20}},
    {KEY(model.mla.rope_head_dim),
     .doc = "Width of a query or key head with rotary position. Even.",
     .range = {0, 1 << 20}},
    {KEY(model.mla.value_head_dim), .doc = "Width of a value head.",
     .range = {0, 1 << 20}},
    {KEY(model.sequence_length), .doc = "Tokens of a training sequence.",
     .required = true, .range = {1, kMaximumInt32}},
    {KEY(model.rope_theta), .doc = "Base of the rotary position embedding.",
     .range = {.excludes_least = true}},
    {KEY(model.rope_scaling.kind),
     .doc = "How rotary positions are stretched to long sequences. llama3, as "
            "Llama 3.1 does it, needs the next four keys. linear divides all "
            "frequencies by factor. longrope, as in Phi-4-mini, needs "
            "rope_factors and attention_factor.",
     .choices = "none|llama3|linear|longrope"},
    {KEY(model.rope_scaling.factor),
     .doc = "By what the frequencies of long wavelengths are divided. At least "
            "1."},
    {KEY(model.rope_scaling.low_freq_factor),
     .doc = "Wavelengths above original_max_position_embeddings / "
            "low_freq_factor tokens are long."},
    {KEY(model.rope_scaling.high_freq_factor),
     .doc = "Wavelengths below original_max_position_embeddings / "
            "high_freq_factor tokens are kept; those between are blended."},
    {KEY(model.rope_scaling.original_max_position_embeddings),
     .doc = "Tokens of the sequences that the model saw before.",
     .range = {0, kMaximumInt32}},
    {KEY(model.rope_scaling.attention_factor),
     .doc = "What longrope multiplies rotated queries and keys by."},
    {KEY(model.rope_factors),
     .doc = "What longrope divides the frequencies by: a number for each pair "
            "of rotated elements of a head."},
    {KEY(model.rotary_dim),
     .doc = "Elements at the start of each head that are rotated, as in "
            "Phi-4-mini. Even. 0: all of them.",
     .range = {0, 1 << 20}},
    {KEY(model.learned_positions),
     .doc = "Rows of a learned table of positions, which is added to the "
            "embedding as in GPT-2; queries and keys are then not rotated. At "
            "least sequence_length, and a multiple of the tensor axis. 0: "
            "rotary positions.",
     .range = {0, kMaximumInt32}},
    {KEY(model.norm),
     .doc = "The norms before both blocks and the head: RMSNorm (rms), or "
            "LayerNorm with weight and bias (layer).",
     .choices = "rms|layer"},
    {KEY(model.norm_epsilon),
     .doc = "Added to the mean square in RMSNorm and to the variance in "
            "LayerNorm.",
     .range = {.excludes_least = true}},
    {KEY(model.init_std),
     .doc = "Standard deviation of the initial embedding, head and linear "
            "weights.",
     .range = {.excludes_least = true}},
    {NAMED_KEY("model.approximates", model_approximates),
     .doc = "What the model leaves out of the one that it stands for, in "
            "words; plans and runs repeat it as a warning. Empty: nothing."},
};

}  // namespace

std::span<const JobKey> ModelKeys() { return kModelKeys; }

}  // namespace millrace
