"""Goal: a whole job trains on this machine's GPUs as it does on the CPU: any layout gives
the CPU's losses, uneven replicas change none, a killed worker costs nothing but time, steps that
are no numbers are named, a Ctrl-C ends it well, and every run leaves its report. Method:
`millrace run` with a small model on real text.

    gpu_job_test.py MILLRACE [--gpus N] [--job quickstart [--text GLOB ...]] [unittest's options]

Uses as many GPUs as there are, N at most. Plans come from a made-up profile, since it is not
the planner that is tested, and measuring takes longer than all of this. The job `quickstart` has
the model and the recipe of configs/quickstart.yaml and is compared over its whole schedule, from
the warm-up to the end of the decay. Text is this tree's, unless patterns of other files are given.

Over a whole schedule training multiplies every rounding, so a bar on single losses says little. In
bf16 the quickstart is judged beside what the choice of the seed does: see assert_like_a_seed().
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS = 3

parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("millrace", type=pathlib.Path)
parser.add_argument("--gpus", type=int, default=8)
parser.add_argument("--job", choices=["small", "quickstart"], default="small")
parser.add_argument("--text", metavar="GLOB", action="append")
OPTIONS, REST = parser.parse_known_args()


def quickstart_recipe():
    """The section training: numbers and words as they stand there."""
    text = (ROOT / "configs/quickstart.yaml").read_text()
    training = re.search(r"^training:\n((?:[ #].*\n|\n)*)", text, re.MULTILINE)[1]
    optimizer = dict(re.findall(r"^    (\w+): *([^\s#]+)", training, re.MULTILINE))
    found = dict(re.findall(r"^  (\w+): *([^\s#]+)", training, re.MULTILINE))
    return {"steps": int(found["steps"]), "global_batch": int(found["global_batch"]),
            "seed": int(found["seed"]), "optimizer": optimizer}


MODELS = {
    "small": {"vocab_size": 512, "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2,
              "ffn_hidden": 512, "sequence_length": 128},
    "quickstart": {"vocab_size": 4096, "hidden": 256, "layers": 6, "heads": 8, "kv_heads": 4,
                   "ffn_hidden": 704, "sequence_length": 256},
}
RECIPES = {
    # Slow enough that a rounding stays one: at 1e-3 a spike of the loss makes ten times as much
    # of it.
    "small": {"steps": 100, "global_batch": 8, "seed": 5,
              "optimizer": {"learning_rate": 3e-4, "warmup_steps": 50}},
    "quickstart": quickstart_recipe(),
}
STEPS = RECIPES[OPTIONS.job]["steps"]
MODEL = MODELS[OPTIONS.job]
RECIPE = RECIPES[OPTIONS.job]

JOB = """
name: {name}
model: {model}
data: {{text: ["{text}"], max_bytes: 20 MiB, validation_fraction: 0.01,
       cache_directory: {folder}/cache}}
training:
  steps: {steps}
  global_batch: {batch}
  seed: {seed}
  precision: {precision}
  deterministic: {deterministic}
  validation_interval_steps: 50
  validation_steps: 2
  optimizer: {optimizer}
resources: {{backend: {backend}, devices_per_agent: {gpus}}}
layout: {{{layout}}}
checkpoint: {{interval_steps: 20}}
output: {{directory: {folder}/runs}}
profile: {profile}
"""

PROFILE = """
name: made up
provenance: {{machine: made-up, description: a machine of round figures, version: 0.1.0,
             date: 2026-01-01T00:00:00Z, num_ranks: 8, threads_per_device: 1}}
precision: {precision}
ranks_per_host: {ranks_per_host}
device_memory_bytes: 100000000000
launch_overhead_s: 1e-6
compute_contention: {contention}
gemms:
{gemms}
attention:
  - {{backward: false, num_sequences: 1, sequence_length: {sequence_length}, num_heads: {heads},
     num_kv_heads: {kv_heads}, head_dim: {head_dim}, seconds: 1e-6}}
  - {{backward: true, num_sequences: 1, sequence_length: {sequence_length}, num_heads: {heads},
     num_kv_heads: {kv_heads}, head_dim: {head_dim}, seconds: 2e-6}}
cross_entropy:
  - {{kind: linear_cross_entropy, num_tokens: {sequence_length}, hidden: {hidden},
     vocab_rows: {vocab_size}, seconds: 1e-5}}
bandwidth:
  - {{kind: add, bytes: 1000000, seconds: 1e-6}}
communication:
{communication}
"""


def write_profile(folder, precision, ranks_per_host=8, model=MODEL):
    flags = [("false", "false"), ("false", "true"), ("true", "false"), ("true", "true")]
    gemms = [f"  - {{m: 256, n: 256, k: 256, trans_a: {a}, trans_b: {b}, seconds: 1e-6}}"
             for a, b in flags]
    communication = [
        f"  - {{kind: {kind}, group_size: {size}, bytes: {bytes}, seconds: {1e-5 + bytes / 1e11}}}"
        for kind, sizes in [("all_gather", [2, 4, 8]), ("reduce_scatter", [2, 4, 8]),
                            ("all_reduce", [2, 4, 8]), ("send", [2])]
        for size in sizes for bytes in (1000, 10000000)]
    path = folder / f"profile-{precision}.yaml"
    path.write_text(PROFILE.format(precision=precision, ranks_per_host=ranks_per_host,
                                   contention=[1] * ranks_per_host, gemms="\n".join(gemms),
                                   communication="\n".join(communication),
                                   head_dim=model["hidden"] // model["heads"], **model))
    return path


def count_gpus():
    result = subprocess.run([OPTIONS.millrace, "devices", "--json"], capture_output=True, text=True,
                            check=True)
    cuda = json.loads(result.stdout)["cuda"]
    if not cuda["devices"]:
        sys.exit(f"gpu_job_test.py: needs a GPU: {cuda['error']}")
    return min(OPTIONS.gpus, len(cuda["devices"]))


class Run:
    """A job under way, and what it leaves."""

    def __init__(self, folder, name, gpus=1, precision="bf16", backend="cuda", layout="",
                 steps=STEPS, seed=None, optimizer=RECIPE["optimizer"],
                 batch=RECIPE["global_batch"], deterministic=False):
        self.latest = folder / "runs" / f"{name}-latest"
        job = folder / f"{name}.yaml"
        job.write_text(JOB.format(name=name, folder=folder, steps=steps, gpus=gpus,
                                  seed=RECIPE["seed"] if seed is None else seed,
                                  text='", "'.join(OPTIONS.text or [f"{folder}/text/*"]),
                                  precision=precision, backend=backend, layout=layout,
                                  model=json.dumps(MODEL), batch=batch,
                                  deterministic=str(deterministic).lower(),
                                  optimizer=json.dumps(optimizer).replace('"', ""),
                                  profile=write_profile(folder, precision)))
        self.log = folder / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([OPTIONS.millrace, "run", job], stdout=log, stderr=log,
                                            cwd=ROOT)

    def wait(self, seconds=600):
        """The exit code; what was said is in `output`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode

    @property
    def output(self):
        return self.log.read_text(errors="replace") + "".join(
            f"\n--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.latest.glob("logs/worker-*.log")))

    def lines(self, name):
        path = self.latest / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def losses(self):
        """By step; of a step that was trained twice, the last one's."""
        return {line["step"]: line["loss"] for line in self.lines("metrics.jsonl")}

    def gradient_norms(self):
        return {line["step"]: line["grad_norm"] for line in self.lines("metrics.jsonl")}

    def validation(self):
        return {line["step"]: line["validation_loss"] for line in self.lines("metrics.jsonl")
                if "validation_loss" in line}

    def result(self):
        return json.loads((self.latest / "result.json").read_text())

    def workers(self):
        """{rank: process id}"""
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().decode().split("\0")
                waits = ("--standby-fd" in words and
                         (folder / "comm").read_text().strip() != "millrace-worker")
                parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue  # It has ended.
            if int(parent) == self.process.pid and "worker" in words[1:2] and not waits:
                found[int(words[words.index("--worker") + 1])] = int(folder.name)
        return found

    def wait_for_step(self, step, seconds=120):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            if max(self.losses(), default=0) >= step:
                return
            time.sleep(0.02)
        raise AssertionError(f"no step {step}:\n{self.output}")


def layouts(gpus):
    """(name, GPUs, layout) of all that so many GPUs can do."""
    yield "one", 1, f"micro_batch: {RECIPE['global_batch']}"
    if gpus >= 2:
        yield "data2", 2, "data: 2, zero: 1"
        yield "tensor2", 2, "tensor: 2"
        yield "pipeline2", 2, "pipeline: 2, micro_batch: 2"
    if gpus >= 4:
        yield "data4", 4, "data: 4, zero: 1"
        yield "data4zero0", 4, "data: 4, zero: 0"
        yield "pipeline4", 4, "pipeline: 4, micro_batch: 1"
        yield "tensor2data2", 4, "tensor: 2, data: 2"
        yield "pipeline2tensor2", 4, "pipeline: 2, tensor: 2, micro_batch: 2"


def where_it_parts(apart, norms):
    """By ten steps: how far losses are apart at most, and the largest gradient norm. A
    difference that grows at a peak of the norm is a rounding; one from the first steps on
    is not."""
    rows = []
    for first in range(1, STEPS + 1, 10):
        steps = range(first, min(first + 10, STEPS + 1))
        rows.append(f"  steps {first:3} to {steps[-1]:3}: {max(apart[s] for s in steps):.1e}, "
                    f"gradient norm up to {max(norms[s] for s in steps):.2f}")
    return "\n".join(rows)


def tenths(losses):
    """Mean losses of the schedule's tenths, in order."""
    edges = [1 + STEPS * i // 10 for i in range(11)]
    return [statistics.mean(losses[step] for step in range(begin, end))
            for begin, end in zip(edges, edges[1:])]


class GpuJobTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.gpus = count_gpus()
        cls._reference = None
        cls._spread = None
        (cls.folder / "text").mkdir()
        for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("kernels/*.cu")]:
            shutil.copy(path, cls.folder / "text")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def reference(self):
        """Losses on the CPU, in fp32."""
        cls = type(self)
        if cls._reference is None:
            run = Run(self.folder, "cpu", precision="fp32", backend="cpu",
                      layout=f"micro_batch: {RECIPE['global_batch']}")
            self.assertEqual(run.wait(), 0, run.output)
            cls._reference = run.losses(), run.validation()
        return cls._reference

    def spread(self):
        """How far fp32 losses of different seeds are apart: their standard deviation in each
        tenth of the schedule, and the root of the mean square of these."""
        cls = type(self)
        if cls._spread is None:
            seeds = [tenths(self.reference()[0])]
            for i in range(1, SEEDS):
                run = Run(self.folder, f"seed{i}", precision="fp32", seed=RECIPE["seed"] + i,
                          layout=f"micro_batch: {RECIPE['global_batch']}")
                self.assert_finished(run)
                seeds.append(tenths(run.losses()))
            by_tenth = [statistics.stdev(means) for means in zip(*seeds)]
            cls._spread = by_tenth, statistics.mean(s * s for s in by_tenth) ** 0.5
            print(f"fp32 of {SEEDS} seeds, by tenths of the {STEPS} steps: " + "; ".join(
                f"{' '.join(f'{mean:.3f}' for mean in means)} (+-{deviation:.3f})"
                for *means, deviation in zip(*seeds, by_tenth)), flush=True)
        return cls._spread

    def assert_like_a_seed(self, name, losses):
        """Bar: in every tenth of the schedule, bf16 changes the mean loss by less than half of
        what another seed does (the standard deviation over seeds, pooled over the tenths, since
        one of three values is rough). Batches of a seed are the same in both precisions, so that
        their differences, which make up part of the seeds' spread, cancel out here."""
        by_tenth, pooled = self.spread()
        expected, found = tenths(self.reference()[0]), tenths(losses)
        apart = [abs(f - e) for f, e in zip(found, expected)]
        print(f"bf16 {name:17} mean loss by tenths {' '.join(f'{a:.1e}' for a in apart)} from "
              f"fp32's, at most {max(apart) / pooled:.3f} of the seeds' {pooled:.3f} (bar 0.5); "
              f"last tenth {found[-1]:.4f}, fp32 {expected[-1]:.4f} +-{by_tenth[-1]:.4f}",
              flush=True)
        self.assertLess(max(apart), 0.5 * pooled)

    def assert_finished(self, run):
        self.assertEqual(run.wait(), 0, run.output)
        self.assertEqual(run.result()["status"], "finished", run.output)
        self.assertEqual(sorted(run.losses()), list(range(1, STEPS + 1)))
        report = run.latest / "report.html"
        self.assertTrue(report.exists(), run.output)
        self.assertIn("</html>", report.read_text()[-100:])

    def assert_like_the_cpu(self, precision, tolerance):
        losses, validation = self.reference()
        for name, gpus, layout in layouts(self.gpus):
            with self.subTest(precision=precision, layout=name):
                run = Run(self.folder, f"{name}-{precision}", gpus, precision, layout=layout)
                self.assert_finished(run)
                found = run.losses()
                apart = {step: abs(found[step] - losses[step])
                         for step in range(1, STEPS + 1)}
                worst = max(apart, key=apart.get)
                times = sorted(line["step_time_s"] for line in run.lines("metrics.jsonl"))
                print(f"{precision} {name:17} {gpus} GPUs: losses within {apart[worst]:.1e} of the "
                      f"CPU's (step {worst}), {max(apart[s] for s in range(1, 11)):.1e} in the "
                      f"first ten steps, {1e3 * times[len(times) // 2]:.2f} ms a step", flush=True)
                if tolerance is None:
                    self.assert_like_a_seed(name, found)
                else:
                    self.assertLess(apart[worst], tolerance,
                                    "\n" + where_it_parts(apart, run.gradient_norms()))
                found = run.validation()
                for step, loss in validation.items():
                    self.assertIn(step, found)
                    # Which samples are validated with depends on the layout.
                    if gpus == 1 and tolerance is not None:
                        self.assertAlmostEqual(loss, found[step], delta=tolerance)
                measured = json.loads((run.latest / "timelines/measured.json").read_text())
                self.assertEqual(len(measured["ranks"]), gpus)

    # The bars of single losses; of the quickstart's in bf16 there is another.
    def test_bf16_gives_the_cpus_losses(self):
        self.assert_like_the_cpu("bf16", None if OPTIONS.job == "quickstart" else 2e-3)

    def test_fp32_gives_the_cpus_losses(self):
        self.assert_like_the_cpu("fp32", 1e-4)

    def test_uneven_replicas_give_the_losses_of_one_gpu(self):
        if self.gpus < 2:
            self.skipTest("needs two GPUs")
        losses = {}
        for name, gpus, layout in (("odd1", 1, "micro_batch: 1"),
                                   ("odd2", 2, "data: 2, micro_batch: 1, zero: 0"),
                                   ("odd2zero1", 2, "data: 2, micro_batch: 1, zero: 1")):
            run = Run(self.folder, name, gpus, layout=layout, batch=9)
            self.assert_finished(run)
            if gpus > 1:
                self.assertIn("5 or 4 micro-batches of 1", run.output)
            losses[name] = run.losses()
            apart = max(abs(losses[name][step] - losses["odd1"][step]) for step in losses["odd1"])
            print(f"{name}: nine sequences, losses within {apart:.1e} of one GPU's", flush=True)
            self.assertLess(apart, 2e-3)

    def test_a_killed_worker_costs_nothing_but_time(self):
        steps = 1500  # A few seconds, to be killed in the middle of.
        whole = Run(self.folder, "whole", self.gpus, steps=steps, deterministic=True)
        self.assertEqual(whole.wait(), 0, whole.output)
        run = Run(self.folder, "killed", self.gpus, steps=steps, deterministic=True)
        run.wait_for_step(50)
        victim, process = max(run.workers().items())
        os.kill(process, signal.SIGKILL)
        killed_at = time.monotonic()
        trainings = []
        while len(trainings) < 2:
            trainings = [line for line in run.lines("events.jsonl") if line["event"] == "training"]
            self.assertIsNone(run.process.poll(), run.output)
            self.assertLess(time.monotonic() - killed_at, 60, run.output)
            time.sleep(0.02)
        recovery = time.monotonic() - killed_at
        self.assertEqual(run.wait(), 0, run.output)
        losses, expected = run.losses(), whole.losses()
        self.assertEqual(sorted(losses), sorted(expected))
        worst = max(abs(losses[step] - expected[step]) for step in expected)
        print(f"rank {victim} of {self.gpus} killed: in training again after {recovery:.2f} s, "
              f"losses within {worst:.1e} of the uninterrupted run's", flush=True)
        self.assertLess(recovery, 15)
        self.assertEqual(worst, 0)
        self.assertTrue((run.latest / "report.html").exists())

    def test_steps_that_are_no_numbers_are_skipped_and_end_the_job(self):
        run = Run(self.folder, "ruined", self.gpus,
                  optimizer={"learning_rate": 1e30, "warmup_steps": 0})
        self.assertEqual(run.wait(120), 1, run.output)
        self.assertEqual(run.result()["status"], "failed", run.output)
        self.assertIn("fault.max_skipped_steps = 10", run.result()["reason"])
        bad = [line for line in run.lines("events.jsonl") if line["event"] == "not_finite"]
        first = bad[0]["step"]
        self.assertEqual([line["step"] for line in bad][:11], list(range(first, first + 11)))
        for line in bad:
            self.assertTrue("it began in " in line["detail"] or
                            "some parameters are not numbers" in line["detail"], line)

    def test_ctrl_c_ends_well(self):
        run = Run(self.folder, "stopped", self.gpus, steps=100000)
        run.wait_for_step(30)
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(60), 0, run.output)
        self.assertEqual(run.result()["status"], "stopped")
        steps = run.result()["steps"]
        self.assertEqual(steps, max(run.losses()), "a step without its result")
        self.assertTrue((run.latest / f"checkpoints/step-{steps:08d}/manifest.json").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + REST, verbosity=2)
