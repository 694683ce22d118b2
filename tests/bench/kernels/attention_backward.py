"""bf16 attention, backward, against cuDNN through PyTorch's own operator."""

import math

import torch

from attention import Forward, Heads, Shape, heads, visible_pairs
from harness import pointer, relative_error, sets_for, struct

Backward = struct("Backward", ("d_q", Heads), ("d_k", Heads), ("d_v", Heads), ("q", Heads),
                  ("k", Heads), ("v", Heads), ("o", Heads), ("d_o", Heads), ("lse", "ptr"),
                  ("workspace", "ptr"), ("shape", Shape), ("deterministic", "i64"))

TOKENS, HIDDEN = 16384, 2048


def cudnn_backward(q, k, v, d_o, causal):
    """A function without arguments that runs cuDNN's backward kernel alone, so that it can
    be captured in a graph. Tensors are [sequences, heads, tokens, head_dim]."""
    forward = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default
    values = forward(q, k, v, None, True, 0.0, causal, False)
    known = dict(zip((r.name for r in forward._schema.returns), values))
    known |= {"grad_out": d_o, "query": q, "key": k, "value": v, "out": values[0],
              "logsumexp": values[1], "attn_bias": None, "dropout_p": 0.0,
              "is_causal": causal, "scale": None}
    args = backward._schema.arguments
    positional = [known[a.name] for a in args if not a.kwarg_only]
    named = {a.name: known[a.name] for a in args if a.kwarg_only}
    return lambda: backward(*positional, **named)


def exact_gradients(q, k, v, d_o, causal, window=0):
    """The gradients of [sequences, heads, tokens, head_dim] tensors, in fp64. Keys and values
    may have fewer heads than queries."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    each = lambda x: x.repeat_interleave(q.shape[-3] // x.shape[-3], -3)
    scores = q @ each(k).transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal or window:
        apart = torch.arange(scores.shape[-1], device="cuda")
        apart = apart[:, None] - apart[None]
        window = window or len(apart)
        unseen = (apart >= window) | (apart < 0 if causal else apart <= -window)
        scores = scores.masked_fill(unseen, -math.inf)
    return torch.autograd.grad(scores.softmax(-1) @ each(v), (q, k, v), d_o.double())


class Case:
    """One shape with its input sets; tensors are [sequences, tokens, heads, head_dim]."""

    def __init__(self, library, b, s, h, d, causal, deterministic=False, window=0,
                 peer=True, names=("millrace_attention_backward_bf16",), kv_heads=None):
        make = lambda heads: torch.randn(b, s, heads, d, device="cuda", dtype=torch.bfloat16)
        kv_heads = kv_heads or h
        self.queries_per_key = h // kv_heads
        self.n = sets_for(10 * b * s * h * d)
        self.causal = causal
        self.flops = 10 * b * h * s * s * d * (0.5 if causal else 1)
        shape = Shape(b, s, h, kv_heads, d, causal, window, 0, 0)
        self._forward = library.function("millrace_attention_forward_bf16")
        workspace = torch.empty(
            library.number("millrace_attention_backward_bf16_workspace_bytes", shape),
            dtype=torch.uint8, device="cuda")
        counter = torch.zeros(2, dtype=torch.int32, device="cuda")
        lse = torch.full((self.n, b, h, s), math.nan, device="cuda")
        self.d_q, self.d_k, self.d_v = (torch.full_like(make(heads), math.nan)
                                        for heads in (h, kv_heads, kv_heads))
        self.sets, args, peers, outputs = [], [], [], []
        for i in range(self.n):
            q, k, v, d_o = (make(heads) for heads in (h, kv_heads, kv_heads, h))
            o = torch.full_like(q, math.nan)
            self._forward(Forward(heads(o), pointer(lse[i]), heads(q), heads(k), heads(v),
                                  pointer(counter), shape))
            args.append(Backward(*(heads(x) for x in (self.d_q, self.d_k, self.d_v, q, k, v,
                                                      o, d_o)),
                                 pointer(lse[i]), pointer(workspace), shape, deterministic))
            # The peer's own layout is [sequences, heads, tokens, head_dim], the same bytes.
            self.sets.append([x.transpose(1, 2) for x in (q, k, v, d_o)])
            outputs.append(o)
            if peer:
                peers.append(cudnn_backward(*self.sets[i], causal))
        self._keep = workspace, counter, lse, outputs
        self.variants = {}
        for name in names:
            f = library.function(name)
            self.variants[name.removesuffix("_attention_backward_bf16")] = (
                lambda i, f=f: f(args[i]))
        self.peer = lambda i: peers[i]()

    def errors(self, variant="millrace"):
        """(ours, cuDNN's) of the worst gradient against fp64 on the same inputs, over the
        first heads and sequences: more of shorter ones, where one row weighs more."""
        length = self.d_q.shape[1]
        some = slice(0, max(1, 2048 // length))
        few = max(2, (2048 // length) ** 2)
        few = [slice(0, few * heads) for heads in (self.queries_per_key, 1, 1)]
        q, k, v, d_o = (x[some, h] for x, h in zip(self.sets[0], (*few, few[0])))
        exact = exact_gradients(q, k, v, d_o, self.causal)
        for x in (self.d_q, self.d_k, self.d_v):
            x.fill_(math.nan)
        self.variants[variant](0)
        ours = [x[some, :, h].transpose(1, 2) for x, h in zip((self.d_q, self.d_k, self.d_v), few)]
        # The maximum of a tensor, unlike Python's, keeps a NaN.
        worst = lambda grads: torch.tensor([relative_error(a, e)
                                            for a, e in zip(grads, exact)]).max().item()
        return worst(ours), worst([x[some, h] for x, h in zip(self.peer(0), few)])


class PackedCase:
    """Documents of these lengths, packed; tensors are [tokens, heads, head_dim]."""

    def __init__(self, library, lengths, h, d, causal, window=0):
        total, longest = sum(lengths), max(lengths)
        make = lambda: torch.randn(total, h, d, device="cuda", dtype=torch.bfloat16)
        self.n = sets_for(10 * total * h * d)
        self.length, self.causal, self.window = lengths[0], causal, window
        self.flops = 10 * h * d * sum(visible_pairs(n, causal, window) for n in lengths)
        offsets = torch.tensor([0] + lengths, device="cuda").cumsum(0).int()
        shape = Shape(len(lengths), longest, h, h, d, causal, window, pointer(offsets), total)
        packed = lambda x: Heads(pointer(x), x.stride(0), x.stride(1), 0)
        lse = torch.full((self.n, h, total), math.nan, device="cuda")
        counter = torch.zeros(2, dtype=torch.int32, device="cuda")
        workspace = torch.empty(
            library.number("millrace_attention_backward_bf16_workspace_bytes", shape),
            dtype=torch.uint8, device="cuda")
        self.grads = [torch.full_like(make(), math.nan) for _ in range(3)]
        sides = {"window_size_left": window - 1, "window_size_right": 0 if causal else window - 1}
        forward = library.function("millrace_attention_forward_bf16")
        self.sets, self._outputs, args, peers = [], [], [], []
        for i in range(self.n):
            q, k, v, d_o = (make() for _ in range(4))
            o = torch.full_like(q, math.nan)
            forward(Forward(packed(o), pointer(lse[i]), packed(q), packed(k), packed(v),
                            pointer(counter), shape))
            args.append(Backward(*(packed(x) for x in (*self.grads, q, k, v, o, d_o)),
                                 pointer(lse[i]), pointer(workspace), shape, 0))
            self.sets.append((q, k, v, d_o))
            self._outputs.append(o)
            kept = torch.ops.aten._flash_attention_forward(
                q, k, v, offsets, offsets, longest, longest, 0.0, causal, False,
                **(sides if window else {}))
            peers.append((d_o, q, k, v, kept[0], kept[1], offsets, offsets, longest, longest, 0.0,
                          causal, kept[2], kept[3]))
        self._keep = workspace, counter, lse, offsets
        backward = library.function("millrace_attention_backward_bf16")
        self.backward = lambda i: backward(args[i])
        self.peer = lambda i: torch.ops.aten._flash_attention_backward(
            *peers[i], **(sides if window else {}))

    def errors(self):
        """(ours, the peer's) of the worst gradient in the first document, over two heads."""
        part = lambda x: x[:self.length, :2].transpose(0, 1)
        exact = exact_gradients(*(part(x) for x in self.sets[0]), self.causal, self.window)
        for x in self.grads:
            x.fill_(math.nan)
        self.backward(0)
        worst = lambda grads: torch.tensor([relative_error(part(a), e)
                                            for a, e in zip(grads, exact)]).max().item()
        return worst(self.grads), worst(self.peer(0))


def packed_row(bench, lengths, d, causal, window, name, **pace):
    """Whether the result is wrong."""
    case = PackedCase(bench.library, lengths, HIDDEN // d, d, causal, window)
    ours, theirs = case.errors()
    times = bench.time({"millrace": case.backward, "FA2": case.peer}, case.n, **pace)
    bench.row("attention backward", name, times, flops=case.flops, error=ours, error_fa2=theirs)
    return not ours <= 1.05 * theirs


def packed_rows(bench, **pace):
    failed = False
    documents = [1800, 3000, 700, 4096, 90, 10, 2200, 1500, 400, 2588]
    for d in (128, 64):
        failed |= packed_row(bench, documents, d, True, 0,
                             f"hd{d} causal, 10 documents, 16384 tokens", **pace)
        failed |= packed_row(bench, [8192, 8192], d, True, 1024,
                             f"hd{d} causal S 8192 window 1024", **pace)
    return failed


def grouped_rows(bench):
    """One device's share of Llama-3 8B and 70B: several query heads for one of keys."""
    failed = False
    for b, s, h, kv_heads in ((1, 2048, 32, 8), (1, 8192, 32, 4), (1, 8192, 32, 8),
                              (2, 8192, 32, 8), (8, 2048, 32, 8), (1, 32768, 32, 8)):
        case = Case(bench.library, b, s, h, 128, True, kv_heads=kv_heads)
        ours, theirs = case.errors() if s <= 2048 else (None, None)
        failed |= s <= 2048 and not ours <= 1.05 * theirs
        times = bench.time({"millrace": case.variants["millrace"], "cuDNN": case.peer}, case.n)
        bench.row("attention backward", f"hd128 causal {b} x S {s}, {h} on {kv_heads} heads",
                  times, flops=case.flops, error=ours, error_cudnn=theirs)
    return failed


def run(bench):
    failed = packed_rows(bench) | grouped_rows(bench)
    for d in (128, 64):
        for causal in (True, False):
            for s in (512, 1024, 2048, 4096, 8192, 16384):
                case = Case(bench.library, TOKENS // s, s, HIDDEN // d, d, causal)
                # Longer scores in fp64 fill the memory.
                is_checked = s <= 2048
                ours, theirs = case.errors() if is_checked else (None, None)
                failed |= is_checked and not ours <= 1.05 * theirs
                times = bench.time({"millrace": case.variants["millrace"], "cuDNN": case.peer},
                                   case.n, graph=s <= 1024)
                bench.row("attention backward", f"hd{d} {'causal' if causal else 'full'} S {s}",
                          times, flops=case.flops, error=ours, error_cudnn=theirs)
    for d in (96, 256):
        for causal in (True, False):
            shape = 4, 4096, HIDDEN // d, d, causal
            try:
                case = Case(bench.library, *shape)
                variants = {"millrace": case.variants["millrace"], "cuDNN": case.peer}
            except RuntimeError as error:
                print(f"cuDNN has no backward pass of head dim {d}: {error}")
                case = Case(bench.library, *shape, peer=False)
                variants = {"millrace": case.variants["millrace"]}
            times = bench.time(variants, case.n)
            bench.row("attention backward", f"hd{d} {'causal' if causal else 'full'} S 4096",
                      times, flops=case.flops)
    # The cost or gain of options against the same shape without them.
    for d in (128, 64):
        for causal in (True, False):
            name = f"hd{d} {'causal' if causal else 'full'} S 8192"
            plain, ordered = (Case(bench.library, 2, 8192, HIDDEN // d, d, causal,
                                   deterministic=x, peer=False) for x in (False, True))
            times = bench.time({"millrace": ordered.variants["millrace"],
                                "fast": plain.variants["millrace"]}, plain.n)
            bench.row("attention backward", name + " deterministic", times, flops=plain.flops)
    plain, window = (Case(bench.library, 1, 16384, HIDDEN // 128, 128, True, window=x,
                          peer=False) for x in (0, 1024))
    times = bench.time({"millrace": window.variants["millrace"],
                        "no window": plain.variants["millrace"]}, plain.n)
    bench.row("attention backward", "hd128 causal S 16384 window 1024", times)
    return failed
