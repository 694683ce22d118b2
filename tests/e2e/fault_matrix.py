"""The table of faults as real processes: docs/faults.md.

    fault_matrix.py --millrace MILLRACE [--row R]... [--without-row R]... [--seed S] [--seeds N]
                    [--keep]

Does to a job what each row says (all rows without --row), at a step, to a rank and at a moment
that the seed chooses, and compares what comes out with the job that nothing was done to: bit by
bit where the layout stays or returns, else by its losses. --seeds 20 runs seeds S to S + 19.
Ends with a table; exit code 1 if a rule was broken, and the command that repeats it is printed.
--keep leaves the folder of what failed. A row that this machine cannot run is skipped, with the
reason; if all are, the exit code is 77.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import fault_number_rows
import fault_rows
import hosts
from fault_case import Case, SkippedRow
from fault_jobs import FaultError, Job, job_text

# (number, name, the function, whether it needs hosts of hosts.py)
ROWS = [
    (1, "kill -9 a worker", fault_rows.kill_worker, False),
    (2, "second kill in recovery", fault_rows.kill_in_recovery, False),
    (3, "SIGSTOP a worker", fault_rows.stop_worker, False),
    (4, "kill the coordinator", fault_rows.kill_coordinator, False),
    (5, "cut the network", fault_rows.cut_network, True),
    (6, "host lost", fault_rows.kill_host, True),
    (7, "disk full", fault_rows.fill_disk, True),
    (8, "torn write", fault_rows.tear_checkpoint, False),
    (9, "bit flip in a checkpoint", fault_rows.flip_checkpoint, False),
    (10, "slow rank (2x)", fault_number_rows.slow_rank, False),
    (11, "restart on another size", fault_rows.change_size, False),
    (12, "gradient not a number", fault_number_rows.not_a_number, False),
    (13, "flipped weight", fault_number_rows.flip_weight, False),
    (14, "corrupt data shard", fault_number_rows.corrupt_shard, False),
    (15, "clock jumps by 1 h", fault_rows.jump_clock, False),
    (16, "mpirun killed", fault_rows.kill_mpirun, False),
    (17, "flipped weight, then a kill", fault_number_rows.flip_and_kill, False),
]


class Matrix:
    """What the cases share: the program, and what jobs come to without a fault."""

    def __init__(self, millrace, folder):
        self.millrace = os.path.realpath(millrace)
        self.folder = folder
        self._expected = {}

    def expected(self, keys):
        """(losses by step, hash of the parameters) of the job without a fault."""
        keys = {name: value for name, value in keys.items()
                if name not in ("checkpoint", "fault")}
        text = job_text(self.folder, **keys)
        if text not in self._expected:
            job = Job(self.millrace, self.folder, self.folder + "/cache")
            try:
                job.write(**keys).start().end()
                self._expected[text] = (job.curve(), job.result()["parameter_hash"])
            finally:
                job.kill_all()
        return self._expected[text]


def try_row(matrix, row, seed, keep):
    """(what was measured, "") or (what was measured, what is wrong)."""
    number, _, do, _ = row
    folder = tempfile.mkdtemp(prefix=f"millrace-fault-{number}-")
    case = Case(matrix, folder, random.Random(f"{number} {seed}"))
    wrong = ""
    try:
        do(case)
    except (FaultError, AssertionError, OSError, ValueError, KeyError, IndexError,
            subprocess.SubprocessError) as error:
        wrong = f"{type(error).__name__}: {error}"
    finally:
        for job in case.jobs:
            job.kill_all()
        if wrong and keep:
            print(f"the folder of what failed: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return case.figures, wrong


def summary(values, unit):
    if not values:
        return ""
    middle, most = statistics.median(values), max(values)
    if unit == "s":
        return f"{middle:.2f} / {most:.2f} s"
    return f"{middle:g} / {most:g}"


def print_table(results):
    print("\n| row | fault | passed | noticed, median / most | training again | steps lost | other |")
    print("|---|---|---|---|---|---|---|")
    for (number, name, _, _), tries in results:
        figures = [measured for measured, _ in tries]
        passed = sum(not wrong for _, wrong in tries)

        def column(key, unit=""):
            return summary([measured[key] for measured in figures if key in measured], unit)

        others = sorted({key for measured in figures for key in measured} -
                        {"noticed", "again", "lost"})
        rest = "; ".join(f"{key} {column(key)}" for key in others)
        print(f"| {number} | {name} | {passed} of {len(tries)} | {column('noticed', 's')} | "
              f"{column('again', 's')} | {column('lost')} | {rest} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, help="the program")
    parser.add_argument("--row", type=int, action="append", default=[],
                        choices=[row[0] for row in ROWS])
    parser.add_argument("--without-row", type=int, action="append", default=[],
                        choices=[row[0] for row in ROWS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --seed on")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    no_hosts = hosts.WhyNot()
    results = []
    num_wrong = 0
    with tempfile.TemporaryDirectory(prefix="millrace-faults-") as folder:
        matrix = Matrix(arguments.millrace, folder)
        for row in ROWS:
            number, name, _, needs_hosts = row
            if arguments.row and number not in arguments.row:
                continue
            if number in arguments.without_row:
                continue
            if needs_hosts and no_hosts:
                print(f"row {number}, {name}: SKIPPED: {no_hosts}", flush=True)
                continue
            tries = []
            for seed in range(arguments.seed, arguments.seed + arguments.seeds):
                began = time.monotonic()
                try:
                    figures, wrong = try_row(matrix, row, seed, arguments.keep)
                except SkippedRow as reason:
                    print(f"row {number}, {name}: SKIPPED: {reason}", flush=True)
                    break
                tries.append((figures, wrong))
                words = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
                print(f"row {number}, {name}, seed {seed}: {'WRONG' if wrong else 'passed'} in "
                      f"{time.monotonic() - began:.1f} s ({words})", flush=True)
                if wrong:
                    num_wrong += 1
                    print(f"  {wrong}\n  again: python3 tests/e2e/fault_matrix.py --millrace "
                          f"{arguments.millrace} --row {number} --seed {seed}", flush=True)
            if tries:
                results.append((row, tries))
    if not results:
        return hosts.SKIPPED
    print_table(results)
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
