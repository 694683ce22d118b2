"""The portable way of bf16 attention against FlashAttention-2 through PyTorch."""

from torch.nn.attention import SDPBackend, sdpa_kernel

from attention import HIDDEN, TOKENS, Case

LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]


class Portable:
    """The library with the portable way in the place of the device's own."""

    def __init__(self, library):
        self._library = library

    def function(self, name):
        return self._library.function(name.replace("bf16", "bf16_portable"))

    def number(self, name, *structs):
        return self._library.number(name.replace("bf16", "bf16_portable"), *structs)


def run(bench):
    failed = False
    library = Portable(bench.library)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for d in (128, 64):
            for causal in (True, False):
                for s in LENGTHS[2:5:2] if bench.quick else LENGTHS:
                    case = Case(library, TOKENS // s, s, HIDDEN // d, d, causal)
                    name = f"hd{d} {'causal' if causal else 'full'} S {s}"
                    times = bench.time({"millrace": case.forward, "FA2": case.peer_forward},
                                       case.n, graph=s <= 1024)
                    case.prepare_peer_backward()
                    case.forward(0)
                    case.backward(0)
                    ours, theirs = (case.errors() if s <= 2048 else ((0, 0), (0, 0)))
                    failed |= ours[0] > 1.05 * theirs[0] or ours[1] > 1.05 * theirs[1]
                    bench.row("portable forward", name, times, flops=case.flops,
                              error=ours[0], error_fa2=theirs[0])
                    times = bench.time({"millrace": case.backward, "FA2": case.peer_backward},
                                       case.n, graph=s <= 1024)
                    bench.row("portable backward", name, times, flops=2.5 * case.flops,
                              error=ours[1], error_fa2=theirs[1])
    return failed
