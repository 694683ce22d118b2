"""AdamW over flat buffers with the norm of the gradients and clipping, against PyTorch's."""

import torch

from harness import pointer, struct

AdamW = struct("AdamW", ("master", "ptr"), ("weights", "ptr"), ("exp_avg", "ptr"),
               ("exp_avg_sq", "ptr"), ("gradients", "ptr"), ("bf16_moments", "i64"),
               ("bf16_gradients", "i64"), ("begin", "i64"), ("end", "i64"),
               ("learning_rate", "f64"), ("beta1", "f64"), ("beta2", "f64"),
               ("epsilon", "f64"), ("weight_decay", "f64"), ("step", "i64"), ("seed", "i64"),
               ("clip_factor", "ptr"), ("skip", "ptr"))
SquaredNorm = struct("SquaredNorm", ("sum", "ptr"), ("x", "ptr"), ("num_elements", "i64"),
                     ("is_bf16", "i64"), ("overwrite", "i64"), ("share", "f64"),
                     ("workspace", "ptr"))
GradientNorm = struct("GradientNorm", ("norm", "ptr"), ("clip_factor", "ptr"),
                      ("skip", "ptr"), ("sum", "ptr"), ("max_norm", "f64"))

ELEMENTS = 1 << 28
HYPER = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


class Case:
    """One flat buffer; `step` is norm, clip factor and update."""

    def __init__(self, library, n, gradients, moments, master, weights):
        make = lambda dtype, scale: torch.randn(n, device="cuda").mul_(scale).to(dtype)
        self.gradients = make(gradients, 1e-3)
        self.exp_avg = torch.zeros(n, device="cuda", dtype=moments)
        self.exp_avg_sq = torch.zeros(n, device="cuda", dtype=moments)
        self.master = make(torch.float32, 1.0) if master else None
        self.weights = None
        if weights:
            self.weights = (torch.full((n,), float("nan"), device="cuda",
                                       dtype=torch.bfloat16)
                            if master else make(torch.bfloat16, 1.0))
        self.sum = torch.zeros(1, dtype=torch.float64, device="cuda")
        self.norm = torch.full((2,), float("nan"), device="cuda")
        self.skip = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._workspace = torch.zeros(
            library.number("millrace_squared_norm_bf16_workspace_bytes"), dtype=torch.uint8,
            device="cuda")
        bf16 = lambda dtype: int(dtype == torch.bfloat16)
        self.args = AdamW(
            pointer(self.master), pointer(self.weights), pointer(self.exp_avg),
            pointer(self.exp_avg_sq), pointer(self.gradients), bf16(moments),
            bf16(gradients), 0, n, HYPER["lr"], *HYPER["betas"], HYPER["eps"],
            HYPER["weight_decay"], 1, 7, pointer(self.norm) + 4, pointer(self.skip))
        square = SquaredNorm(pointer(self.sum), pointer(self.gradients), n, bf16(gradients),
                             1, 1.0, pointer(self._workspace))
        finish = GradientNorm(pointer(self.norm), pointer(self.norm) + 4,
                              pointer(self.skip), pointer(self.sum), 1.0)
        f_square = library.function("millrace_squared_norm_bf16")
        f_finish = library.function("millrace_gradient_norm_bf16")
        f_update = library.function("millrace_adamw_bf16")
        self.square = lambda i: f_square(square)
        self.update = lambda i: f_update(self.args)

        def step(i):
            f_square(square)
            f_finish(finish)
            f_update(self.args)

        self.step = step
        size = lambda x: 0 if x is None else x.element_size()
        self.norm_bytes = n * size(self.gradients)
        self.update_bytes = n * (
            size(self.gradients) + 4 * size(self.exp_avg)
            + (2 * size(self.master) + size(self.weights) if master
               else 2 * size(self.weights)))


def parameter_error(library):
    """The error of one step from equal starts: the change of the parameters, ours against
    PyTorch's in fp64."""
    case = Case(library, (1 << 22) + 5, torch.float32, torch.float32, True, True)
    before = case.master.double()
    parameter = torch.nn.Parameter(case.master.double())
    parameter.grad = case.gradients.double()
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    torch.optim.AdamW([parameter], **HYPER).step()
    case.step(0)
    expected = parameter.detach() - before
    error = ((case.master.double() - before - expected).norm() / expected.norm()).item()
    same = torch.equal(case.weights, case.master.bfloat16())
    return error if same else float("nan")


def run(bench):
    # A step changes weights near 1 by 1e-3, and fp32 keeps them to 2^-25 of themselves:
    # 3e-5 of the change.
    error = parameter_error(bench.library)
    failed = not error < 1e-4
    f32, bf16 = torch.float32, torch.bfloat16

    parameter = torch.nn.Parameter(torch.randn(ELEMENTS, device="cuda"))
    parameter.grad = torch.randn(ELEMENTS, device="cuda").mul_(1e-3)
    optimizer = torch.optim.AdamW([parameter], fused=True, **HYPER)
    norm = torch.zeros((), device="cuda")

    def peer_step(i):
        torch.nn.utils.clip_grads_with_norm_(
            [parameter], 1.0, torch.nn.utils.get_total_norm([parameter.grad]))
        optimizer.step()

    case = Case(bench.library, ELEMENTS, f32, f32, True, False)
    times = bench.time({"millrace": case.update, "fused": lambda i: optimizer.step()}, 1)
    bench.row("AdamW", "268M fp32", times, num_bytes=case.update_bytes, error=error)
    times = bench.time({"millrace": case.step, "fused+clip": peer_step}, 1)
    bench.row("AdamW + clip", "268M fp32", times,
              num_bytes=case.update_bytes + case.norm_bytes)
    times = bench.time({"millrace": case.square,
                        "torch": lambda i: torch.linalg.vector_norm(parameter.grad, out=norm)},
                       1)
    bench.row("gradient norm", "268M fp32", times, num_bytes=case.norm_bytes)
    del parameter, optimizer
    for name, gradients, moments, master, weights in (
            ("268M fp32, bf16 weights written", f32, f32, True, True),
            ("268M bf16 gradients, fp32 state", bf16, f32, True, True),
            ("268M fp32 gradients, bf16 moments", f32, bf16, True, True),
            ("268M bf16 throughout", bf16, bf16, False, True)):
        del case
        case = Case(bench.library, ELEMENTS, gradients, moments, master, weights)
        times = bench.time({"millrace": case.step}, 1)
        bench.row("AdamW + clip", name, times,
                  num_bytes=case.update_bytes + case.norm_bytes)
    times = bench.time({"millrace": case.square}, 1)
    bench.row("gradient norm", "268M bf16", times, num_bytes=case.norm_bytes)
    return failed
