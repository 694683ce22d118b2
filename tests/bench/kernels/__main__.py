"""Times the GPU kernels beside PyTorch's, on the GPU of this machine.

    python3 tests/bench/kernels [--library PATH] [--json FILE] [--quick] [FAMILY ...]

Each family first checks its results, then prints time, rate, share of the limit and the
ratio to the peers (above 1: ours is faster). Needs PyTorch with CUDA.
"""

import argparse
import importlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

HERE = pathlib.Path(__file__).resolve().parent
NOT_FAMILIES = {"harness", "__main__"}


def main():
    families = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in NOT_FAMILIES)
    parser = argparse.ArgumentParser(prog="tests/bench/kernels", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY",
                        help="one of " + ", ".join(families) + "; none: all")
    parser.add_argument("--library", default="build-test/kernels/libmillrace_kernels.so")
    parser.add_argument("--json", help="write the rows there")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    args = parser.parse_args()
    unknown = set(args.families) - set(families)
    if unknown:
        parser.error(f"no family {', '.join(sorted(unknown))}; there are {', '.join(families)}")
    if not pathlib.Path(args.library).exists():
        parser.error(f"no {args.library}; build it with scripts/build test")
    import torch  # Only now: a usage error needs no PyTorch.
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU on this machine")
    from harness import Bench, Library

    bench = Bench(Library(pathlib.Path(args.library).resolve()), args.quick, args.json)
    failed = False
    for family in args.families or families:
        failed |= bool(importlib.import_module(family).run(bench))
    bench.save()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
