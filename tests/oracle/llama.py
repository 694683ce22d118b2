"""The Llama equations in PyTorch, written from the published definitions and apart
from Millrace: RMSNorm, rotary positions (rotate-half), grouped-query attention,
SwiGLU, and the options of other families (Llama 3.1, Mistral, Qwen2, Qwen3, GPT-2, Gemma 2
and 3, Phi-4-mini) where the model states them. Parameter names are those of Hugging Face's Llama.

The reference that oracle_test.py checks Millrace against, and the peer that
scripts/bench_step races it against.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RmsNorm(nn.Module):
    def __init__(self, hidden, m):
        super().__init__()
        self.offset = 1.0 if m.get("norm_adds_one", False) else 0.0
        self.weight = nn.Parameter(torch.full((hidden,), 1.0 - self.offset))
        self.epsilon = m["norm_epsilon"]

    def forward(self, x):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.epsilon) * (self.offset + self.weight)


def stream_norm(m):
    """The norm in front of each block and of the head."""
    if m.get("norm", "rms") == "layer":
        return nn.LayerNorm(m["hidden"], eps=m["norm_epsilon"])
    return RmsNorm(m["hidden"], m)


def softcapped(x, cap):
    return cap * torch.tanh(x / cap) if cap > 0 else x


def is_sliding(m, layer):
    """Whether the layer has the window; every global_layer_period-th has none."""
    period = m.get("global_layer_period", 0)
    return m.get("sliding_window", 0) > 0 and (period == 0 or (layer + 1) % period != 0)


def scaled_frequency(frequency, scaling):
    """Llama 3.1: long wavelengths are stretched by the factor, short ones stay, and
    those between are blended linearly in original length / wavelength."""
    original = scaling["original_max_position_embeddings"]
    wavelength = 2 * math.pi / frequency
    if wavelength > original / scaling["low_freq_factor"]:
        return frequency / scaling["factor"]
    if wavelength < original / scaling["high_freq_factor"]:
        return frequency
    smooth = (original / wavelength - scaling["low_freq_factor"]) / (
        scaling["high_freq_factor"] - scaling["low_freq_factor"])
    return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency


def rotary_tables(length, m, dtype, sliding=False):
    """cos and sin of [length, rotated elements]; both halves of these share angles. Gemma 3
    has a base of its own, and no scaling, in layers with a window."""
    width = m.get("rotary_dim", 0) or m["head_dim"]
    theta, scaling = m["rope_theta"], m.get("rope_scaling", {"kind": "none"})
    if sliding and m.get("sliding_rope_theta", 0) > 0:
        theta, scaling = m["sliding_rope_theta"], {"kind": "none"}
    frequencies = [theta ** (-i / width) for i in range(0, width, 2)]
    amplitude = 1.0
    if scaling["kind"] == "llama3":
        frequencies = [scaled_frequency(f, scaling) for f in frequencies]
    elif scaling["kind"] == "linear":
        frequencies = [f / scaling["factor"] for f in frequencies]
    elif scaling["kind"] == "longrope":
        frequencies = [f / d for f, d in zip(frequencies, m["rope_factors"], strict=True)]
        amplitude = scaling["attention_factor"]
    angles = torch.outer(torch.arange(length, dtype=torch.float64),
                         torch.tensor(frequencies, dtype=torch.float64))
    angles = torch.cat([angles, angles], dim=-1)
    return (amplitude * angles.cos()).to(dtype), (amplitude * angles.sin()).to(dtype)


def rotate(x, cos, sin):
    """Turns the first elements of each head, as many as the tables have."""
    turned, rest = x[..., :cos.shape[-1]], x[..., cos.shape[-1]:]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat([turned * cos + torch.cat([-second, first], dim=-1) * sin, rest], dim=-1)


def attention_bias(document_starts, window, dtype):
    """[batch, 1, length, length]: 0 where a token may look, -inf elsewhere. Window: tokens
    that a token sees, itself the last of them; 0: all of its document before it."""
    positions = torch.arange(document_starts.shape[1])
    distance = positions[:, None] - positions[None, :]
    near = (distance >= 0) & (distance < (window or len(positions)))
    same_document = positions[None, None, :] >= document_starts[:, :, None]
    allowed = (near & same_document)[:, None]
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, float("-inf"))


class Attention(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = m["num_heads"], m["num_kv_heads"], m["head_dim"]
        query_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        has_bias = m.get("qkv_bias", False)
        self.q_proj = nn.Linear(m["hidden"], query_width, bias=has_bias)
        self.k_proj = nn.Linear(m["hidden"], kv_width, bias=has_bias)
        self.v_proj = nn.Linear(m["hidden"], kv_width, bias=has_bias)
        if m.get("qk_norm", False):
            self.q_norm = RmsNorm(self.head_dim, m)
            self.k_norm = RmsNorm(self.head_dim, m)
        else:
            self.q_norm = self.k_norm = nn.Identity()
        self.o_proj = nn.Linear(query_width, m["hidden"], bias=m.get("linear_bias", False))
        self.is_rotary = m.get("learned_positions", 0) == 0
        self.scale = (m.get("query_pre_attn_scalar", 0) or self.head_dim) ** -0.5
        self.softcap = m.get("attention_softcap", 0)

    def forward(self, x, cos, sin, bias):
        batch, length, _ = x.shape
        turn = rotate if self.is_rotary else lambda y, cos, sin: y
        heads = lambda y, count: y.view(batch, length, count, self.head_dim).transpose(1, 2)
        query = turn(self.q_norm(heads(self.q_proj(x), self.num_heads)), cos, sin)
        key = turn(self.k_norm(heads(self.k_proj(x), self.num_kv_heads)), cos, sin)
        value = heads(self.v_proj(x), self.num_kv_heads)
        group = self.num_heads // self.num_kv_heads
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        scores = softcapped(query @ key.transpose(2, 3) * self.scale, self.softcap) + bias
        mixed = scores.softmax(dim=-1) @ value
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, m):
        super().__init__()
        bias = m.get("linear_bias", False)
        self.kind = m.get("feed_forward", "swiglu")
        if self.kind in ("swiglu", "geglu"):
            self.gate_proj = nn.Linear(m["hidden"], m["ffn_hidden"], bias=bias)
        self.up_proj = nn.Linear(m["hidden"], m["ffn_hidden"], bias=bias)
        self.down_proj = nn.Linear(m["ffn_hidden"], m["hidden"], bias=bias)

    def forward(self, x):
        if self.kind == "gelu":
            return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))
        if self.kind == "gelu_erf":
            return self.down_proj(F.gelu(self.up_proj(x)))
        if self.kind == "geglu":
            return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.input_layernorm = stream_norm(m)
        self.self_attn = Attention(m)
        self.post_attention_layernorm = stream_norm(m)
        self.norms_outputs = m.get("output_norms", False)
        if self.norms_outputs:
            self.pre_feedforward_layernorm = stream_norm(m)
            self.post_feedforward_layernorm = stream_norm(m)
        self.mlp = Mlp(m)

    def forward(self, x, cos, sin, bias):
        attended = self.self_attn(self.input_layernorm(x), cos, sin, bias)
        if self.norms_outputs:
            x = x + self.post_attention_layernorm(attended)
            fed = self.mlp(self.pre_feedforward_layernorm(x))
            return x + self.post_feedforward_layernorm(fed)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embed_tokens = nn.Embedding(m["vocab_size"], m["hidden"])
        if m.get("learned_positions", 0) > 0:
            self.embed_positions = nn.Embedding(m["learned_positions"], m["hidden"])
        self.layers = nn.ModuleList(Layer(m) for _ in range(m["num_layers"]))
        self.norm = stream_norm(m)


class Llama(nn.Module):
    """`m`: the fields of ModelSpec as a dict."""

    def __init__(self, m):
        super().__init__()
        self.m = m
        self.model = Body(m)
        self.is_tied = m.get("ties_embedding", False)
        if not self.is_tied:
            self.lm_head = nn.Linear(m["hidden"], m["vocab_size"], bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=m["init_std"])

    def logits(self, tokens, document_starts):
        """Of [batch, length] int64: [batch, length, vocabulary]."""
        x = self.model.embed_tokens(tokens)
        if self.m.get("learned_positions", 0) > 0:
            x = x + self.model.embed_positions.weight[:tokens.shape[1]]
        if self.m.get("scales_embedding", False):
            x = x * self.m["hidden"] ** 0.5
        # For layers without the window, and with it.
        kinds = [(*rotary_tables(tokens.shape[1], self.m, x.dtype, sliding),
                  attention_bias(document_starts,
                                 self.m.get("sliding_window", 0) if sliding else 0, x.dtype))
                 for sliding in (False, True)]
        for idx, layer in enumerate(self.model.layers):
            x = layer(x, *kinds[is_sliding(self.m, idx)])
        head = self.model.embed_tokens if self.is_tied else self.lm_head
        return softcapped(self.model.norm(x) @ head.weight.T, self.m.get("logit_softcap", 0))

    def loss(self, tokens, targets, document_starts):
        """Mean negative log-likelihood of all tokens; arguments [batch, length] int64."""
        logits = self.logits(tokens, document_starts)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(model, optimizer):
    """AdamW as Millrace means it: norm weights and biases do not decay. `optimizer`:
    OptimizerSpec."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": optimizer["weight_decay"]},
         {"params": vectors, "weight_decay": 0.0}],
        lr=optimizer["learning_rate"], betas=(optimizer["beta1"], optimizer["beta2"]),
        eps=optimizer["epsilon"])
