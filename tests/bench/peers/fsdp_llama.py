"""The Llama of a Millrace job as a PyTorch user would write it for GPUs: SDPA for
attention, each layer compiled, sharded with fully_shard over the data axis and, if
asked, with tensor and sequence parallelism over the tensor axis. PyTorch 2.11.

Parameter names are those of Hugging Face, as Millrace exports them.
"""

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)


def rotary_tables(length, head_dim, theta):
    """cos and sin of [length, head_dim], fp32; both halves of a head share angles."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
    positions = torch.arange(length, dtype=torch.float64, device="cpu")
    angles = torch.outer(positions, theta ** -exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate(x, cos, sin):
    """Rotate-half in fp32: the compiler fuses the casts away."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def attend(query, key, value, mask, repeat_kv):
    """[batch, heads, length, head_dim] each; `mask` None for plain causal."""
    groups = query.shape[1] // key.shape[1]
    if repeat_kv and groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        groups = 1
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask,
                                          is_causal=mask is None, enable_gqa=groups > 1)


def document_mask(document_starts):
    """[batch, 1, length, length]: true where a token may look."""
    positions = torch.arange(document_starts.shape[1], device=document_starts.device)
    causal = positions[None, :] <= positions[:, None]
    return (causal & (positions >= document_starts[:, :, None]))[:, None]


class Attention(nn.Module):
    def __init__(self, m, tables, repeat_kv):
        super().__init__()
        self.head_dim, self.repeat_kv = m["head_dim"], repeat_kv
        query_width, kv_width = m["num_heads"] * m["head_dim"], m["num_kv_heads"] * m["head_dim"]
        self.q_proj = nn.Linear(m["hidden"], query_width, bias=False)
        self.k_proj = nn.Linear(m["hidden"], kv_width, bias=False)
        self.v_proj = nn.Linear(m["hidden"], kv_width, bias=False)
        self.o_proj = nn.Linear(query_width, m["hidden"], bias=False)
        # Buffers, since fully_shard would round arguments to bf16.
        self.register_buffer("cos", tables[0], persistent=False)
        self.register_buffer("sin", tables[1], persistent=False)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        heads = lambda y: y.view(batch, length, -1, self.head_dim).transpose(1, 2)
        query = rotate(heads(self.q_proj(x)), self.cos, self.sin)
        key = rotate(heads(self.k_proj(x)), self.cos, self.sin)
        mixed = attend(query, key, heads(self.v_proj(x)), mask, self.repeat_kv)
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
    def __init__(self, m, tables, repeat_kv):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(m["hidden"], m["norm_epsilon"])
        self.self_attn = Attention(m, tables, repeat_kv)
        self.post_attention_layernorm = nn.RMSNorm(m["hidden"], m["norm_epsilon"])
        self.mlp = Mlp(m)

    def forward(self, x, mask):
        x = x + self.self_attn(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, m, repeat_kv):
        super().__init__()
        self.embed_tokens = nn.Embedding(m["vocab_size"], m["hidden"])
        tables = [table.to(self.embed_tokens.weight.device) for table in rotary_tables(
            m["sequence_length"], m["head_dim"], m["rope_theta"])]
        self.layers = nn.ModuleList(Layer(m, tables, repeat_kv) for _ in range(m["num_layers"]))
        self.norm = nn.RMSNorm(m["hidden"], m["norm_epsilon"])

    def forward(self, tokens, mask):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Llama(nn.Module):
    """`m`: the fields of ModelSpec as a dict. Made on the default device."""

    def __init__(self, m, repeat_kv=True):
        super().__init__()
        self.model = Body(m, repeat_kv)
        self.lm_head = nn.Linear(m["hidden"], m["vocab_size"], bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=m["init_std"])

    def forward(self, tokens, mask=None):
        return self.lm_head(self.model(tokens, mask))


def split_over_tensor_axis(model, mesh):
    """Tensor parallelism in the layers, sequence parallelism between them, the
    vocabulary of the head cut for loss_parallel()."""
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1),
                                   use_local_output=False)})
    gathered = lambda *others: PrepareModuleInput(
        input_layouts=(Shard(1), *others), desired_input_layouts=(Replicate(), *others))
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {
            "input_layernorm": SequenceParallel(),
            "self_attn": gathered(None),
            "self_attn.q_proj": ColwiseParallel(),
            "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(),
            "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
            "post_attention_layernorm": SequenceParallel(),
            "mlp": gathered(),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1))})


def compile_and_shard(model, mesh, precision):
    """`mesh` has the axes data and tensor."""
    if mesh["tensor"].size() > 1:
        split_over_tensor_axis(model, mesh["tensor"])
    layers = model.model.layers
    for i, layer in enumerate(layers):
        layers[i] = torch.compile(layer, fullgraph=True)
    policy = MixedPrecisionPolicy() if precision == "fp32" else MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    # Gathered again for the backward pass only where there is something to gather.
    several = mesh["data"].size() > 1
    shard = lambda what, gather_again: fully_shard(
        what, mesh=mesh["data"], mp_policy=policy, reshard_after_forward=gather_again)
    shard(model.model.embed_tokens, several)
    for layer in layers:
        shard(layer, several)
    shard([model.model.norm, model.lm_head], False)
    shard(model, False)


def fastest_attention(m, micro_batch, heads_divided_by):
    """Times PyTorch's kernels forward and backward on the job's shape, allows the
    fastest alone from then on. Returns (name, repeat_kv)."""
    shape = lambda heads: (micro_batch, heads // heads_divided_by, m["sequence_length"], m["head_dim"])
    random = lambda heads: torch.randn(shape(heads), device="cuda", dtype=torch.bfloat16,
                                       requires_grad=True)
    query, key, value = random(m["num_heads"]), random(m["num_kv_heads"]), random(m["num_kv_heads"])
    output_gradient = torch.randn_like(query)

    def allow(kernel):
        torch.backends.cuda.enable_cudnn_sdp(kernel == "cuDNN")
        torch.backends.cuda.enable_flash_sdp(kernel == "flash")
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)

    def seconds(repeat_kv, rounds):
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(rounds):
            attend(query, key, value, None, repeat_kv).backward(output_gradient)
        torch.cuda.synchronize()
        return time.monotonic() - start

    times = {}
    for kernel in ("cuDNN", "flash"):
        for repeat_kv in (False, True):
            try:
                allow(kernel)
                seconds(repeat_kv, 3)
                times[kernel, repeat_kv] = seconds(repeat_kv, 10)
            except RuntimeError:
                continue  # This kernel cannot do the shape.
    if not times:
        raise RuntimeError("no fused attention of PyTorch can do this job's shape")
    torch.cuda.empty_cache()
    kernel, repeat_kv = min(times, key=times.get)
    allow(kernel)
    return kernel, repeat_kv
