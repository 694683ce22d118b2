"""bf16 attention, forward and backward, against cuDNN through PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness import pointer, relative_error, sets_for, struct

Heads = struct("Heads", ("data", "ptr"), ("token_stride", "i64"), ("head_stride", "i64"),
               ("sequence_stride", "i64"))
Shape = struct("Shape", ("num_sequences", "i64"), ("sequence_length", "i64"),
               ("num_heads", "i64"), ("num_kv_heads", "i64"), ("head_dim", "i64"),
               ("causal", "i64"), ("window", "i64"), ("document_offsets", "ptr"),
               ("total_tokens", "i64"))
Forward = struct("Forward", ("o", Heads), ("lse", "ptr"), ("q", Heads), ("k", Heads),
                 ("v", Heads), ("tile_counter", "ptr"), ("shape", Shape))
Backward = struct("Backward", ("d_q", Heads), ("d_k", Heads), ("d_v", Heads), ("q", Heads),
                  ("k", Heads), ("v", Heads), ("o", Heads), ("d_o", Heads), ("lse", "ptr"),
                  ("workspace", "ptr"), ("shape", Shape), ("deterministic", "i64"))

TOKENS, HIDDEN = 16384, 2048


def heads(x):
    """Of a [sequences, tokens, heads, head_dim] tensor."""
    return Heads(pointer(x), x.stride(1), x.stride(2), x.stride(0))


class Case:
    """One shape with its input sets; tensors are [sequences, tokens, heads, head_dim]."""

    def __init__(self, library, b, s, h, d, causal):
        make = lambda: torch.randn(b, s, h, d, device="cuda", dtype=torch.bfloat16)
        self.n = sets_for(8 * b * s * h * d)
        self.causal = causal
        self.q, self.k, self.v, self.d_o = ([make() for _ in range(self.n)] for _ in range(4))
        poison = lambda: torch.full((b, s, h, d), float("nan"), device="cuda",
                                    dtype=torch.bfloat16)
        self.o = [poison() for _ in range(self.n)]
        self.lse = torch.full((self.n, b, h, s), float("nan"), device="cuda")
        self.d_q, self.d_k, self.d_v = poison(), poison(), poison()
        shape = Shape(b, s, h, h, d, causal, 0, 0, 0)
        self._counter = torch.zeros(2, dtype=torch.int32, device="cuda")
        self._workspace = torch.empty(
            library.number("millrace_attention_backward_bf16_workspace_bytes", shape),
            dtype=torch.uint8, device="cuda")
        forward = library.function("millrace_attention_forward_bf16")
        backward = library.function("millrace_attention_backward_bf16")
        forward_args = [Forward(heads(self.o[i]), pointer(self.lse[i]), heads(self.q[i]),
                                heads(self.k[i]), heads(self.v[i]), pointer(self._counter),
                                shape) for i in range(self.n)]
        backward_args = [Backward(heads(self.d_q), heads(self.d_k), heads(self.d_v),
                                  heads(self.q[i]), heads(self.k[i]), heads(self.v[i]),
                                  heads(self.o[i]), heads(self.d_o[i]), pointer(self.lse[i]),
                                  pointer(self._workspace), shape, 0) for i in range(self.n)]
        self.forward = lambda i: forward(forward_args[i])
        self.backward = lambda i: backward(backward_args[i])
        self.flops = 4 * b * h * s * s * d * (0.5 if causal else 1)
        # The peer's own layout is [sequences, heads, tokens, head_dim] over the same bytes.
        self._peer = [[x[i].transpose(1, 2).detach().requires_grad_() for x in
                       (self.q, self.k, self.v)] for i in range(self.n)]
        self._peer_o = [None] * self.n

    def peer_forward(self, i):
        with torch.no_grad():
            F.scaled_dot_product_attention(*self._peer[i], is_causal=self.causal)

    def prepare_peer_backward(self):
        for i in range(self.n):
            self._peer_o[i] = F.scaled_dot_product_attention(*self._peer[i],
                                                             is_causal=self.causal)

    def peer_backward(self, i):
        return torch.autograd.grad(self._peer_o[i], self._peer[i],
                                   self.d_o[i].transpose(1, 2), retain_graph=True)

    def errors(self):
        """(ours, cuDNN's) against fp32 math on the same inputs: output, then the worst
        gradient, over a few heads of the first sequence."""
        with torch.enable_grad():
            few = slice(0, 2)
            q, k, v = (x[0][:1, :, few].transpose(1, 2).double().requires_grad_()
                       for x in (self.q, self.k, self.v))
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            if self.causal:
                scores.masked_fill_(torch.ones(scores.shape[-2:], device="cuda",
                                               dtype=torch.bool).triu(1), -math.inf)
            o = scores.softmax(-1) @ v
            grads = torch.autograd.grad(o, (q, k, v), self.d_o[0][:1, :, few].transpose(1, 2)
                                        .double())
        peers = self.peer_backward(0)
        take = lambda x: x[:1, :, few].transpose(1, 2)
        ours = relative_error(take(self.o[0]), o), max(
            relative_error(take(a), e) for a, e in zip((self.d_q, self.d_k, self.d_v), grads))
        theirs = relative_error(self._peer_o[0][:1, few], o), max(
            relative_error(a[:1, few], e) for a, e in zip(peers, grads))
        return ours, theirs


def run(bench):
    failed = False
    lengths = [512, 1024, 2048, 4096, 8192, 16384]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for d in (128, 64):
            for causal in (True, False):
                for s in lengths:
                    case = Case(bench.library, TOKENS // s, s, HIDDEN // d, d, causal)
                    name = f"hd{d} {'causal' if causal else 'full'} S {s}"
                    times = bench.time({"millrace": case.forward, "cuDNN": case.peer_forward},
                                       case.n, graph=s <= 1024)
                    case.prepare_peer_backward()
                    case.forward(0)
                    case.backward(0)
                    ours, theirs = (case.errors() if s <= 2048 else ((0, 0), (0, 0)))
                    failed |= ours[0] > 1.05 * theirs[0] or ours[1] > 1.05 * theirs[1]
                    bench.row("attention forward", name, times, flops=case.flops,
                              error=ours[0], error_cudnn=theirs[0])
                    times = bench.time({"millrace": case.backward, "cuDNN": case.peer_backward},
                                       case.n, graph=s <= 1024)
                    bench.row("attention backward", name, times, flops=2.5 * case.flops,
                              error=ours[1], error_cudnn=theirs[1])
        case = Case(bench.library, 1, 512, 8, 64, False)
        times = bench.time({"millrace": case.forward, "cuDNN": case.peer_forward}, case.n,
                           graph=True)
        bench.row("attention forward", "batch 1, 8 heads, 512 x 64, graph", times,
                  flops=case.flops)
    return failed
