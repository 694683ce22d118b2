"""fp8 attention forward: its error with and without incoherent processing, its speed
against cuDNN in bf16, and the quantizer that feeds it."""

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness import pointer, relative_error, sets_for, struct

Heads = struct("Heads", ("data", "ptr"), ("token_stride", "i64"), ("head_stride", "i64"),
               ("sequence_stride", "i64"))
Shape = struct("Shape", ("num_sequences", "i64"), ("sequence_length", "i64"),
               ("num_heads", "i64"), ("num_kv_heads", "i64"), ("head_dim", "i64"),
               ("causal", "i64"))
Forward = struct("Forward", ("o", Heads), ("lse", "ptr"), ("q", Heads), ("k", Heads),
                 ("v", "ptr"), ("q_scale", "ptr"), ("k_scale", "ptr"), ("v_scale", "ptr"),
                 ("tile_counter", "ptr"), ("shape", Shape))
Quantize = struct("Quantize", ("q", Heads), ("k", Heads), ("v", "ptr"), ("q_scale", "ptr"),
                  ("k_scale", "ptr"), ("v_scale", "ptr"), ("q_in", Heads), ("k_in", Heads),
                  ("v_in", Heads), ("rope_table", "ptr"), ("hadamard", "i64"),
                  ("sign0", "i64"), ("sign1", "i64"), ("shape", Shape))

TOKENS, HIDDEN = 16384, 2048
SIGNS = 0x243F6A8885A308D3, 0x13198A2E03707344


def heads(x):
    """Describes a [sequences, tokens, heads, head_dim] tensor."""
    return Heads(pointer(x), x.stride(1), x.stride(2), x.stride(0))


class Case:
    """One shape with its input sets, quantized; tensors are [sequences, tokens, heads,
    head_dim], the bf16 inputs parts of one packed projection."""

    def __init__(self, library, b, s, h, d, causal, make=torch.randn, rope=False,
                 hadamard=False, kv_heads=None, num_sets=None):
        kv = kv_heads or h
        self.n = num_sets or sets_for(5 * b * s * h * d)
        self.causal = causal
        self.qkv = [make(b, s, h + 2 * kv, d, device="cuda").bfloat16() for _ in range(self.n)]
        split = [x.split((h, kv, kv), dim=2) for x in self.qkv]
        self.q, self.k, self.v = ([x[i] for x in split] for i in range(3))
        shape = Shape(b, s, h, kv, d, causal)
        numbers = [library.number(f"millrace_fp8_{what}", shape) for what in
                   ("value_bytes", "num_query_scales", "num_key_scales")]
        empty = lambda *size, dtype=torch.uint8: [
            torch.full(size, 127 if dtype == torch.uint8 else float("nan"), dtype=dtype,
                       device="cuda") for _ in range(self.n)]
        self.q8, self.k8, v8 = empty(b, s, h, d), empty(b, s, kv, d), empty(numbers[0])
        self.q_scale = empty(numbers[1], dtype=torch.float32)
        self.k_scale, v_scale = (empty(numbers[2], dtype=torch.float32) for _ in range(2))
        self.o = empty(b, s, h, d, dtype=torch.bfloat16)
        self.lse = empty(b, h, s, dtype=torch.float32)
        table = None
        if rope:
            angle = (torch.arange(s, device="cuda", dtype=torch.float64)[:, None]
                     * 1e4 ** (-2.0 * torch.arange(d // 2, device="cuda") / d))
            table = torch.stack([angle.cos(), angle.sin()]).float()
        self._keep = v8, v_scale, table, torch.zeros(2, dtype=torch.int32, device="cuda")
        signs = [x - (1 << 64) if x >> 63 else x for x in SIGNS]
        forward_args = [Forward(heads(self.o[i]), pointer(self.lse[i]), heads(self.q8[i]),
                                heads(self.k8[i]), pointer(v8[i]), pointer(self.q_scale[i]),
                                pointer(self.k_scale[i]), pointer(v_scale[i]),
                                pointer(self._keep[3]), shape) for i in range(self.n)]
        quantize_args = [Quantize(heads(self.q8[i]), heads(self.k8[i]), pointer(v8[i]),
                                  pointer(self.q_scale[i]), pointer(self.k_scale[i]),
                                  pointer(v_scale[i]), heads(self.q[i]), heads(self.k[i]),
                                  heads(self.v[i]), pointer(table), hadamard, *signs, shape)
                         for i in range(self.n)]
        forward = library.function("millrace_attention_forward_fp8")
        quantize = library.function("millrace_quantize_qkv_fp8")
        self.forward = lambda i: forward(forward_args[i])
        self.quantize = lambda i: quantize(quantize_args[i])
        for i in range(self.n):
            self.quantize(i)
        self.flops = 4 * b * h * s * s * d * (0.5 if causal else 1)
        self.quantize_bytes = 3 * b * s * (h + 2 * kv) * d

    def peer(self, i):
        with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(
                *(x[i].transpose(1, 2) for x in (self.q, self.k, self.v)), is_causal=self.causal)

    def expected(self, few):
        """fp64, of the bf16 inputs before quantization."""
        q, k, v = (x[0][:1, :, :few].transpose(1, 2).double() for x in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.causal:
            scores.masked_fill_(torch.ones(scores.shape[-2:], device="cuda",
                                           dtype=torch.bool).triu(1), -math.inf)
        return scores.softmax(-1) @ v, scores.logsumexp(-1)


def outliers(*size, device):
    """Normal values, one in a thousand with ten times the spread added."""
    spread = (torch.rand(*size, device=device) < 1e-3).float() * 10
    return torch.randn(*size, device=device) + spread * torch.randn(*size, device=device)


def print_errors(library):
    """Root mean square error of o, and the same over the norm of o, against fp64."""
    failed = False
    for label, make in (("normal", torch.randn), ("with outliers", outliers)):
        for causal in (False, True):
            found = {}
            torch.manual_seed(1)
            for hadamard in (0, 1):
                torch.manual_seed(1)
                case = Case(library, 1, 4096, 4, 128, causal, make, hadamard=hadamard, num_sets=1)
                case.forward(0)
                o, lse = case.expected(4)
                ours = case.o[0].transpose(1, 2)
                found["fp8 + Hadamard" if hadamard else "fp8"] = ours, relative_error(
                    case.lse[0], lse)
            found["cuDNN bf16"] = case.peer(0), None
            for name, (actual, lse_error) in found.items():
                rmse = (actual.double() - o).square().mean().sqrt().item()
                relative = relative_error(actual, o)
                print(f"error, {label}, {'causal' if causal else 'full'}, S 4096: {name:15} "
                      f"RMSE {rmse:.2e} relative {relative:.2e}"
                      + (f" LSE {lse_error:.1e}" if lse_error is not None else ""))
                failed |= not relative < (0.2 if make is outliers else 0.07)
    return failed


def run(bench):
    failed = print_errors(bench.library)
    rounds = 3 if bench.quick else None
    for rope, hadamard in ((False, False), (True, False), (True, True)):
        case = Case(bench.library, 2, 8192, 32, 128, True, rope=rope, hadamard=hadamard,
                    kv_heads=8)
        times = bench.time({"millrace": case.quantize}, case.n, rounds=rounds)
        name = "32 + 2 x 8 heads, 16k tokens" + " RoPE" * rope + " Hadamard" * hadamard
        bench.row("quantize fp8", name, times, num_bytes=case.quantize_bytes)
        del case
    for d in (128, 64):
        for causal in (False, True):
            for s in (8192, 2048) if bench.quick else (1024, 2048, 4096, 8192, 16384):
                case = Case(bench.library, TOKENS // s, s, HIDDEN // d, d, causal)
                times = bench.time({"millrace": case.forward, "cuDNN bf16": case.peer}, case.n,
                                   rounds=rounds)
                bench.row("attention fp8", f"hd{d} {'causal' if causal else 'full'} S {s}", times,
                          flops=case.flops, peak="fp8")
                del case
    return failed
