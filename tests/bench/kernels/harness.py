"""Helpers that the kernel benchmarks share: calls through the C interface, fair timing, tables.

Timing: every variant runs on several input sets together larger than the L2 cache, the
variants take turns within a run, idle gaps keep the chip from throttling, and the
median counts. Short calls are timed inside a CUDA graph, so that no host time shows.
"""

import ctypes
import json
import pathlib
import statistics
import time

import torch

PEAK_TFLOPS = {"bf16": 989.0, "fp8": 1979.0}  # Dense, H100 and H200 SXM.
L2_BYTES = 50 << 20


class Library:
    """libmillrace_kernels.so; calls raise RuntimeError with the library's reason."""

    def __init__(self, path):
        self._lib = ctypes.CDLL(str(path))
        self._lib.millrace_last_error.restype = ctypes.c_char_p

    def has(self, name):
        return hasattr(self._lib, name)

    def function(self, name):
        """Takes (struct, stream or None) and enqueues; None is torch's current stream."""
        raw = getattr(self._lib, name)

        def call(struct, stream=None):
            stream = torch.cuda.current_stream().cuda_stream if stream is None else stream
            code = raw(ctypes.byref(struct), ctypes.c_void_p(stream))
            if code != 0:
                raise RuntimeError(f"{name}: {self._lib.millrace_last_error().decode()}")

        return call

    def number(self, name, *structs):
        """A function of structs that returns int64, for example a workspace size."""
        raw = getattr(self._lib, name)
        raw.restype = ctypes.c_int64
        return raw(*[ctypes.byref(s) for s in structs])


def struct(name, *fields):
    """A ctypes structure: struct("heads", ("data", "ptr"), ("stride", "i64"), ...).
    A field's type is ptr, i64, i32, f32, f64 or another structure. A tensor may be
    assigned to a pointer with pointer()."""
    types = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "i32": ctypes.c_int32,
             "f32": ctypes.c_float, "f64": ctypes.c_double}
    return type(name, (ctypes.Structure,),
                {"_fields_": [(f, types[t] if isinstance(t, str) else t) for f, t in fields]})


def pointer(tensor):
    return 0 if tensor is None else tensor.data_ptr()


def relative_error(actual, expected):
    """|actual - expected| / |expected| in fp64; NaN if anything was left unwritten."""
    actual, expected = actual.double(), expected.double()
    return ((actual - expected).norm() / expected.norm()).item()


def sets_for(bytes_per_set, least=2, most=16):
    """How many input sets make the caches useless."""
    return max(least, min(most, 4 * L2_BYTES // max(1, bytes_per_set) + 1))


class Bench:
    def __init__(self, library, quick=False, out=None):
        self.library = library
        self.quick = quick
        self.rows = []
        self._out = out
        self._copy_gbs = None

    def time(self, variants, num_sets, graph=False, rounds=None, gap=0.1):
        """{name: f(set index)} to {name: median milliseconds of one call}."""
        rounds = rounds or (5 if self.quick else 9)
        runners = {}
        for name, f in variants.items():
            for i in range(num_sets):
                f(i)
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for i in range(num_sets):
                f(i)
            end.record()
            torch.cuda.synchronize()
            once = start.elapsed_time(end) / num_sets
            # About 6 ms a burst: long against the clock, short against the power limit.
            calls = max(num_sets, min(400, round(6.0 / max(once, 1e-3))))
            calls -= calls % num_sets
            runners[name] = self._runner(f, num_sets, calls, graph), calls
        times = {name: [] for name in variants}
        turns = list(runners.items())
        for _ in range(rounds):
            turns.reverse()  # There and back: none always follows the same other.
            for name, (run, calls) in turns:
                torch.cuda.synchronize()
                time.sleep(gap)
                run()  # Wakes the clocks; not counted.
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                run()
                end.record()
                torch.cuda.synchronize()
                times[name].append(start.elapsed_time(end) / calls)
        return {name: statistics.median(t) for name, t in times.items()}

    @staticmethod
    def _runner(f, num_sets, calls, graph):
        def run():
            for i in range(calls):
                f(i % num_sets)

        if not graph:
            return run
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            f(0)
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        return captured.replay

    def copy_gbs(self):
        """Device-to-device copy, read plus write, the ceiling of bandwidth-bound ops."""
        if self._copy_gbs is None:
            src = torch.empty(1 << 31, dtype=torch.uint8, device="cuda").random_()
            dst = torch.empty_like(src)
            ms = self.time({"copy": lambda i: dst.copy_(src)}, 1)["copy"]
            self._copy_gbs = 2 * src.numel() / ms / 1e6
            print(f"copy of 2 GiB: {self._copy_gbs:.0f} GB/s read + write")
        return self._copy_gbs

    def row(self, family, case, times, ours="millrace", flops=None, num_bytes=None,
            peak="bf16", **more):
        """Prints one line: time, rate, share of the limit, ratio to the best peer."""
        ms = times[ours]
        line = {"family": family, "case": case, "ms": {k: round(v, 5) for k, v in times.items()}}
        text = f"{family:18} {case:44} {ms:9.4f} ms"
        if flops:
            line["tflops"] = flops / ms / 1e9
            line["share"] = line["tflops"] / PEAK_TFLOPS[peak]
            text += f" {line['tflops']:7.1f} TFLOP/s {line['share']:6.1%} of {peak} peak"
        if num_bytes:
            line["gbs"] = num_bytes / ms / 1e6
            line["share"] = line["gbs"] / self.copy_gbs()
            text += f" {line['gbs']:7.0f} GB/s {line['share']:6.1%} of copy"
        for name, peer_ms in times.items():
            if name != ours:
                line.setdefault("ratio", {})[name] = peer_ms / ms
                text += f"  {peer_ms / ms:5.2f}x {name}"
        for key, value in more.items():
            if value is None:
                continue  # Not measured here.
            line[key] = value
            text += f"  {key} {value:.2e}" if isinstance(value, float) else f"  {key} {value}"
        print(text, flush=True)
        self.rows.append(line)

    def save(self):
        if self._out:
            about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                     "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
            pathlib.Path(self._out).write_text(
                json.dumps({"about": about, "rows": self.rows}, indent=1))
