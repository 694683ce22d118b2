"""RMSNorm and LayerNorm of bf16 rows, alone and of a residual sum, against torch.compile.

Every tensor counts once for each direction in which it must cross the memory bus; weights,
statistics and weight gradients are small and not counted.
"""

import torch
import torch.nn.functional as F

from harness import pointer, relative_error, sets_for, struct

EPSILON = 1e-5
KINDS = ("rmsnorm", "layernorm")


def args_types(kind):
    """The forward, residual forward and backward structures."""
    layer = kind == "layernorm"
    mean = [("mean", "ptr")] if layer else []
    bias = [("bias", "ptr")] if layer else []
    d_bias = [("d_bias", "ptr")] if layer else []
    sizes = [("num_tokens", "i64"), ("hidden", "i64")]
    return (
        struct("Forward", ("y", "ptr"), *mean, ("rstd", "ptr"), ("x", "ptr"), ("weight", "ptr"),
               *bias, *sizes, ("epsilon", "f64"), ("amax", "ptr")),
        struct("ResidualForward", ("residual", "ptr"), ("y", "ptr"), *mean, ("rstd", "ptr"),
               ("x", "ptr"), ("delta", "ptr"), ("weight", "ptr"), *bias, *sizes,
               ("epsilon", "f64"), ("amax", "ptr")),
        struct("Backward", ("d_x", "ptr"), ("d_weight", "ptr"), *d_bias, ("d_y", "ptr"),
               ("x", "ptr"), *mean, ("rstd", "ptr"), ("weight", "ptr"), ("d_residual", "ptr"),
               ("workspace", "ptr"), *sizes, ("accumulate", "i64"), ("amax", "ptr")))


class Case:
    def __init__(self, library, kind, tokens, hidden):
        self.kind, self.tokens, self.hidden = kind, tokens, hidden
        self.layer = kind == "layernorm"
        self.tensor_bytes = 2 * tokens * hidden
        self.n = sets_for(4 * self.tensor_bytes)
        rows = lambda: [torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
                        for _ in range(self.n)]
        poison = lambda: [torch.full((tokens, hidden), float("nan"), device="cuda",
                                     dtype=torch.bfloat16) for _ in range(self.n)]
        self.x, self.delta, self.d_y, self.d_residual = rows(), rows(), rows(), rows()
        self.y, self.residual, self.d_x = poison(), poison(), poison()
        self.weight, self.bias = (torch.randn(hidden, device="cuda", dtype=torch.bfloat16)
                                  for _ in range(2))
        self.mean, self.rstd = torch.full((2, self.n, tokens), float("nan"), device="cuda")
        self.amax = torch.zeros(2, device="cuda")  # Of y and d_x.
        self.d_weight, self.d_bias = torch.full((2, hidden), float("nan"), device="cuda")
        self._bind(library)

    def _bind(self, library):
        forward_type, residual_type, backward_type = args_types(self.kind)
        sizes = {"num_tokens": self.tokens, "hidden": self.hidden}
        workspace_bytes = library.number(f"millrace_{self.kind}_backward_bf16_workspace_bytes",
                                         backward_type(**sizes))
        self._workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device="cuda")
        layer = lambda **fields: {k: pointer(v) for k, v in fields.items()} if self.layer else {}
        call = lambda name: library.function(f"millrace_{self.kind}_{name}_bf16")
        forward, residual, backward = call("forward"), call("residual_forward"), call("backward")
        common = [dict(rstd=pointer(self.rstd[i]), weight=pointer(self.weight), **sizes,
                       **layer(mean=self.mean[i])) for i in range(self.n)]
        forward_args = [forward_type(y=pointer(self.y[i]), x=pointer(self.x[i]), epsilon=EPSILON,
                                     **common[i], **layer(bias=self.bias))
                        for i in range(self.n)]
        residual_args = [residual_type(residual=pointer(self.residual[i]), y=pointer(self.y[i]),
                                       x=pointer(self.x[i]), delta=pointer(self.delta[i]),
                                       epsilon=EPSILON, **common[i], **layer(bias=self.bias))
                         for i in range(self.n)]
        backward_args = [backward_type(d_x=pointer(self.d_x[i]), d_weight=pointer(self.d_weight),
                                       d_y=pointer(self.d_y[i]), x=pointer(self.residual[i]),
                                       d_residual=pointer(self.d_residual[i]),
                                       workspace=pointer(self._workspace), accumulate=0,
                                       **common[i], **layer(d_bias=self.d_bias))
                         for i in range(self.n)]
        with_amax = lambda args, amax: type(args)(
            **{name: getattr(args, name) for name, _ in args._fields_ if name != "amax"},
            amax=pointer(amax))
        residual_amax = [with_amax(args, self.amax[0:]) for args in residual_args]
        backward_amax = [with_amax(args, self.amax[1:]) for args in backward_args]
        self.residual_forward_amax = lambda i: residual(residual_amax[i])
        self.backward_amax = lambda i: backward(backward_amax[i])
        self.forward = lambda i: forward(forward_args[i])
        self.residual_forward = lambda i: residual(residual_args[i])
        self.backward = lambda i: backward(backward_args[i])

    def errors(self):
        """After one residual forward and one backward of set 0: the worst relative error of
        the outputs, and of the gradients, against fp64."""
        x = (self.x[0].double() + self.delta[0].double()).bfloat16().double().requires_grad_()
        weight, bias = (t.double().requires_grad_() for t in (self.weight, self.bias))
        y = norm(self.kind, x, weight, bias)
        gradients = torch.autograd.grad(y, [x, weight] + [bias] * self.layer,
                                        self.d_y[0].double())
        ours = [self.d_x[0], self.d_weight] + [self.d_bias] * self.layer
        expected = [gradients[0] + self.d_residual[0].double(), *gradients[1:]]
        return (max(relative_error(self.y[0], y.detach()),
                    relative_error(self.residual[0], x.detach())),
                max(relative_error(a, e) for a, e in zip(ours, expected)))


def norm(kind, x, weight, bias):
    if kind == "rmsnorm":
        return F.rms_norm(x, x.shape[-1:], weight, EPSILON)
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)


def compiled_peers(case):
    """torch.compile of the same three ops. The backward peer is the formula, so that it
    runs in a graph like everything else; it too sums the weight gradients in fp32."""
    kind, eps = case.kind, EPSILON

    @torch.compile(dynamic=False)
    def forward(x, weight, bias):
        return norm(kind, x, weight, bias)

    @torch.compile(dynamic=False)
    def residual_forward(x, delta, weight, bias):
        residual = x + delta
        return residual, norm(kind, residual, weight, bias)

    @torch.compile(dynamic=False)
    def backward(d_y, x, weight, d_residual, mean, rstd):
        d_y, x = d_y.float(), x.float()
        n = (x - mean[:, None] if kind == "layernorm" else x) * rstd[:, None]
        g = d_y * weight.float()
        d_x = g - n * (g * n).mean(-1, keepdim=True)
        if kind == "layernorm":
            d_x = d_x - g.mean(-1, keepdim=True)
        d_x = (d_x * rstd[:, None] + d_residual.float()).bfloat16()
        d_bias = d_y.sum(0) if kind == "layernorm" else None
        return d_x, (d_y * n).sum(0), d_bias

    return (lambda i: forward(case.x[i], case.weight, case.bias),
            lambda i: residual_forward(case.x[i], case.delta[i], case.weight, case.bias),
            lambda i: backward(case.d_y[i], case.residual[i], case.weight, case.d_residual[i],
                               case.mean[i], case.rstd[i]))


def run(bench):
    failed = False
    shapes = [(16384, 4096)] if bench.quick else [
        (16384, 4096), (2048, 4096), (16384, 1024), (16384, 2048), (16384, 5120), (8192, 8192),
        (4096, 16384), (1024, 65536)]
    for kind in KINDS:
        for tokens, hidden in shapes:
            case = Case(bench.library, kind, tokens, hidden)
            for i in range(case.n):
                case.residual_forward(i)
            case.backward(0)
            errors = case.errors()
            # Two roundings to bf16 leave about 2.4e-3 norm-wise.
            failed |= not max(errors) < 4e-3
            case.residual_forward_amax(0)
            case.backward_amax(0)
            failed |= case.amax.tolist() != [case.y[0].abs().max().item(),
                                             case.d_x[0].abs().max().item()]
            ops = [("forward", case.forward, 2, errors[0]),
                   ("residual + norm forward", case.residual_forward, 4, errors[0]),
                   ("norm backward + residual", case.backward, 4, errors[1]),
                   ("residual + norm forward, amax", case.residual_forward_amax, 4, errors[0]),
                   ("norm backward + residual, amax", case.backward_amax, 4, errors[1])]
            peers = compiled_peers(case) if hidden in (4096, 8192) else [None] * 3
            peers = [*peers, None, None]
            for (name, ours, tensors, error), peer in zip(ops, peers):
                variants = {"millrace": ours}
                if peer is not None:
                    variants["compile"] = peer
                times = bench.time(variants, case.n, graph=True)
                bench.row(kind, f"{name} {tokens} x {hidden}", times,
                          num_bytes=tensors * case.tensor_bytes, error=error)
            torch.compiler.reset()
            del case
            torch.cuda.empty_cache()
    return failed
