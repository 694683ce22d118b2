"""Millrace's GPU kernels as functions of PyTorch, with gradients.

bf16 tensors on a GPU, for models of your own; libmillrace_kernels.so has more functions
(docs/kernels.md). Each is checked against PyTorch in fp64 by tests/python/kernels_test.py.
"""

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int64, c_void_p

import torch

from millrace._library import Error, open_library

_ABI_VERSION = 2
_MAX_LOGITS_BYTES = 1 << 30
_MAX_WORKSPACE_BYTES = 32 << 20
_library = None


def _struct(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def _pointers(*names):
    return [(name, c_void_p) for name in names]


def _numbers(*names):
    return [(name, c_int64) for name in names]


_RmsNormForward = _struct(
    "RmsNormForward", *_pointers("y", "rstd", "x", "weight"), *_numbers("num_tokens", "hidden"),
    ("epsilon", c_double), *_pointers("amax"))
_RmsNormBackward = _struct(
    "RmsNormBackward",
    *_pointers("d_x", "d_weight", "d_y", "x", "rstd", "weight", "d_residual", "workspace"),
    *_numbers("num_tokens", "hidden", "accumulate"), *_pointers("amax"))
_Heads = _struct("Heads", *_pointers("data"),
                 *_numbers("token_stride", "head_stride", "sequence_stride"))
_AttentionShape = _struct(
    "AttentionShape",
    *_numbers("num_sequences", "sequence_length", "num_heads", "num_kv_heads", "head_dim",
              "causal", "window"), *_pointers("document_offsets"), *_numbers("total_tokens"))
_AttentionForward = _struct(
    "AttentionForward", ("o", _Heads), *_pointers("lse"), ("q", _Heads), ("k", _Heads),
    ("v", _Heads), *_pointers("tile_counter"), ("shape", _AttentionShape), *_pointers("amax"))
_AttentionBackward = _struct(
    "AttentionBackward",
    *[(name, _Heads) for name in ["d_q", "d_k", "d_v", "q", "k", "v", "o", "d_o"]],
    *_pointers("lse", "workspace"), ("shape", _AttentionShape), *_numbers("deterministic"))
_CrossEntropyOptions = _struct(
    "CrossEntropyOptions",
    *_numbers("num_tokens", "hidden", "vocab_rows", "vocab_begin", "chunk_tokens", "accumulate"),
    ("token_scale", c_double), ("loss_share", c_double), ("z_loss", c_double),
    *_numbers("max_logits_bytes", "max_gemm_workspace_bytes"), *_pointers("algorithms"))
_CrossEntropy = _struct(
    "CrossEntropy",
    *_pointers("d_hidden", "d_weight", "loss", "hidden", "weight", "targets",
               "device_token_scale", "workspace"))
_CountTargets = _struct("CountTargets", *_pointers("count", "reciprocal", "targets"),
                        *_numbers("num_tokens"))


def _kernels():
    global _library
    if _library is None:
        loaded = open_library("libmillrace_kernels.so", "kernels")
        found = loaded.millrace_kernels_abi_version()
        if found != _ABI_VERSION:
            raise Error(f"libmillrace_kernels.so has interface {found}, this package needs "
                        f"{_ABI_VERSION}; take both from one build", code=9)
        loaded.millrace_last_error.restype = c_char_p
        for name in ["rmsnorm_backward_bf16", "attention_backward_bf16"]:
            function = getattr(loaded, f"millrace_{name}_workspace_bytes")
            function.restype, function.argtypes = c_int64, [c_void_p]
        size = loaded.millrace_cross_entropy_bf16_plan_workspace_bytes
        size.restype, size.argtypes = c_int64, [c_void_p]
        loaded.millrace_cross_entropy_bf16_plan_destroy.argtypes = [c_void_p]
        loaded.millrace_cross_entropy_bf16_plan_create.argtypes = [c_void_p, POINTER(c_void_p)]
        _library = loaded
    return _library


def _check(code):
    if code != 0:
        raise Error(_kernels().millrace_last_error().decode(), code)


def _launch(name, arguments, device):
    with torch.cuda.device(device):
        stream = c_void_p(torch.cuda.current_stream(device).cuda_stream)
        _check(getattr(_kernels(), "millrace_" + name)(ctypes.byref(arguments), stream))


def _require(name, tensor, dtype=torch.bfloat16):
    if not tensor.is_cuda or tensor.dtype != dtype:
        raise Error(f"{name}: expected {dtype} on a GPU, found {tensor.dtype} on {tensor.device}",
                    code=3)


def _bytes(count, device):
    return torch.empty(max(1, count), dtype=torch.uint8, device=device)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, epsilon):
        _require("x", x), _require("weight", weight)
        x, weight = x.contiguous(), weight.contiguous()
        hidden = x.shape[-1]
        if weight.shape != (hidden,):
            raise Error(f"weight: expected ({hidden},), found {tuple(weight.shape)}", code=3)
        y = torch.empty_like(x)
        rstd = torch.empty(x.numel() // hidden, dtype=torch.float32, device=x.device)
        _launch("rmsnorm_forward_bf16",
                _RmsNormForward(y.data_ptr(), rstd.data_ptr(), x.data_ptr(), weight.data_ptr(),
                                rstd.numel(), hidden, epsilon), x.device)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx, d_y):
        x, weight, rstd = ctx.saved_tensors
        d_y, d_x = d_y.contiguous(), torch.empty_like(x)
        d_weight = torch.empty(weight.shape, dtype=torch.float32, device=x.device)
        arguments = _RmsNormBackward(
            d_x.data_ptr(), d_weight.data_ptr(), d_y.data_ptr(), x.data_ptr(), rstd.data_ptr(),
            weight.data_ptr(), None, None, rstd.numel(), x.shape[-1], 0)
        workspace = _bytes(
            _kernels().millrace_rmsnorm_backward_bf16_workspace_bytes(ctypes.byref(arguments)),
            x.device)
        arguments.workspace = workspace.data_ptr()
        _launch("rmsnorm_backward_bf16", arguments, x.device)
        return d_x, d_weight.to(weight.dtype), None


def rms_norm(x, weight, epsilon=1e-5):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension."""
    return _RmsNorm.apply(x, weight, epsilon)


def _heads(tensor):
    return _Heads(tensor.data_ptr(), tensor.stride(1), tensor.stride(2), tensor.stride(0))


def _usable(tensor):
    """The tensor itself where the kernels can read it in place, as in a packed projection."""
    aligned = tensor.data_ptr() % 16 == 0 and all(s % 8 == 0 for s in tensor.stride()[:3])
    return tensor if tensor.stride(3) == 1 and aligned else tensor.contiguous()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, window, deterministic):
        for name, tensor in [("q", q), ("k", k), ("v", v)]:
            _require(name, tensor)
            if tensor.dim() != 4:
                raise Error(f"{name}: expected [sequences, tokens, heads, head_dim], found "
                            f"{tuple(tensor.shape)}", code=3)
        sequences, tokens, num_heads, head_dim = q.shape
        if k.shape != v.shape or k.shape != (sequences, tokens, k.shape[2], head_dim):
            raise Error(f"k and v: expected ({sequences}, {tokens}, key heads, {head_dim}), found "
                        f"{tuple(k.shape)} and {tuple(v.shape)}", code=3)
        q, k, v = _usable(q), _usable(k), _usable(v)
        shape = _AttentionShape(sequences, tokens, num_heads, k.shape[2], head_dim, int(causal),
                                window, None, 0)
        o = torch.empty((sequences, tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
        lse = torch.empty((sequences, num_heads, tokens), dtype=torch.float32, device=q.device)
        counter = torch.zeros(2, dtype=torch.int32, device=q.device)
        _launch("attention_forward_bf16",
                _AttentionForward(_heads(o), lse.data_ptr(), _heads(q), _heads(k), _heads(v),
                                  counter.data_ptr(), shape), q.device)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.shape, ctx.deterministic = shape, deterministic
        return o

    @staticmethod
    def backward(ctx, d_o):
        q, k, v, o, lse = ctx.saved_tensors
        d_o = _usable(d_o)
        gradients = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v)]
        workspace = _bytes(
            _kernels().millrace_attention_backward_bf16_workspace_bytes(ctypes.byref(ctx.shape)),
            q.device)
        _launch("attention_backward_bf16",
                _AttentionBackward(*[_heads(t) for t in [*gradients, q, k, v, o, d_o]],
                                   lse.data_ptr(), workspace.data_ptr(), ctx.shape,
                                   int(ctx.deterministic)), q.device)
        return *gradients, None, None, None


def attention(q, k, v, causal=True, window=0, deterministic=False):
    """Scaled dot-product attention of [sequences, tokens, heads, head_dim]; k and v may have
    fewer heads. With a window a query sees the `window` newest keys. Head dims 64, 96, 128 and
    256. With `deterministic` equal inputs give equal bits of q's gradient too."""
    return _Attention.apply(q, k, v, causal, window, deterministic)


class _Plan:
    """A plan of the library for one shape, on the current device."""

    def __init__(self, num_tokens, hidden, vocab_size):
        self.pointer = c_void_p()
        options = _CrossEntropyOptions(num_tokens, hidden, vocab_size, 0, 0, 0, 1.0, 1.0, 0.0,
                                       _MAX_LOGITS_BYTES, _MAX_WORKSPACE_BYTES, None)
        _check(_kernels().millrace_cross_entropy_bf16_plan_create(
            ctypes.byref(options), ctypes.byref(self.pointer)))
        self.workspace_bytes = _kernels().millrace_cross_entropy_bf16_plan_workspace_bytes(
            self.pointer)

    def __del__(self):
        if self.pointer:
            _kernels().millrace_cross_entropy_bf16_plan_destroy(self.pointer)


_plans = {}


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets):
        _require("hidden", hidden), _require("weight", weight)
        rows, weight = hidden.reshape(-1, hidden.shape[-1]).contiguous(), weight.contiguous()
        device = hidden.device
        targets = targets.reshape(-1).to(device, torch.int32).contiguous()
        if targets.numel() != rows.shape[0] or weight.shape[1:] != rows.shape[1:]:
            raise Error(f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and "
                        f"{targets.numel()} targets do not go together", code=3)
        key = (*rows.shape, weight.shape[0], device.index)
        with torch.cuda.device(device):
            if key not in _plans:
                _plans[key] = _Plan(*key[:3])
            plan = _plans[key]
        count = torch.zeros(1, dtype=torch.int64, device=device)
        scale = torch.empty(1, dtype=torch.float32, device=device)
        _launch("count_targets", _CountTargets(count.data_ptr(), scale.data_ptr(),
                                               targets.data_ptr(), targets.numel()), device)
        loss = torch.zeros(1, dtype=torch.float64, device=device)
        d_hidden = torch.empty_like(rows)
        d_weight = torch.empty(weight.shape, dtype=torch.float32, device=device)
        workspace = _bytes(plan.workspace_bytes, device)
        arguments = _CrossEntropy(
            d_hidden.data_ptr(), d_weight.data_ptr(), loss.data_ptr(), rows.data_ptr(),
            weight.data_ptr(), targets.data_ptr(), scale.data_ptr(), workspace.data_ptr())
        with torch.cuda.device(device):
            stream = c_void_p(torch.cuda.current_stream(device).cuda_stream)
            _check(_kernels().millrace_linear_cross_entropy_bf16(
                plan.pointer, ctypes.byref(arguments), stream))
        ctx.save_for_backward(d_hidden.reshape(hidden.shape), d_weight)
        ctx.dtype = weight.dtype
        return loss[0].float()

    @staticmethod
    def backward(ctx, d_loss):
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * d_loss.to(d_hidden.dtype), (d_weight * d_loss).to(ctx.dtype), None


def linear_cross_entropy(hidden, weight, targets):
    """The mean cross entropy of hidden @ weight.T against targets, without keeping logits.
    Negative targets do not count. Both gradients are computed in the forward pass."""
    return _LinearCrossEntropy.apply(hidden, weight, targets)
