"""Output projection + cross entropy, forward and backward, against PyTorch.

"millrace" takes measured GEMM algorithms, "heuristic" those of cuBLASLt's first choice;
"eager" is F.cross_entropy over all logits at once, "chunked" the same over chunks of 1024
tokens with autograd, "compiled" what torch.compile makes of "eager" (left out by --quick).
Errors are norm-wise against fp64 on the same inputs.
"""

import ctypes

import torch
import torch.nn.functional as F

from harness import pointer, relative_error, struct

Options = struct("Options", *[(f, "i64") for f in (
    "num_tokens", "hidden", "vocab_rows", "vocab_begin", "chunk_tokens", "accumulate")],
    *[(f, "f64") for f in ("token_scale", "loss_share", "z_loss")],
    ("max_logits_bytes", "i64"), ("max_gemm_workspace_bytes", "i64"), ("algorithms", "ptr"))
Args = struct("Args", *[(f, "ptr") for f in (
    "d_hidden", "d_weight", "loss", "hidden", "weight", "targets", "device_token_scale",
    "workspace")])


class Algorithms(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char * 256) for name in ("logits", "d_hidden", "d_weight")]


GIB = 1 << 30
GEMM_WORKSPACE_BYTES = 32 << 20
MAX_CANDIDATES = 12
CASES = [(8192, 4096, 128256), (16384, 4096, 128256), (8192, 4096, 32000), (16384, 768, 50257)]
QUICK_CASES = CASES[:1]
ERROR_TOKENS = 1024


class Case:
    def __init__(self, library, tokens, hidden, vocab):
        self._lib = library._lib
        self.tokens, self.vocab = tokens, vocab
        self.hidden = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        self.weight = (torch.randn(vocab, hidden, device="cuda") * hidden ** -0.5).bfloat16()
        self.targets = torch.randint(vocab, (tokens,), device="cuda", dtype=torch.int32)
        self.labels = self.targets.long()
        self.d_hidden = torch.full_like(self.hidden, float("nan"))
        self.d_weight = torch.full((vocab, hidden), float("nan"), device="cuda")
        self.loss = torch.zeros(1, dtype=torch.float64, device="cuda")
        self._options = Options(tokens, hidden, vocab, 0, 0, 0, 1.0 / tokens, 1.0, 0.0, GIB,
                                GEMM_WORKSPACE_BYTES, None)
        size = ctypes.c_int64()
        self._check(self._lib.millrace_cross_entropy_bf16_measure_workspace_bytes(
            ctypes.byref(self._options), ctypes.byref(size)))
        self._workspace = torch.empty(size.value, dtype=torch.uint8, device="cuda")
        self._args = Args(*[pointer(x) for x in (
            self.d_hidden, self.d_weight, self.loss, self.hidden, self.weight, self.targets,
            None, self._workspace)])
        self.flops = 6 * tokens * hidden * vocab

    def _check(self, code):
        if code != 0:
            raise RuntimeError(self._lib.millrace_last_error().decode())

    def measure(self):
        algorithms = Algorithms()
        self._check(self._lib.millrace_cross_entropy_bf16_measure(
            ctypes.byref(self._options), ctypes.byref(self._args),
            ctypes.c_int64(MAX_CANDIDATES), ctypes.byref(algorithms), self._stream()))
        return algorithms

    @staticmethod
    def _stream():
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def runner(self, algorithms=None):
        """(f(set index), bytes beyond inputs and gradients); None: the heuristic's."""
        self._options.algorithms = None if algorithms is None else ctypes.addressof(algorithms)
        plan = ctypes.c_void_p()
        self._check(self._lib.millrace_cross_entropy_bf16_plan_create(
            ctypes.byref(self._options), ctypes.byref(plan)))
        size = self._lib.millrace_cross_entropy_bf16_plan_workspace_bytes
        size.restype = ctypes.c_int64
        run = self._lib.millrace_linear_cross_entropy_bf16
        args = ctypes.byref(self._args)
        return lambda i: self._check(run(plan, args, self._stream())), size(plan)

    def eager(self, hidden, weight, labels, share=1.0):
        h, w = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
        loss = F.cross_entropy((h @ w.T).float(), labels) * share
        loss.backward()
        return loss.detach(), h.grad, w.grad

    def chunked(self):
        d_weight = torch.zeros_like(self.d_weight, dtype=torch.bfloat16)
        d_hidden = []
        for i in range(0, self.tokens, 1024):
            part = slice(i, i + 1024)
            _, d_h, d_w = self.eager(self.hidden[part], self.weight, self.labels[part],
                                     1024 / self.tokens)
            d_hidden.append(d_h)
            d_weight += d_w
        return torch.cat(d_hidden), d_weight


def peak_gib(f):
    """The peak of memory beyond what stands before and what f returns."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = f()
    torch.cuda.synchronize()
    kept = sum(x.numel() * x.element_size() for x in result)
    return (torch.cuda.max_memory_allocated() - before - kept) / GIB


def exact(hidden, weight, labels):
    """Loss and gradients in fp64."""
    h, w = hidden.double(), weight.double()
    d_logits = h @ w.T
    lse = d_logits.logsumexp(-1)
    rows = torch.arange(len(labels), device="cuda")
    loss = (lse - d_logits[rows, labels]).mean()
    d_logits.sub_(lse[:, None]).exp_()
    d_logits[rows, labels] -= 1
    d_logits /= len(labels)
    return loss, d_logits @ w, d_logits.T @ h


def errors(library, hidden, vocab):
    """{name: (loss, d_hidden, d_weight)}; "fp32 logits" keeps them so until the softmax and
    rounds their gradient to bf16: what twice the memory for logits would buy."""
    case = Case(library, ERROR_TOKENS, hidden, vocab)
    run, _ = case.runner()
    run(0)
    found = {"millrace": (case.loss[0], case.d_hidden, case.d_weight),
             "eager": case.eager(case.hidden, case.weight, case.labels)}
    d_logits = (case.hidden.float() @ case.weight.float().T).softmax(-1)
    rows = torch.arange(ERROR_TOKENS, device="cuda")
    d_logits[rows, case.labels] -= 1
    d_logits = (d_logits / ERROR_TOKENS).bfloat16()
    found["fp32 logits"] = (None, d_logits @ case.weight,
                            d_logits.float().T @ case.hidden.float())
    del d_logits
    expected = exact(case.hidden, case.weight, case.labels)
    return {name: tuple(0.0 if a is None else relative_error(a, e)
                        for a, e in zip(outputs, expected))
            for name, outputs in found.items()}


def run(bench):
    found = errors(bench.library, 4096, 128256)
    for name, (loss, d_hidden, d_weight) in found.items():
        print(f"error {name:12} loss {loss:.2e} d_hidden {d_hidden:.2e} d_weight {d_weight:.2e}")
    failed = not all(ours <= 1.05 * theirs for ours, theirs in
                     zip(found["millrace"][1:], found["eager"][1:]))
    for tokens, hidden, vocab in QUICK_CASES if bench.quick else CASES:
        torch.cuda.empty_cache()
        case = Case(bench.library, tokens, hidden, vocab)
        algorithms = case.measure()
        for name in ("logits", "d_hidden", "d_weight"):
            print(f"  {name}: {getattr(algorithms, name).decode()}")
        ours, num_bytes = case.runner(algorithms)
        memory = {"millrace": num_bytes / GIB}
        eager = lambda: case.eager(case.hidden, case.weight, case.labels)
        variants = {"millrace": ours, "heuristic": case.runner()[0], "eager": lambda i: eager(),
                    "chunked": lambda i: case.chunked()}
        memory["eager"], memory["chunked"] = peak_gib(eager), peak_gib(case.chunked)
        if not bench.quick:
            torch._dynamo.reset()
            forward = torch.compile(lambda h, w, t: F.cross_entropy((h @ w.T).float(), t))

            def compiled():
                h, w = (x.detach().requires_grad_() for x in (case.hidden, case.weight))
                loss = forward(h, w, case.labels)
                loss.backward()
                return loss.detach(), h.grad, w.grad

            compiled()
            memory["compiled"] = peak_gib(compiled)
            variants["compiled"] = lambda i: compiled()
        times = bench.time(variants, 1)
        bench.row("cross entropy", f"{tokens} x {hidden} -> {vocab}", times, flops=case.flops,
                  **{f"gib_{name}": round(gib, 2) for name, gib in memory.items()})
    return failed
