"""The grouped GEMM of a mixture of experts against PyTorch's grouped product and against one
product a group."""

import torch

from harness import pointer, relative_error, sets_for, struct

Args = struct("Args", ("c", "ptr"), ("a", "ptr"), ("b", "ptr"), ("group_offsets", "ptr"),
              ("num_rows", "i64"), ("n", "i64"), ("k", "i64"), ("num_groups", "i64"),
              ("trans_b", "i64"), ("scale", "f32"))

# Rows (tokens times experts a token), outputs, inputs, experts.
CASES = [(32768, 2048, 4096, 8), (32768, 4096, 2048, 8), (32768, 1408, 2048, 64)]


def group_sizes(rows, groups):
    """Unlike sizes, one of them none, that add up to `rows`."""
    weights = torch.arange(groups, dtype=torch.float64)
    sizes = (weights / weights.sum() * rows).long()
    sizes[-1] += rows - sizes.sum()
    return sizes


class Case:
    def __init__(self, library, rows, n, k, groups, trans_b):
        make = lambda *size, scale=1.0: (scale * torch.randn(*size, device="cuda")).bfloat16()
        self.n = sets_for(2 * (rows * (n + k) + groups * n * k), most=4)
        sizes = group_sizes(rows, groups)
        self.ends = sizes.cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), self.ends]).int().cuda()
        self._keep = offsets
        self.a = [make(rows, k) for _ in range(self.n)]
        shape = (groups, n, k) if trans_b else (groups, k, n)
        self.b = [make(*shape, scale=k ** -0.5) for _ in range(self.n)]
        # The peers take b as [groups, k, n], of either order in memory.
        self.by_group = [b.transpose(1, 2) if trans_b else b for b in self.b]
        self.c = torch.full((rows, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        f = library.function("millrace_gemm_grouped_bf16")
        args = [Args(pointer(self.c), pointer(a), pointer(b), pointer(offsets), rows, n, k,
                     groups, trans_b, 1.0) for a, b in zip(self.a, self.b)]
        self.run = lambda i: f(args[i])
        self.flops = 2 * rows * n * k

    def loop(self, i):
        begin = 0
        for group, end in enumerate(self.ends.tolist()):
            if end > begin:
                torch.mm(self.a[i][begin:end], self.by_group[i][group])
            begin = end

    def grouped(self, i):
        return torch._grouped_mm(self.a[i], self.by_group[i], offs=self._keep[1:])

    def error(self):
        """Norm-wise against fp64, over the first columns."""
        few = slice(0, 64)
        self.run(0)
        begin, parts = 0, []
        for group, end in enumerate(self.ends.tolist()):
            parts.append(self.a[0][begin:end].double() @ self.by_group[0][group][:, few].double())
            begin = end
        return relative_error(self.c[:, few], torch.cat(parts))


def run(bench):
    failed = False
    pace = {"rounds": 3, "gap": 0.05} if bench.quick else {}
    for rows, n, k, groups in CASES:
        for trans_b in (1, 0):
            case = Case(bench.library, rows, n, k, groups, trans_b)
            error = case.error()
            variants = {"millrace": case.run, "a product each": case.loop}
            try:
                case.grouped(0)
                variants["torch grouped"] = case.grouped
            except (AttributeError, RuntimeError) as why:
                print(f"no grouped product of PyTorch here: {str(why)[:100]}")
            times = bench.time(variants, case.n, **pace)
            bench.row("gemm grouped", f"{rows} x {n} x {k}, {groups} experts"
                      + (", b turned" if trans_b else ""), times, flops=case.flops, error=error)
            failed |= not error < 2.5e-3  # Rounding once to bf16 costs about 1.7e-3.
            del case
    return failed
