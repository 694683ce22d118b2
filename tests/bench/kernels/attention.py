"""bf16 attention, forward, against cuDNN and FlashAttention-2 through PyTorch's operators;
attention_backward.py has the backward pass."""

import math

import torch

from harness import pointer, relative_error, sets_for, struct

Heads = struct("Heads", ("data", "ptr"), ("token_stride", "i64"), ("head_stride", "i64"),
               ("sequence_stride", "i64"))
Shape = struct("Shape", ("num_sequences", "i64"), ("sequence_length", "i64"),
               ("num_heads", "i64"), ("num_kv_heads", "i64"), ("head_dim", "i64"),
               ("causal", "i64"), ("window", "i64"), ("document_offsets", "ptr"),
               ("total_tokens", "i64"))
Forward = struct("Forward", ("o", Heads), ("lse", "ptr"), ("q", Heads), ("k", Heads),
                 ("v", Heads), ("tile_counter", "ptr"), ("shape", Shape), ("amax", "ptr"))

TOKENS, HIDDEN = 16384, 2048


def heads(x):
    """Describes a [sequences, tokens, heads, head_dim] tensor."""
    return Heads(pointer(x), x.stride(1), x.stride(2), x.stride(0))


class Case:
    """One shape with its input sets; tensors are [sequences, tokens, heads, head_dim]."""

    def __init__(self, library, b, s, h, d, causal):
        make = lambda: torch.randn(b, s, h, d, device="cuda", dtype=torch.bfloat16)
        self.n = sets_for(8 * b * s * h * d)
        self.causal = causal
        self.q, self.k, self.v = ([make() for _ in range(self.n)] for _ in range(3))
        self.o = [torch.full_like(make(), math.nan) for _ in range(self.n)]
        self.lse = torch.full((self.n, b, h, s), math.nan, device="cuda")
        shape = Shape(b, s, h, h, d, causal, 0, 0, 0)
        self._counter = torch.zeros(2, dtype=torch.int32, device="cuda")
        forward = library.function("millrace_attention_forward_bf16")
        args = [Forward(heads(self.o[i]), pointer(self.lse[i]), heads(self.q[i]),
                        heads(self.k[i]), heads(self.v[i]), pointer(self._counter), shape)
                for i in range(self.n)]
        self.forward = lambda i: forward(args[i])
        self.flops = 4 * b * h * s * s * d * (0.5 if causal else 1)


def visible_pairs(length, causal, window):
    """How many (query, key) pairs a sequence has."""
    behind = min(window or length, length)
    pairs = behind * (behind + 1) // 2 + (length - behind) * behind
    return pairs if causal else 2 * pairs - length


class PackedCase:
    """Documents of these lengths, packed; tensors are [tokens, heads, head_dim]."""

    def __init__(self, library, lengths, h, d, causal, window=0):
        total, longest = sum(lengths), max(lengths)
        make = lambda: torch.randn(total, h, d, device="cuda", dtype=torch.bfloat16)
        self.n = sets_for(8 * total * h * d)
        self.length, self.causal, self.window = lengths[0], causal, window
        self.sets = [(make(), make(), make()) for _ in range(self.n)]
        self.o = [torch.full_like(make(), math.nan) for _ in range(self.n)]
        self.peer_o = [None] * self.n
        lse = torch.full((h, total), math.nan, device="cuda")
        counter = torch.zeros(2, dtype=torch.int32, device="cuda")
        offsets = torch.tensor([0] + lengths, device="cuda").cumsum(0).int()
        shape = Shape(len(lengths), longest, h, h, d, causal, window, pointer(offsets), total)
        packed = lambda x: Heads(pointer(x), x.stride(0), x.stride(1), 0)
        args = [Forward(packed(self.o[i]), pointer(lse), *(packed(x) for x in self.sets[i]),
                        pointer(counter), shape) for i in range(self.n)]
        self._keep = lse, counter, offsets
        forward = library.function("millrace_attention_forward_bf16")
        self.forward = lambda i: forward(args[i])
        sides = {"window_size_left": window - 1, "window_size_right": 0 if causal else window - 1}

        def peer(i):
            self.peer_o[i] = torch.ops.aten._flash_attention_forward(
                *self.sets[i], offsets, offsets, longest, longest, 0.0, causal, False,
                **(sides if window else {}))[0]

        self.peer = peer
        self.flops = 4 * h * d * sum(visible_pairs(n, causal, window) for n in lengths)

    def errors(self):
        """(ours, the peer's) in the first document, over two heads."""
        part = lambda x: x[:self.length, :2].transpose(0, 1)
        q, k, v = (part(x).double() for x in self.sets[0])
        apart = torch.arange(self.length, device="cuda")
        apart = apart[:, None] - apart[None]
        hidden = (apart < 0) if self.causal else (apart <= -(self.window or self.length))
        hidden |= apart >= (self.window or self.length)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
        o = scores.softmax(-1) @ v
        return relative_error(part(self.o[0]), o), relative_error(part(self.peer_o[0]), o)


def pace(bench):
    return {"rounds": 3, "gap": 0.05} if bench.quick else {}


def cudnn(case):
    """The peer's kernel alone: no autograd around it, so that it can be captured."""
    sets = [[x[i].transpose(1, 2) for x in (case.q, case.k, case.v)] for i in range(case.n)]
    return lambda i: torch.ops.aten._scaled_dot_product_cudnn_attention(
        *sets[i], None, False, 0.0, case.causal, False)


def forward_error(case):
    """(ours, cuDNN's) over some heads of the first sequence: fewer of longer sequences,
    whose scores in fp64 fill the memory."""
    length, num_heads = case.q[0].shape[1:3]
    few = slice(0, max(1, min(num_heads, (4096 // length) ** 2)))
    take = lambda x: x[0][:1, :, few].transpose(1, 2)
    q, k, v = (take(x).double() for x in (case.q, case.k, case.v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if case.causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], device="cuda",
                                       dtype=torch.bool).triu(1), -math.inf)
    o = scores.softmax(-1) @ v
    return relative_error(take(case.o), o), relative_error(cudnn(case)(0)[0][:1, few], o)


# No less exact than the peer, up to the noise of a few heads.
ERROR_RATIO = 1.01


def dense_row(bench, b, s, h, d, causal, name):
    """Whether the result is wrong."""
    case = Case(bench.library, b, s, h, d, causal)
    times = bench.time({"millrace": case.forward, "cuDNN": cudnn(case)}, case.n,
                       graph=s <= 1024, **pace(bench))
    ours, theirs = forward_error(case)
    bench.row("attention forward", name, times, flops=case.flops, error=ours,
              error_cudnn=theirs)
    return not ours <= ERROR_RATIO * theirs


def packed_row(bench, lengths, d, causal, window, name):
    """Whether the result is wrong."""
    case = PackedCase(bench.library, lengths, HIDDEN // d, d, causal, window)
    times = bench.time({"millrace": case.forward, "FA2": case.peer}, case.n, **pace(bench))
    ours, theirs = case.errors()
    bench.row("attention forward", name, times, flops=case.flops, error=ours, error_fa2=theirs)
    return not ours <= ERROR_RATIO * theirs


def packed_rows(bench):
    failed = False
    documents = [1800, 3000, 700, 4096, 90, 10, 2200, 1500, 400, 2588]
    for d in (128, 64):
        failed |= packed_row(bench, documents, d, True, 0,
                             f"hd{d} causal, 10 documents, 16384 tokens")
        failed |= packed_row(bench, [8192, 8192], d, True, 1024,
                             f"hd{d} causal S 8192 window 1024")
    failed |= packed_row(bench, [8192, 8192], 128, False, 1024, "hd128 full S 8192 window 1024")
    return failed


def run(bench):
    lengths = (512, 1024, 8192) if bench.quick else (512, 1024, 2048, 4096, 8192, 16384)
    failed = dense_row(bench, 1, 512, 8, 64, False, "batch 1, 8 heads, 512 x 64, graph")
    for d in (128, 64, 96, 256):
        for causal in (True, False):
            for s in lengths if d in (64, 128) else (1024, 8192):
                failed |= dense_row(bench, TOKENS // s, s, HIDDEN // d, d, causal,
                                    f"hd{d} {'causal' if causal else 'full'} S {s}")
    return packed_rows(bench) or failed
