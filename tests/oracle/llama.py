"""The Llama equations in PyTorch, written from the published definitions and apart
from Millrace: RMSNorm, rotary positions (rotate-half), grouped-query attention,
SwiGLU, and the options of other families (Llama 3.1, Mistral, Qwen2, Qwen3) where the
model states them. Parameter names are those of Hugging Face.

The reference that oracle_test.py checks Millrace against, and the peer that
scripts/bench_step races it against.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RmsNorm(nn.Module):
    def __init__(self, hidden, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.epsilon = epsilon

    def forward(self, x):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.epsilon) * self.weight


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


def rotary_tables(length, m, dtype):
    """cos and sin of [length, head_dim]; both halves of a head share angles."""
    head_dim, scaling = m["head_dim"], m.get("rope_scaling", {"kind": "none"})
    frequencies = [m["rope_theta"] ** (-i / head_dim) for i in range(0, head_dim, 2)]
    if scaling["kind"] == "llama3":
        frequencies = [scaled_frequency(f, scaling) for f in frequencies]
    angles = torch.outer(torch.arange(length, dtype=torch.float64),
                         torch.tensor(frequencies, dtype=torch.float64))
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


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
            self.q_norm = RmsNorm(self.head_dim, m["norm_epsilon"])
            self.k_norm = RmsNorm(self.head_dim, m["norm_epsilon"])
        else:
            self.q_norm = self.k_norm = nn.Identity()
        self.o_proj = nn.Linear(query_width, m["hidden"], bias=False)

    def forward(self, x, cos, sin, bias):
        batch, length, _ = x.shape
        heads = lambda y, count: y.view(batch, length, count, self.head_dim).transpose(1, 2)
        query = rotate(self.q_norm(heads(self.q_proj(x), self.num_heads)), cos, sin)
        key = rotate(self.k_norm(heads(self.k_proj(x), self.num_kv_heads)), cos, sin)
        value = heads(self.v_proj(x), self.num_kv_heads)
        group = self.num_heads // self.num_kv_heads
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        scores = query @ key.transpose(2, 3) * self.head_dim ** -0.5 + bias
        mixed = scores.softmax(dim=-1) @ value
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.gate_proj = nn.Linear(m["hidden"], m["ffn_hidden"], bias=False)
        self.up_proj = nn.Linear(m["hidden"], m["ffn_hidden"], bias=False)
        self.down_proj = nn.Linear(m["ffn_hidden"], m["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.input_layernorm = RmsNorm(m["hidden"], m["norm_epsilon"])
        self.self_attn = Attention(m)
        self.post_attention_layernorm = RmsNorm(m["hidden"], m["norm_epsilon"])
        self.mlp = Mlp(m)

    def forward(self, x, cos, sin, bias):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, bias)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embed_tokens = nn.Embedding(m["vocab_size"], m["hidden"])
        self.layers = nn.ModuleList(Layer(m) for _ in range(m["num_layers"]))
        self.norm = RmsNorm(m["hidden"], m["norm_epsilon"])


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

    def loss(self, tokens, targets, document_starts):
        """Mean negative log-likelihood of all tokens; arguments [batch, length] int64."""
        x = self.model.embed_tokens(tokens)
        cos, sin = rotary_tables(tokens.shape[1], self.m, x.dtype)
        bias = attention_bias(document_starts, self.m.get("sliding_window", 0), x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, bias)
        head = self.model.embed_tokens if self.is_tied else self.lm_head
        logits = self.model.norm(x) @ head.weight.T
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
