"""GEMM of fp8 tensors against torch._scaled_mm: one scale a tensor with both accumulations,
then scales for blocks of 128 along k."""

import ctypes

import torch

from gemm import Options
from harness import pointer, relative_error, sets_for, struct

Shape = struct("Fp8Shape", *[(f, "i64") for f in (
    "m", "n", "k", "a_is_e5m2", "b_is_e5m2", "fp32_output", "accumulate", "fast_accumulation",
    "a_stride", "b_stride", "c_stride", "bias")])
Args = struct("Fp8Args", ("c", "ptr"), ("a", "ptr"), ("b", "ptr"), ("a_scale", "ptr"),
              ("b_scale", "ptr"), ("workspace", "ptr"), ("scale", "f32"), ("bias", "ptr"))
BlockArgs = struct("Fp8BlockArgs", ("c", "ptr"), ("a", "ptr"), ("b", "ptr"), ("a_scale", "ptr"),
                   ("b_scale", "ptr"), *[(f, "i64") for f in (
                       "m", "n", "k", "a_stride", "b_stride", "c_stride", "a_scale_stride",
                       "b_scale_stride", "fp32_output", "accumulate", "scales_of_b")])
ROWS = 2  # Scales of b.

SHAPES = [(8192, 8192, 8192), (16384, 4096, 4096), (16384, 6144, 4096), (16384, 14336, 4096),
          (16384, 28672, 4096), (16384, 4096, 14336), (4096, 14336, 16384)]
WORKSPACE_BYTES = 32 << 20
# Weight gradients: m and n are a weight's, k the tokens.
GRADIENTS = [(2048, 2048, 32768), (2048, 8192, 32768), (8192, 2048, 32768), (4096, 4096, 8192),
             (4096, 14336, 8192)]
FEW = slice(0, 512)  # Rows that are checked: all places in a cluster's tiles.
E4M3_MAX = 448.0


def tensorwise(bench, m, n, k):
    """The scale of a tensor is its largest magnitude over 448."""
    def quantized(rows):
        x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
        unit = (x.abs().amax().float() / E4M3_MAX).reshape(1)
        return (x.float() / unit).to(torch.float8_e4m3fn), unit

    count = sets_for(m * k + n * k + 2 * m * n, most=4)
    sets = [(*quantized(m), *quantized(n)) for _ in range(count)]
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    lib = bench.library._lib
    lib.millrace_gemm_fp8_plan_destroy.argtypes = [ctypes.c_void_p]
    a, a_unit, b, b_unit = sets[0]
    expected = (a[FEW].double() * a_unit.double()) @ (b.double() * b_unit.double()).T
    failed = False
    for fast in (0, 1):
        plan = ctypes.c_void_p()
        shape = Shape(m, n, k, 0, 0, 0, 0, fast, 0, 0, 0, 0)
        options = Options(WORKSPACE_BYTES, 0, None)
        if lib.millrace_gemm_fp8_plan_create(ctypes.byref(shape), ctypes.byref(options),
                                             ctypes.byref(plan)) != 0:
            raise RuntimeError(lib.millrace_last_error().decode())
        args = [Args(pointer(c), pointer(a), pointer(b), pointer(a_unit), pointer(b_unit),
                     pointer(workspace), 1.0, 0) for a, a_unit, b, b_unit in sets]

        def ours(i):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if lib.millrace_gemm_fp8_run(plan, ctypes.byref(args[i]), stream) != 0:
                raise RuntimeError(lib.millrace_last_error().decode())

        def theirs(i):
            a, a_unit, b, b_unit = sets[i]
            return torch._scaled_mm(a, b.T, a_unit, b_unit, out_dtype=torch.bfloat16,
                                    use_fast_accum=bool(fast))

        ours(0)
        error, peer_error = (relative_error(x[FEW], expected) for x in (c, theirs(0)))
        failed |= not error <= 1.05 * peer_error
        times = bench.time({"millrace": ours, "torch": theirs}, count)
        bench.row("gemm fp8 " + ("fast" if fast else "split"), f"{m} x {n} x {k}", times,
                  flops=2 * m * n * k, peak="fp8", error=error, error_torch=peer_error)
        lib.millrace_gemm_fp8_plan_destroy(plan)
    return failed


def quantized_blocks(rows, k, height):
    """Numbers in e4m3 with a scale for `height` rows by 128, and the scales."""
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    blocks = x.float().reshape(rows // height, height, k // 128, 128)
    unit = blocks.abs().amax(dim=(1, 3), keepdim=True) / E4M3_MAX
    bits = (blocks / unit).reshape(rows, k).to(torch.float8_e4m3fn)
    return bits, unit.reshape(rows // height, k // 128)


def wide(bits, unit, height):
    scales = unit.double().repeat_interleave(height, 0).repeat_interleave(128, 1)
    return bits.double() * scales[:bits.shape[0]]


def blockwise(bench, m, n, k):
    """Scales of 1 x 128 for a, of 128 x 128 for b."""
    count = sets_for(m * k + n * k + 2 * m * n, most=4)
    sets = []
    for _ in range(count):
        a, a_unit = quantized_blocks(m, k, 1)
        b, b_unit = quantized_blocks(n, k, 128)
        # Both libraries read the scales of rows side by side: [k / 128, m] in memory.
        sets.append((a, a_unit.T.contiguous(), b, b_unit.contiguous()))
    bf16 = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    fp32 = torch.zeros(m, n, device="cuda")
    call = bench.library.function("millrace_gemm_fp8_block")

    args = [BlockArgs(pointer(bf16), pointer(a), pointer(b), pointer(a_unit), pointer(b_unit),
                      m, n, k, k, k, n, m, k // 128, 0, 0, 0)
            for a, a_unit, b, b_unit in sets]

    def ours(i):
        call(args[i])

    def theirs(i):
        a, a_unit, b, b_unit = sets[i]
        return torch._scaled_mm(a, b.T, a_unit.T, b_unit.T, out_dtype=torch.bfloat16)

    variants = {"millrace": ours}
    a, a_unit, b, b_unit = sets[0]
    expected = wide(a[FEW], a_unit.T[FEW], 1) @ wide(b, b_unit, 128).T
    ours(0)
    error = relative_error(bf16[FEW], expected)
    # Rounding to bf16 leaves 1.7e-3 norm-wise; sums of a block in the tensor cores little.
    failed = not error < 2.5e-3 or bool(bf16.isnan().any())
    peer_error = None
    try:
        peer_error = relative_error(theirs(0)[FEW], expected)
        variants["torch"] = theirs
    except (RuntimeError, ValueError) as refusal:
        print(f"torch._scaled_mm 1x128 by 128x128 does not run: {str(refusal)[:150]}")
    times = bench.time(variants, count)
    bench.row("gemm fp8 blockwise", f"{m} x {n} x {k}", times, flops=2 * m * n * k, peak="fp8",
              error=error, error_torch=peer_error)
    return failed


def gradient(bench, m, n, k):
    """Scales of 1 x 128 for both, as in the product for a weight's gradient; added to fp32."""
    count = sets_for(m * k + n * k + 4 * m * n, most=4)
    sets = []
    for _ in range(count):
        (a, a_unit), (b, b_unit) = quantized_blocks(m, k, 1), quantized_blocks(n, k, 1)
        sets.append((a, a_unit.T.contiguous(), b, b_unit.T.contiguous()))
    c = torch.zeros(m, n, device="cuda")
    call = bench.library.function("millrace_gemm_fp8_block")

    args = [BlockArgs(pointer(c), pointer(a), pointer(b), pointer(a_unit), pointer(b_unit),
                      m, n, k, k, k, n, m, n, 1, 1, ROWS)
            for a, a_unit, b, b_unit in sets]

    def ours(i):
        call(args[i])

    def theirs(i):
        a, a_unit, b, b_unit = sets[i]
        return torch._scaled_mm(a, b.T, a_unit.T, b_unit, out_dtype=torch.float32)

    variants = {"millrace": ours}
    a, a_unit, b, b_unit = sets[0]
    expected = wide(a[FEW], a_unit.T[FEW], 1) @ wide(b, b_unit.T, 1).T
    ours(0)
    error = relative_error(c[FEW], expected)
    failed = not error < 1e-3
    try:
        theirs(0)
        variants["torch"] = theirs  # Stores and does not add.
    except (RuntimeError, ValueError) as refusal:
        print(f"torch._scaled_mm 1x128 by 1x128 does not run: {str(refusal)[:150]}")
    times = bench.time(variants, count)
    bench.row("gemm fp8 gradient", f"{m} x {n} x {k}, added to fp32", times,
              flops=2 * m * n * k, peak="fp8", error=error)
    return failed


def run(bench):
    failed = False
    for m, n, k in [SHAPES[0], SHAPES[3]] if bench.quick else SHAPES:
        if not bench.quick:
            failed |= tensorwise(bench, m, n, k)
        failed |= blockwise(bench, m, n, k)
    for m, n, k in GRADIENTS:
        failed |= gradient(bench, m, n, k)
    return failed
