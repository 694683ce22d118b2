"""RoPE of bf16 queries and keys in the packed projection, with and without QK-norm,
against torch.compile.

The query and key heads count once for each direction in which they must cross the memory
bus, and the table of angles once; weights and statistics are small and not counted.
"""

import torch

from harness import pointer, relative_error, sets_for, struct

Shape = struct("Shape", ("num_tokens", "i64"), ("num_heads", "i64"), ("num_kv_heads", "i64"),
               ("head_dim", "i64"), ("sequence_length", "i64"), ("table_length", "i64"))
Forward = struct("Forward", ("out", "ptr"), ("out_token_stride", "i64"), ("qkv", "ptr"),
                 ("qkv_token_stride", "i64"), ("table", "ptr"), ("position_ids", "ptr"),
                 ("q_weight", "ptr"), ("k_weight", "ptr"), ("rstd", "ptr"), ("epsilon", "f64"),
                 ("shape", Shape))
Backward = struct("Backward", ("d_qkv", "ptr"), ("d_qkv_token_stride", "i64"), ("table", "ptr"),
                  ("position_ids", "ptr"), ("q_weight", "ptr"), ("k_weight", "ptr"),
                  ("qkv", "ptr"), ("qkv_token_stride", "i64"), ("rstd", "ptr"),
                  ("d_q_weight", "ptr"), ("d_k_weight", "ptr"), ("accumulate", "i64"),
                  ("workspace", "ptr"), ("shape", Shape), ("amax", "ptr"))
EPSILON = 1e-6


class Case:
    def __init__(self, library, tokens, sequence, heads, kv_heads, head_dim):
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        turned = heads + kv_heads
        self.turned_bytes = 2 * tokens * turned * head_dim
        self.table_bytes = 4 * sequence * head_dim
        self.n = sets_for(2 * self.turned_bytes)
        packed = lambda: [torch.randn(tokens, heads + 2 * kv_heads, head_dim, device="cuda",
                                      dtype=torch.bfloat16) for _ in range(self.n)]
        self.qkv, self.d_qkv = packed(), packed()
        self.out = [torch.full((tokens, turned, head_dim), float("nan"), device="cuda",
                               dtype=torch.bfloat16) for _ in range(self.n)]
        angles = torch.arange(sequence, device="cuda").double()[:, None] * 10000.0 ** (
            -torch.arange(0, head_dim, 2, device="cuda").double() / head_dim)
        self.table = torch.stack((angles.cos(), angles.sin())).float()
        self.positions = torch.arange(tokens, device="cuda") % sequence
        self.q_weight, self.k_weight = (
            torch.randn(head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.rstd = torch.full((self.n, tokens, turned), float("nan"), device="cuda")
        self.d_q_weight, self.d_k_weight = torch.full((2, head_dim), float("nan"), device="cuda")
        shape = Shape(tokens, heads, kv_heads, head_dim, sequence, sequence)
        self._workspace = torch.empty(
            library.number("millrace_rope_backward_bf16_workspace_bytes", shape),
            dtype=torch.uint8, device="cuda")
        forward = library.function("millrace_rope_forward_bf16")
        backward = library.function("millrace_rope_backward_bf16")
        stride, out_stride = (heads + 2 * kv_heads) * head_dim, turned * head_dim
        table = pointer(self.table)
        weights = pointer(self.q_weight), pointer(self.k_weight)

        def bind(call, args):
            return lambda i: call(args[i])

        every = range(self.n)
        self.forward = bind(forward, [
            Forward(pointer(self.qkv[i]), stride, pointer(self.qkv[i]), stride, table, 0, 0, 0, 0,
                    0.0, shape) for i in every])
        self.backward = bind(backward, [
            Backward(d_qkv=pointer(self.d_qkv[i]), d_qkv_token_stride=stride, table=table,
                     shape=shape) for i in every])
        self.amax = torch.zeros(1, device="cuda")
        self.backward_amax = bind(backward, [
            Backward(d_qkv=pointer(self.d_qkv[i]), d_qkv_token_stride=stride, table=table,
                     shape=shape, amax=pointer(self.amax)) for i in every])
        self.norm_forward = bind(forward, [
            Forward(pointer(self.out[i]), out_stride, pointer(self.qkv[i]), stride, table, 0,
                    *weights, pointer(self.rstd[i]), EPSILON, shape) for i in every])
        self.norm_backward = bind(backward, [
            Backward(pointer(self.d_qkv[i]), stride, table, 0, *weights, pointer(self.qkv[i]),
                     stride, pointer(self.rstd[i]), pointer(self.d_q_weight),
                     pointer(self.d_k_weight), 0, pointer(self._workspace), shape)
            for i in every])

    def turn(self, x, sign=1.0):
        """Rotates [tokens, heads, head_dim], in the precision of x, by plain torch."""
        cosine, sine = (t[self.positions, None].to(x.dtype) for t in self.table)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cosine - sign * b * sine, b * cosine + sign * a * sine), -1)

    def normed(self, x, q_weight, k_weight):
        rstd = (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        weight = torch.cat((q_weight.expand(self.heads, -1), k_weight.expand(self.kv_heads, -1)))
        return x * rstd * weight

    def errors(self):
        """Relative errors of set 0: turned, turned back, normed, and its gradients."""
        turned = self.heads + self.kv_heads
        before = self.qkv[0].clone(), self.d_qkv[0].clone()
        x, d_out = (t[:, :turned].double() for t in before)
        self.norm_forward(0)
        x.requires_grad_()
        q_weight, k_weight = (t.double().requires_grad_() for t in (self.q_weight,
                                                                    self.k_weight))
        out = self.turn(self.normed(x, q_weight, k_weight))
        gradients = torch.autograd.grad(out, (x, q_weight, k_weight), d_out)
        errors = {"norm forward": relative_error(self.out[0], out.detach())}
        self.norm_backward(0)
        ours = self.d_qkv[0][:, :turned], self.d_q_weight, self.d_k_weight
        errors["norm backward"] = max(relative_error(a, e) for a, e in zip(ours, gradients))
        self.d_qkv[0].copy_(before[1])
        self.forward(0)
        self.backward(0)
        errors["forward"] = relative_error(self.qkv[0][:, :turned], self.turn(x.detach()))
        errors["backward"] = relative_error(self.d_qkv[0][:, :turned], self.turn(d_out, -1.0))
        self.d_qkv[0].copy_(before[1])
        self.backward_amax(0)
        if self.amax.item() != self.d_qkv[0].abs().max().item():
            errors["backward, amax"] = float("nan")
        untouched = all(torch.equal(a[0][:, turned:], b[:, turned:])
                        for a, b in zip((self.qkv, self.d_qkv), before))
        return errors, untouched


def compiled_peers(case):
    turned = case.heads + case.kv_heads
    turn = lambda x, sign: case.turn(x.float(), sign).bfloat16()

    @torch.compile(dynamic=False)
    def in_place(qkv, sign):
        qkv[:, :turned] = turn(qkv[:, :turned], sign)

    @torch.compile(dynamic=False)
    def norm_forward(qkv):
        normed = case.normed(qkv[:, :turned].float(), case.q_weight.float(),
                             case.k_weight.float())
        return case.turn(normed).bfloat16()

    return {"forward": lambda i: in_place(case.qkv[i], 1.0),
            "backward": lambda i: in_place(case.d_qkv[i], -1.0),
            "norm forward": lambda i: norm_forward(case.qkv[i])}


def run(bench):
    failed = False
    shapes = [(16384, 8192, 32, 8, 128)] if bench.quick else [
        (16384, 8192, 32, 8, 128), (16384, 8192, 64, 64, 64), (16384, 8192, 16, 1, 256),
        (2048, 2048, 32, 8, 128)]
    for tokens, sequence, heads, kv_heads, head_dim in shapes:
        case = Case(bench.library, tokens, sequence, heads, kv_heads, head_dim)
        errors, untouched = case.errors()
        failed |= not untouched or not max(errors.values()) < 4e-3
        errors.setdefault("backward, amax", errors["backward"])
        peers = compiled_peers(case)
        for name, ours, passes in (("forward", case.forward, 2), ("backward", case.backward, 2),
                                   ("backward, amax", case.backward_amax,
                                    2 + kv_heads / (heads + kv_heads)),
                                   ("norm forward", case.norm_forward, 2),
                                   ("norm backward", case.norm_backward, 3)):
            variants = {"millrace": ours}
            if name in peers:
                variants["compile"] = peers[name]
            times = bench.time(variants, case.n, graph=True)
            bench.row("rope", f"{name} {tokens} x ({heads} + {kv_heads}) x {head_dim}", times,
                      num_bytes=passes * case.turned_bytes + case.table_bytes,
                      error=errors[name])
        torch.compiler.reset()
        del case
        torch.cuda.empty_cache()
    return failed
