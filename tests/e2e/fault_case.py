"""One try of a row of the table of faults (fault_matrix.py): what its seed chooses, what it
measures, and what must come out.
"""

import glob
import os
import signal
import subprocess
import time

from fault_jobs import Job, check, send
from hosts_test import TEXT

# A test may run on a busy machine: only far more than the bar fails it.
PATIENCE = 10
DATA = "{data: 2, tensor: 1, pipeline: 1, zero: 0}"
LAYOUTS = [DATA, "{data: 2, tensor: 1, pipeline: 1, zero: 1}",
           "{pipeline: 2, data: 1, tensor: 1, zero: 0}",
           "{tensor: 2, data: 1, pipeline: 1, zero: 0}"]
FROM_MEMORY_OR_DISK = ["", "replica_interval_steps: 0, ", "replica_interval_steps: 3, "]
STANDBY = ["", "standby_workers: always"]


class SkippedRow(Exception):
    """What a row needs is not on this machine."""


class Case:
    """One try: what the seed chooses, and what was measured."""

    def __init__(self, matrix, folder, random):
        self.matrix = matrix
        self.millrace = matrix.millrace
        self.folder = folder
        self.random = random
        self.figures = {}  # {"noticed": seconds, "again": seconds, "lost": steps}
        self.jobs = []

    def job(self, folder="", **keys):
        """A job in a folder of this case, which is ended with it."""
        job = Job(self.millrace, folder or self.folder, self.matrix.folder + "/cache", **keys)
        self.jobs.append(job)
        return job

    def note(self, name, value, bar=None):
        """Keeps the figure. One far above its bar fails."""
        self.figures[name] = value
        if bar is not None:
            check(value <= PATIENCE * bar, f"{name} took {value:.1f} s; the bar is {bar} s")

    def early_moment(self, job, first=20, last=120):
        """Waits until a step of the seed's choice, and a part of the next."""
        job.await_step(self.random.randrange(first, last))
        time.sleep(self.random.random() * 0.02)

    def any_worker(self, job):
        workers = sorted(job.workers().items())
        check(workers, "no worker runs")
        return self.random.choice(workers)

    def check_equal(self, job, keys):
        """The finished job is bit by bit what it would have been without the fault."""
        curve, parameter_hash = self.matrix.expected(keys)
        check(not job.events("replicas_differ"), "whole replicas were taken to differ")
        check(job.result().get("parameter_hash") == parameter_hash,
              f"other parameters than without the fault: {job.tail()}")
        check(sorted(job.curve()) == sorted(curve), "steps are missing")
        for line in job.metrics():
            check((line["loss"], line["grad_norm"]) == curve[line["step"]],
                  f"another loss in step {line['step']} than without the fault")

    def check_close(self, curve, expected, first=1):
        """The losses are those without the fault, but for the order of sums."""
        check(sorted(curve) == list(range(first, max(expected) + 1)),
              f"steps are missing: {sorted(set(range(first, max(expected) + 1)) - set(curve))}")
        for step, (loss, _) in curve.items():
            check(abs(loss - expected[step][0]) <= 2e-5 * abs(expected[step][0]),
                  f"loss {loss} in step {step}, without the fault {expected[step][0]}")

    def run(self, *words, exit_code=0):
        done = subprocess.run([self.millrace, *words], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=120)
        check(done.returncode == exit_code,
              f"millrace {' '.join(words)}: exit code {done.returncode}: {done.stdout}")
        return done.stdout


def any_job(case, checkpoint="", fault=None):
    """A job whose layout, from where it recovers, and whether processes wait to replace its
    workers, the seed chooses; its keys."""
    random = case.random
    keys = dict(text=TEXT, layout=random.choice(LAYOUTS),
                fault=random.choice(FROM_MEMORY_OR_DISK) + random.choice(STANDBY)
                if fault is None else fault,
                checkpoint=checkpoint or f"interval_steps: {random.choice([10, 25, 50])}")
    job = case.job()
    job.write(**keys).start()
    return job, keys


def newest_generation(job):
    return job.metrics()[-1]["generation"]


def saved_steps(folder, whole=True):
    return sorted(path for path in glob.glob(folder + "/step-*")
                  if os.path.exists(path + "/manifest.json") == whole)


def stopped_job(case, **keys):
    """A job that was stopped in the middle, with checkpoints in case.folder/saved."""
    saved = case.folder + "/saved"
    keys = dict(dict(text=TEXT, checkpoint=f"directory: {saved}, interval_steps: 10, keep: 2"),
                **keys)
    job = case.job()
    job.write(**keys).start()
    case.early_moment(job, 25)
    send(job.process.pid, signal.SIGINT)
    job.end()
    return job, keys
