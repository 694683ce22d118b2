"""SwiGLU and GELU of bf16 tensors, forward and backward, against torch.compile."""

import torch
import torch.nn.functional as F

from harness import pointer, relative_error, sets_for, struct

Rows = struct("Rows", ("data", "ptr"), ("row_stride", "i64"))
SwigluForward = struct("SwigluForward", ("activation", Rows), ("gate", Rows), ("up", Rows),
                       ("num_tokens", "i64"), ("ffn_hidden", "i64"), ("amax", "ptr"))
SwigluBackward = struct("SwigluBackward", ("d_gate", Rows), ("d_up", Rows),
                        ("activation", Rows), ("gate", Rows), ("up", Rows),
                        ("d_activation", Rows), ("num_tokens", "i64"), ("ffn_hidden", "i64"),
                        ("amax", "ptr"))


GeluForward = struct("GeluForward", ("y", "ptr"), ("x", "ptr"), ("num_elements", "i64"),
                     ("exact", "i64"))
GeluBackward = struct("GeluBackward", ("d_x", "ptr"), ("y", "ptr"), ("x", "ptr"),
                      ("d_y", "ptr"), ("num_elements", "i64"), ("exact", "i64"))


def rows(x):
    return Rows(0, 0) if x is None else Rows(pointer(x), x.stride(0))


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu_backward(gate_up, d):
    gate, up = gate_up.chunk(2, dim=-1)
    sigmoid = torch.sigmoid(gate.float())
    silu = gate * sigmoid
    return torch.cat([d * up * (sigmoid + silu * (1 - sigmoid)), d * silu],
                     dim=-1).to(gate_up.dtype)


class Swiglu:
    """Gate and up are the halves of one fused projection."""

    def __init__(self, library, tokens, ffn):
        make = lambda columns: torch.randn(tokens, columns, device="cuda",
                                           dtype=torch.bfloat16)
        poison = lambda columns: make(columns).fill_(float("nan"))
        self.n = sets_for(6 * tokens * ffn, most=4)
        self.gate_up = [make(2 * ffn) for _ in range(self.n)]
        self.d = [make(ffn) for _ in range(self.n)]
        self.out, self.d_gate_up, self.again = poison(ffn), poison(2 * ffn), poison(ffn)
        halves = lambda x: (rows(x[:, :ffn]), rows(x[:, ffn:]))
        f_forward = library.function("millrace_swiglu_forward_bf16")
        f_backward = library.function("millrace_swiglu_backward_bf16")
        self.amax = torch.zeros(2, device="cuda")  # Of the activation and the gradients.
        forward = lambda amax: [
            SwigluForward(rows(self.out), *halves(x), tokens, ffn, pointer(amax))
            for x in self.gate_up]
        backward = lambda again, amax=None: [
            SwigluBackward(*halves(self.d_gate_up), rows(again), *halves(x), rows(d), tokens,
                           ffn, pointer(amax)) for x, d in zip(self.gate_up, self.d)]
        plain, recompute = backward(None), backward(self.again)
        plain_forward, amax_forward = forward(None), forward(self.amax[0:])
        amax_backward = backward(None, self.amax[1:])
        self.forward = lambda i: f_forward(plain_forward[i])
        self.forward_amax = lambda i: f_forward(amax_forward[i])
        self.backward_amax = lambda i: f_backward(amax_backward[i])
        self.backward = lambda i: f_backward(plain[i])
        self.backward_recompute = lambda i: f_backward(recompute[i])
        self.bytes = 2 * tokens * ffn

    def errors(self):
        with torch.enable_grad():
            x = self.gate_up[0].float().requires_grad_()
            out = swiglu(x)
            grad, = torch.autograd.grad(out, x, self.d[0].float())
        self.forward(0)
        self.backward_recompute(0)
        errors = (max(relative_error(self.out, out), relative_error(self.again, out)),
                  relative_error(self.d_gate_up, grad))
        self.forward_amax(0)
        self.backward_amax(0)
        found = [self.out.abs().max().item(), self.d_gate_up.abs().max().item()]
        return errors if self.amax.tolist() == found else (float("nan"), float("nan"))


def run_gelu(bench, tokens, ffn):
    failed = False
    n = sets_for(4 * tokens * ffn, most=4)
    make = lambda: torch.randn(tokens, ffn, device="cuda", dtype=torch.bfloat16)
    x, d = ([make() for _ in range(n)] for _ in range(2))
    y, d_x = (make().fill_(float("nan")) for _ in range(2))
    f_forward = bench.library.function("millrace_gelu_forward_bf16")
    f_backward = bench.library.function("millrace_gelu_backward_bf16")
    for exact, form in ((0, "tanh"), (1, "none")):
        forward = [GeluForward(pointer(y), pointer(a), a.numel(), exact) for a in x]
        backward = [GeluBackward(pointer(d_x), 0, pointer(a), pointer(b), a.numel(), exact)
                    for a, b in zip(x, d)]
        f_forward(forward[0])
        f_backward(backward[0])
        few = slice(0, 64)
        with torch.enable_grad():
            a = x[0][few].double().requires_grad_()
            expected = F.gelu(a, approximate=form)
            grad, = torch.autograd.grad(expected, a, d[0][few].double())
        errors = relative_error(y[few], expected), relative_error(d_x[few], grad)
        failed |= not max(errors) < 2.5e-3
        name = f"{tokens} x {ffn}, " + ("erf" if exact else "tanh")
        times = bench.time({"millrace": lambda i: f_forward(forward[i]),
                            "torch": lambda i: F.gelu(x[i], approximate=form)}, n)
        bench.row("GELU forward", name, times, num_bytes=4 * y.numel(), error=errors[0])
        times = bench.time({"millrace": lambda i: f_backward(backward[i]),
                            "torch": lambda i: torch.ops.aten.gelu_backward(
                                d[i], x[i], approximate=form)}, n)
        bench.row("GELU backward", name, times, num_bytes=6 * y.numel(), error=errors[1])
    return failed


def run(bench):
    failed = run_gelu(bench, 16384, 14336)
    compiled = torch.compile(swiglu, dynamic=False)
    compiled_backward = torch.compile(swiglu_backward, dynamic=False)
    # Rounding the result once to bf16 costs 2^-9 at most, about 1.7e-3 on average.
    small = Swiglu(bench.library, 1000, 1366)
    failed |= not max(small.errors()) < 2.5e-3
    for tokens, ffn in ((16384, 14336),) if bench.quick else ((16384, 14336), (8192, 11008)):
        case = Swiglu(bench.library, tokens, ffn)
        name = f"{tokens} x {ffn}"
        error = small.errors()
        times = bench.time({"millrace": case.forward,
                            "compiled": lambda i: compiled(case.gate_up[i])}, case.n)
        bench.row("SwiGLU forward", name, times, num_bytes=3 * case.bytes, error=error[0])
        times = bench.time({"millrace": case.backward,
                            "compiled": lambda i: compiled_backward(case.gate_up[i],
                                                                    case.d[i])}, case.n)
        bench.row("SwiGLU backward", name, times, num_bytes=5 * case.bytes, error=error[1])
        times = bench.time({"millrace": case.forward_amax}, case.n)
        bench.row("SwiGLU forward", name + ", amax", times, num_bytes=3 * case.bytes)
        times = bench.time({"millrace": case.backward_amax}, case.n)
        bench.row("SwiGLU backward", name + ", amax", times, num_bytes=5 * case.bytes)
        times = bench.time({"millrace": case.backward_recompute}, case.n)
        bench.row("SwiGLU backward", name + ", activation again", times,
                  num_bytes=6 * case.bytes)
        del case
    return failed
