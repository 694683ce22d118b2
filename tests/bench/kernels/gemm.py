"""The GEMM door on bf16 matrices against cuBLAS through PyTorch.

"millrace" is the algorithm that measuring chose among cuBLASLt's and our own,
"heuristic" cuBLASLt's first choice, "wgmma" the best of our own kernels.
"""

import ctypes

import torch

from harness import pointer, relative_error, sets_for, struct

Shape = struct("Shape", *[(f, "i64") for f in (
    "m", "n", "k", "trans_a", "trans_b", "fp32_output", "accumulate", "epilogue", "a_stride",
    "b_stride", "c_stride", "aux_stride")])
Options = struct("Options", ("max_workspace_bytes", "i64"), ("num_multiprocessors", "i64"),
                 ("algorithm", "ptr"))
Args = struct("Args", ("c", "ptr"), ("a", "ptr"), ("b", "ptr"), ("bias", "ptr"), ("aux", "ptr"),
              ("workspace", "ptr"), ("scale", "f32"))


class Measurement(ctypes.Structure):
    _fields_ = [("algorithm", ctypes.c_char * 256), ("milliseconds", ctypes.c_double),
                ("workspace_bytes", ctypes.c_int64)]


SHAPES = [(8192, 8192, 8192), (16384, 4096, 4096), (16384, 6144, 4096), (16384, 14336, 4096),
          (16384, 28672, 4096), (16384, 4096, 14336), (8192, 128256, 4096), (4096, 14336, 16384),
          (16384, 2048, 2048), (16384, 8192, 2048)]
# Tokens, outputs and inputs of a layer whose backward pass is timed as well.
LAYERS = [(16384, 4096, 4096), (16384, 14336, 4096), (16384, 4096, 14336), (16384, 2048, 2048)]
WORKSPACE_BYTES = 32 << 20
MAX_CANDIDATES = 16


class Plans:
    """Plans of one shape: PyTorch needs none, ours are made once."""

    def __init__(self, library, shape, sets):
        self._lib = library._lib
        self._shape = shape
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._args = (Args * len(sets))(*[
            Args(pointer(c), pointer(a), pointer(b), 0, 0, pointer(self._workspace), 1.0)
            for c, a, b in sets])
        self._plans = []

    def _check(self, code):
        if code != 0:
            raise RuntimeError(self._lib.millrace_last_error().decode())

    def runner(self, algorithm):
        """f(set index) of one algorithm's text; None: the heuristic's."""
        plan = ctypes.c_void_p()
        options = Options(WORKSPACE_BYTES, 0, ctypes.cast(ctypes.c_char_p(algorithm),
                                                          ctypes.c_void_p))
        self._check(self._lib.millrace_gemm_bf16_plan_create(
            ctypes.byref(self._shape), ctypes.byref(options), ctypes.byref(plan)))
        run = self._lib.millrace_gemm_bf16_run
        pointers = [ctypes.byref(args) for args in self._args]
        self._plans.append(plan)

        def call(i):
            self._check(run(plan, pointers[i], ctypes.c_void_p(
                torch.cuda.current_stream().cuda_stream)))

        return call

    def measure(self):
        """[(algorithm, milliseconds)], fastest first."""
        out = (Measurement * 64)()
        count = ctypes.c_int64()
        options = Options(WORKSPACE_BYTES, 0, None)
        self._check(self._lib.millrace_gemm_bf16_measure(
            ctypes.byref(self._shape), ctypes.byref(options), self._args,
            ctypes.c_int64(len(self._args)), ctypes.c_int64(MAX_CANDIDATES), out,
            ctypes.c_int64(len(out)), ctypes.byref(count),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))
        return [(m.algorithm, m.milliseconds) for m in out[:count.value]]

    def close(self):
        for plan in self._plans:
            self._lib.millrace_gemm_bf16_plan_destroy(plan)


def bench_one(bench, family, m, n, k, trans_a, trans_b, fp32):
    """c[m, n] = op(a) op(b); with fp32, c += in fp32 where PyTorch stores bf16."""
    make = lambda rows, columns, scale: scale * torch.randn(
        rows, columns, device="cuda", dtype=torch.bfloat16)
    count = sets_for(2 * (m * k + k * n + m * n), most=4)
    a = [make(*((k, m) if trans_a else (m, k)), 1.0) for _ in range(count)]
    b = [make(*((n, k) if trans_b else (k, n)), k ** -0.5) for _ in range(count)]
    c = [torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
         for _ in range(count)]
    ours_c = c if not fp32 else [torch.zeros(m, n, device="cuda") for _ in range(count)]
    shape = Shape(m, n, k, trans_a, trans_b, fp32, fp32, 0, 0, 0, 0, 0)
    plans = Plans(bench.library, shape, list(zip(ours_c, a, b)))
    op_a = [x.T if trans_a else x for x in a]
    op_b = [x.T if trans_b else x for x in b]

    few = slice(0, 64)
    expected = op_a[0][few].double() @ op_b[0].double()
    torch.mm(op_a[0], op_b[0], out=c[0])
    theirs = relative_error(c[0][few], expected)
    ours_c[0].fill_(0.0 if fp32 else float("nan"))
    measured = plans.measure()
    chosen = measured[0][0]
    wgmma = next((text for text, _ in measured if text.startswith(b"wgmma")), None)
    run = plans.runner(chosen)
    ours_c[0].fill_(0.0 if fp32 else float("nan"))
    run(0)
    ours = relative_error(ours_c[0][few], expected)

    variants = {"millrace": run, "cuBLAS": lambda i: torch.mm(op_a[i], op_b[i], out=c[i]),
                "heuristic": plans.runner(None)}
    if wgmma and wgmma != chosen:
        variants["wgmma"] = plans.runner(wgmma)
    times = bench.time(variants, count)
    bench.row(family, f"{m} x {n} x {k}", times, flops=2 * m * n * k, error=ours,
              error_cublas=theirs, algorithm=(chosen if chosen.startswith(b"wgmma") else
                                              b"cublaslt").decode())
    bench.rows[-1]["algorithm_text"] = chosen.decode()
    plans.close()
    return not ours <= 1.05 * theirs


def run(bench):
    failed = False
    for m, n, k in SHAPES:
        failed |= bench_one(bench, "gemm forward", m, n, k, 0, 1, 0)
    if not bench.quick:
        for tokens, outputs, inputs in LAYERS:
            failed |= bench_one(bench, "gemm input grad", tokens, inputs, outputs, 0, 0, 0)
            failed |= bench_one(bench, "gemm weight grad", outputs, inputs, tokens, 1, 0, 1)
    ratios = [row["ratio"]["cuBLAS"] for row in bench.rows if row["family"] == "gemm forward"]
    if ratios:
        print(f"gemm forward against cuBLAS: least {min(ratios):.3f}x, mean "
              f"{sum(ratios) / len(ratios):.3f}x")
    return failed
