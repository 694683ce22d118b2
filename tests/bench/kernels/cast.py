"""Casts between fp32, bf16 and 8-bit floats against PyTorch's."""

import torch

from harness import pointer, struct

ToBf16 = struct("ToBf16", ("y", "ptr"), ("x", "ptr"), ("num_elements", "i64"),
                ("stochastic", "i64"), ("seed", "i64"), ("stream", "i64"),
                ("first_index", "i64"))
ToFloat = struct("ToFloat", ("y", "ptr"), ("x", "ptr"), ("num_elements", "i64"))
Quantize = struct("Quantize", ("y", "ptr"), ("y_transposed", "ptr"), ("amax", "ptr"),
                  ("x", "ptr"), ("x_row_stride", "i64"), ("rows", "i64"), ("columns", "i64"),
                  ("scale", "ptr"), ("e5m2", "i64"), ("scale_of_amax", "ptr"), ("unit", "ptr"))

Amax = struct("Amax", ("amax", "ptr"), ("x", "ptr"), ("x_row_stride", "i64"), ("rows", "i64"),
              ("columns", "i64"))
Transpose = struct("Transpose", ("y", "ptr"), ("x", "ptr"), ("x_row_stride", "i64"),
                   ("rows", "i64"), ("columns", "i64"))

ELEMENTS = 1 << 28
ROWS, COLUMNS = 16384, 14336


def compiled_quantize(x, scale):
    y = (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return y, y.t().contiguous(), x.abs().amax()


def run(bench):
    failed = False
    wide = torch.randn(ELEMENTS, device="cuda")
    narrow = torch.full((ELEMENTS,), float("nan"), device="cuda", dtype=torch.bfloat16)
    to_bf16 = bench.library.function("millrace_cast_to_bf16")
    to_float = bench.library.function("millrace_cast_to_float")
    nearest, stochastic = (ToBf16(pointer(narrow), pointer(wide), ELEMENTS, s, 1, 2, 0)
                           for s in (0, 1))
    widen = ToFloat(pointer(wide), pointer(narrow), ELEMENTS)
    to_bf16(nearest)
    failed |= not torch.equal(narrow, wide.bfloat16())
    to_bf16(stochastic)
    # In units of the last place of bf16, rounding moves values by less than one, and by
    # zero on average; one in 8,192 is five deviations of the mean.
    ulp = torch.exp2(torch.floor(torch.log2(wide.abs())) - 7)
    moved = ((narrow.float() - wide) / ulp)[wide != 0]
    failed |= not (moved.abs().max().item() < 1.001
                   and abs(moved.mean().item()) < 1 / 8192)
    del ulp, moved
    times = bench.time({"millrace": lambda i: to_bf16(nearest),
                        "torch": lambda i: narrow.copy_(wide)}, 1)
    bench.row("cast", "268M fp32 to bf16", times, num_bytes=6 * ELEMENTS)
    times = bench.time({"millrace": lambda i: to_bf16(stochastic)}, 1)
    bench.row("cast", "268M fp32 to bf16, stochastic", times, num_bytes=6 * ELEMENTS)
    times = bench.time({"millrace": lambda i: to_float(widen),
                        "torch": lambda i: wide.copy_(narrow)}, 1)
    bench.row("cast", "268M bf16 to fp32", times, num_bytes=6 * ELEMENTS)
    del wide, narrow

    x = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    y = torch.zeros(ROWS, COLUMNS, device="cuda", dtype=torch.uint8)
    y_transposed = torch.zeros(COLUMNS, ROWS, device="cuda", dtype=torch.uint8)
    amax = torch.zeros(1, device="cuda")
    scale = torch.full((1,), 64.0, device="cuda")
    quantize = bench.library.function("millrace_quantize_fp8_bf16")
    args = lambda transposed: Quantize(pointer(y), pointer(transposed), pointer(amax),
                                       pointer(x), COLUMNS, ROWS, COLUMNS, pointer(scale), 0,
                                       0, 0)
    both, rows = args(y_transposed), args(None)
    quantize(both)
    expected = (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    failed |= not (torch.equal(y, expected) and torch.equal(y_transposed, expected.t())
                   and amax.item() == x.abs().max().item())
    del expected
    compiled = torch.compile(compiled_quantize, dynamic=False)
    times = bench.time({"millrace": lambda i: quantize(both),
                        "compiled": lambda i: compiled(x, scale)}, 1)
    bench.row("quantize", f"{ROWS} x {COLUMNS}, rows, columns, amax", times,
              num_bytes=4 * x.numel())
    times = bench.time({"millrace": lambda i: quantize(rows)}, 1)
    bench.row("quantize", f"{ROWS} x {COLUMNS}, rows, amax", times, num_bytes=3 * x.numel())
    return failed | run_current_scaling(bench, x, y, y_transposed)


def run_current_scaling(bench, x, y, y_transposed):
    """A scale that the tensor's own largest magnitude chooses: amax, then the cast. Last, the
    transpose of a matrix that was cast elsewhere."""
    failed = False
    name = f"{ROWS} x {COLUMNS}"
    amax, unit = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    find = bench.library.function("millrace_amax_bf16")
    quantize = bench.library.function("millrace_quantize_fp8_bf16")
    transpose = bench.library.function("millrace_transpose_fp8")
    amax_args = Amax(pointer(amax), pointer(x), COLUMNS, ROWS, COLUMNS)
    find(amax_args)
    failed |= amax.item() != x.abs().max().item()
    times = bench.time({"millrace": lambda i: find(amax_args),
                        "torch": lambda i: torch.linalg.vector_norm(x, float("inf"))}, 1)
    bench.row("amax", name, times, num_bytes=2 * x.numel())
    for e5m2, largest, dtype in ((0, 448, torch.float8_e4m3fn), (1, 57344, torch.float8_e5m2)):
        args = lambda rows, columns: Quantize(
            pointer(rows), pointer(columns), 0, pointer(x), COLUMNS, ROWS, COLUMNS, 0, e5m2,
            pointer(amax), pointer(unit))
        for rows, columns, what, num_bytes in (
                (y, y_transposed, "rows and columns", 4), (y, None, "rows", 3),
                (None, y_transposed, "columns", 3)):
            y.zero_(), y_transposed.zero_()
            current = args(rows, columns)
            quantize(current)
            # Both are tensors: by a number PyTorch would multiply with its reciprocal.
            end = torch.full_like(amax, largest)
            expected = (x.float() * (end / amax)).clamp(-largest, largest).to(dtype)
            expected = expected.view(torch.uint8)
            failed |= rows is not None and not torch.equal(y, expected)
            failed |= columns is not None and not torch.equal(y_transposed, expected.t())
            failed |= unit.item() != (amax / end).item()
            del expected
            times = bench.time({"millrace": lambda i: quantize(current)}, 1)
            bench.row("quantize by amax", f"{name}, {'e5m2' if e5m2 else 'e4m3'}, {what}", times,
                      num_bytes=num_bytes * x.numel())
    transpose_args = Transpose(pointer(y_transposed), pointer(y), COLUMNS, ROWS, COLUMNS)
    y.random_()
    transpose(transpose_args)
    failed |= not torch.equal(y_transposed, y.t())
    times = bench.time({"millrace": lambda i: transpose(transpose_args),
                        "torch": lambda i: y_transposed.copy_(y.t())}, 1)
    bench.row("transpose", f"{name} bytes", times, num_bytes=2 * y.numel())
    return failed
