"""Embedding of bf16 rows and its fp32 gradient against PyTorch's."""

import torch
import torch.nn.functional as F

from harness import pointer, relative_error, struct

Forward = struct("Forward", ("x", "ptr"), ("tokens", "ptr"), ("weight", "ptr"),
                 ("num_tokens", "i64"), ("hidden", "i64"), ("vocab_begin", "i64"),
                 ("vocab_rows", "i64"))
Backward = struct("Backward", ("d_weight", "ptr"), ("tokens", "ptr"), ("d_x", "ptr"),
                  ("num_tokens", "i64"), ("hidden", "i64"), ("vocab_begin", "i64"),
                  ("vocab_rows", "i64"), ("accumulate", "i64"), ("deterministic", "i64"),
                  ("workspace", "ptr"))

VOCABULARY, HIDDEN, SETS = 128256, 4096, 2


class Case:
    def __init__(self, library, tokens):
        self.tokens = tokens
        num_tokens = tokens[0].numel()
        self.weight = torch.randn(VOCABULARY, HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.d_x = torch.randn(num_tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.x = torch.full_like(self.d_x, float("nan"))
        self.d_weight = torch.zeros(VOCABULARY, HIDDEN, device="cuda")
        backward = lambda t, deterministic, workspace: Backward(
            pointer(self.d_weight), pointer(t), pointer(self.d_x), num_tokens, HIDDEN, 0,
            VOCABULARY, 1, deterministic, pointer(workspace))
        self._workspace = torch.empty(
            library.number("millrace_embedding_backward_bf16_workspace_bytes",
                           backward(tokens[0], 1, None)), dtype=torch.uint8, device="cuda")
        f_forward = library.function("millrace_embedding_forward_bf16")
        f_backward = library.function("millrace_embedding_backward_bf16")
        forward = [Forward(pointer(self.x), pointer(t), pointer(self.weight), num_tokens,
                           HIDDEN, 0, VOCABULARY) for t in tokens]
        sorted_ = [backward(t, 1, self._workspace) for t in tokens]
        atomic = [backward(t, 0, None) for t in tokens]
        self.forward = lambda i: f_forward(forward[i])
        self.backward = lambda i: f_backward(sorted_[i])
        self.backward_atomic = lambda i: f_backward(atomic[i])
        row = num_tokens * HIDDEN
        self.forward_bytes = 4 * row
        # d_x once; each row of d_weight that a token has, once read and written.
        unique = sum(t.unique().numel() for t in tokens) / len(tokens)
        self.backward_bytes = 2 * row + 8 * unique * HIDDEN

    def errors(self):
        self.forward(0)
        same = torch.equal(self.x, self.weight[self.tokens[0].long()])
        expected = torch.zeros_like(self.d_weight).index_add_(0, self.tokens[0].long(),
                                                              self.d_x.float())
        worst = 0.0
        for backward in (self.backward, self.backward_atomic):
            self.d_weight.zero_()
            backward(0)
            worst = max(worst, relative_error(self.d_weight, expected))
        return worst if same else float("nan")


def run(bench):
    failed = False
    num_tokens = 16384
    uniform = lambda: torch.randint(0, VOCABULARY, (num_tokens,), device="cuda")
    # Token r comes about as often as 1 / (r + 1), as words do.
    zipf = lambda: (torch.exp(torch.rand(num_tokens, device="cuda", dtype=torch.float64)
                              * torch.log(torch.tensor(float(VOCABULARY)))) - 1).long()
    same = lambda: torch.full((num_tokens,), 7, device="cuda")
    for name, draw in (("uniform", uniform), ("Zipf", zipf), ("one token", same)):
        case = Case(bench.library, [draw().clamp_(0, VOCABULARY - 1).int()
                                    for _ in range(SETS)])
        long = [t.long() for t in case.tokens]
        error = case.errors()
        failed |= not error < 1e-5
        name = f"{num_tokens} x {HIDDEN}, {name}"
        times = bench.time({"millrace": case.forward,
                            "torch": lambda i: F.embedding(long[i], case.weight)}, SETS)
        bench.row("embedding forward", name, times, num_bytes=case.forward_bytes,
                  error=error)
        peers = {"torch": lambda i: torch.ops.aten.embedding_dense_backward(
                     case.d_x, long[i], VOCABULARY, -1, False),
                 "index_add": lambda i: case.d_weight.index_add_(0, long[i],
                                                                 case.d_x.float())}
        times = bench.time({"millrace": case.backward} | peers, SETS)
        bench.row("embedding backward", name + ", sorted", times,
                  num_bytes=case.backward_bytes)
        times = bench.time({"millrace": case.backward_atomic}, SETS)
        bench.row("embedding backward", name + ", as they come", times,
                  num_bytes=case.backward_bytes)
        del case
    return failed
