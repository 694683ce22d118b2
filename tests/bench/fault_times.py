#!/usr/bin/env python3
"""What do faults and checkpoints cost on GPUs? Three jobs of random tokens, bf16, ZeRO 1:

1B dims, trained to the end twice. The second time there are copies in memory every 5 steps, which
training waits for, and nothing may be taken for hanging in 22 steps; then a worker is lost to kill
-9 after every sixth step. Prints where the time went each time, and whether losses and gradient
norms of all steps, also of those that were trained again, equal the first job's to the last bit;
exits with 1 if they do not.

8B dims with a checkpoint after step 30 of 40. Prints the median step, how long training waited,
the steps after the checkpoint, and the stall that the plan predicted for them. On one GPU it has
10 of its 32 layers and two micro-batches, so that the state is downloaded about as long as a step.

1B dims without any fault, by turns with all that fault tolerance does between checkpoints (copies
in memory every 40 steps, comparisons of replicas every 10, standby processes) and with none of it.
Prints the mean step of each.

    tests/bench/fault_times.py MILLRACE [--job 1b|8b|overhead] [--gpus 1|2|4|8] [--kills 3]
                               [--profile FILE] [--folder DIR]

The 8B checkpoint has 96 GB, on one GPU 39 GB, as has its copy in host memory. It goes to /dev/shm
where both fit, else to DIR (this machine's temporary folder).
"""

import argparse
import json
import os
import pathlib
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = """
name: {name}
model: {{family: llama, vocab_size: 128256, hidden: {hidden}, layers: {layers}, heads: 32,
        kv_heads: 8, ffn_hidden: {ffn}, sequence_length: 8192, rope_theta: 500000}}
data: {{synthetic: true}}
training:
  steps: {steps}
  global_batch: {batch}
  seed: 1
  precision: bf16
  deterministic: {deterministic}
  optimizer: {{learning_rate: 3e-4, min_learning_rate: 3e-5, warmup_steps: 10}}
resources: {{backend: cuda, devices_per_agent: {gpus}}}
layout: {{data: {gpus}, zero: 1, micro_batch: {micro_batch}}}
{rest}
output: {{directory: "{folder}/runs"}}
profile: {profile}
"""


class Run:
    def __init__(self, arguments, folder, name, **settings):
        (folder / f"{name}.yaml").write_text(JOB.format(
            name=name, folder=folder, gpus=arguments.gpus, profile=arguments.profile,
            **{"deterministic": "false", **settings}))
        self.latest = folder / f"runs/{name}-latest"
        self.log = folder / f"{name}.log"
        self.process = subprocess.Popen(
            [arguments.millrace, "run", "--devices", str(arguments.gpus),
             folder / f"{name}.yaml"], cwd=ROOT, stdout=open(self.log, "w"),
            stderr=subprocess.STDOUT)

    def lines(self, name):
        path = self.latest / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def events(self, kind):
        return [line for line in self.lines("events.jsonl") if line["event"] == kind]

    def logs(self):
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
                       for path in sorted(self.latest.glob("logs/*.log")))

    def wait_for(self, what, condition, patience=150):
        """The time when it became true."""
        deadline = time.monotonic() + patience
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                sys.exit(f"no {what}:\n{self.log.read_text()[-3000:]}\n{self.logs()}")
            time.sleep(0.004)
        return time.monotonic()

    def finish(self):
        """The time when it said that it had finished. Returns once its processes have ended."""
        finished_s = self.wait_for("end", lambda: self.events("finished"))
        if self.process.wait(60) != 0:
            sys.exit(f"it failed:\n{self.log.read_text()[-3000:]}")
        return finished_s

    def step(self, generation=None):
        return max((line["step"] for line in self.lines("metrics.jsonl")
                    if generation in (None, line["generation"])), default=0)

    def workers(self):
        """The process ids of the workers, by number."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                waits = ("--standby-fd" in words and
                         (entry / "comm").read_text().strip() != "millrace-worker")
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue  # It has ended.
            if parent == self.process.pid and "worker" in words[1:2] and not waits:
                found[int(words[words.index("--worker") + 1])] = int(entry.name)
        return found


class Ending:
    """Waits beside the caller until a process has ended, its GPU's memory given back."""

    def __init__(self, pid):
        self.fd = os.pidfd_open(pid)
        self.ended_s = None
        self.thread = threading.Thread(target=self.wait, daemon=True)
        self.thread.start()

    def wait(self):
        select.select([self.fd], [], [])
        self.ended_s = time.monotonic()
        os.close(self.fd)


FIRST_KILL, STEPS_BETWEEN_KILLS = 22, 6


def train_1b(arguments, folder):
    settings = {"hidden": 2048, "layers": 16, "ffn": 8192, "deterministic": "true",
                "steps": FIRST_KILL + STEPS_BETWEEN_KILLS * arguments.kills,
                "batch": 4 * arguments.gpus, "micro_batch": 4}
    rest = "checkpoint: {{at_end: false}}\nfault: {{replica_interval_steps: {}, leave_out_ms: 0}}"
    started_s = time.monotonic()
    whole = Run(arguments, folder, "b1_whole", rest=rest.format(0), **settings)
    first_s = whole.wait_for("first step", lambda: whole.step() > 0)
    finished_s = whole.finish()
    print(f"1B undisturbed: first step reported after {first_s - started_s:.1f} s, finished after "
          f"{finished_s - started_s:.1f} s, ended {time.monotonic() - finished_s:.1f} s later",
          flush=True)
    run = Run(arguments, folder, "b1", rest=rest.format(5), **settings)
    run.wait_for(f"step {FIRST_KILL}", lambda: run.step() >= FIRST_KILL)
    alarms = [event for event in run.lines("events.jsonl")
              if event["event"] in ("generation_failed", "worker_killed", "worker_died")]
    print(f"1B: {len(alarms)} alarms in {FIRST_KILL} steps without a fault {alarms}; median step "
          f"{statistics.median(line['step_time_s'] for line in run.lines('metrics.jsonl')):.3f} s",
          flush=True)
    times = [kill_worker(run, i, i % arguments.gpus) for i in range(arguments.kills)]
    run.finish()
    print(f"1B: in training again after {statistics.median(times):.2f} s in the median, "
          f"{max(times):.2f} s at most")
    for line in re.findall(r".*(?:ended in|ready in|trainer made).*", run.logs()):
        print("    " + line)
    compare(whole, run)


def kill_worker(run, i, victim):
    """Kills it for the `i`th time; returns the seconds until training went on."""
    target = FIRST_KILL + STEPS_BETWEEN_KILLS * i
    run.wait_for(f"step {target}", lambda: run.step() >= target)
    generation = run.events("training")[-1]["generation"]
    time.sleep(0.1)
    pid = run.workers()[victim]
    ending = Ending(pid)
    os.kill(pid, signal.SIGKILL)
    killed_s = time.monotonic()
    died_s = run.wait_for("death", lambda: len(run.events("worker_died")) > i)
    began_s = run.wait_for("generation", lambda: run.events("generation_started")[-1]
                           ["generation"] > generation)
    training_s = run.wait_for("training", lambda: run.events("training")[-1]["generation"] >
                              generation)
    again = run.events("training")[-1]
    step_s = run.wait_for("first step", lambda: run.step(again["generation"]))
    ending.thread.join()
    print(f"kill {i + 1} (worker {victim}) after step {run.step(generation)}: noticed "
          f"{died_s - killed_s:.2f} s, process ended {ending.ended_s - killed_s:.2f} s, "
          f"new generation {began_s - killed_s:.2f} s, in training {training_s - killed_s:.2f} s, "
          f"first step reported {step_s - killed_s:.2f} s, from step {again['step']}\n"
          f"    {run.events('restored')[-1]['detail']}", flush=True)
    return training_s - killed_s


def compare(whole, run):
    """Exits if a step is missing or another than in the undisturbed job."""
    expected = {line["step"]: (line["loss"], line["grad_norm"])
                for line in whole.lines("metrics.jsonl")}
    trained = [(line["step"], (line["loss"], line["grad_norm"]))
               for line in run.lines("metrics.jsonl")]
    other = [step for step, numbers in trained if numbers != expected[step]]
    missing = sorted(set(expected) - {step for step, _ in trained})
    worst = max(abs(numbers[0] - expected[step][0]) for step, numbers in trained)
    print(f"1B: losses and gradient norms equal to the last bit in {len(trained) - len(other)} of "
          f"{len(trained)} trained steps (losses within {worst:.1e}); {len(missing)} missing")
    if other or missing:
        sys.exit(f"steps with other numbers {other}, missing {missing}")


def train_8b(arguments, folder):
    layers, checkpoint_bytes = (10, 39e9) if arguments.gpus == 1 else (32, 96e9)
    memory = pathlib.Path("/proc/meminfo").read_text()
    available = int(re.search(r"MemAvailable: +(\d+)", memory)[1]) * 1024
    room = min(shutil.disk_usage("/dev/shm").free, available - checkpoint_bytes - 14e9)
    target = folder / "checkpoints"
    if room > checkpoint_bytes + 9e9:
        target = pathlib.Path("/dev/shm/fault_times")
    run = Run(arguments, folder, "b8", hidden=4096, layers=layers, ffn=14336, steps=40,
              batch=max(2, arguments.gpus), micro_batch=1,
              rest="checkpoint: {interval_steps: 30, keep: 1, at_end: false, "
                   f'directory: "{target}", resume: none}}')
    try:
        run.wait_for("step 40", lambda: run.step() >= 40)
        times = {line["step"]: line["step_time_s"] for line in run.lines("metrics.jsonl")}
        median = statistics.median(list(times.values())[4:])
        more = sum(times[step] - median for step in (31, 32))
        print(f"8B: median step {median:.4f} s; steps 30 to 34: " +
              ", ".join(f"{times[step]:.4f}" for step in range(30, 35)))
        print(f"8B: the two steps after the checkpoint take {1e3 * more:.1f} ms more, "
              f"{100 * more / (50 * median):.3f} % of 50 steps; {target}")
        snapshots = json.loads((run.latest / "plan.json").read_text()).get("snapshots")
        if snapshots:
            stall = snapshots["stall_s"]
            print(f"8B: predicted stall {1e3 * stall:.1f} ms, "
                  f"{100 * stall / (50 * median):.3f} % of 50 steps, with "
                  f"{snapshots['staged_bytes'] / 2**30:.1f} GiB a GPU staged")
        run.wait_for("end", lambda: run.events("finished"))
        for event in run.events("checkpoint_committed") + run.events("planned"):
            print(f"    {event}")
        for rank in json.loads((run.latest / "time.json").read_text())["ranks"]:
            print(f"    {rank}")
    finally:
        run.process.kill()
        shutil.rmtree(target, ignore_errors=True)


def train_without_faults(arguments, folder):
    settings = {
        "none": "replica_interval_steps: 0, replica_check_steps: 0, standby_workers: never",
        "all": "replica_interval_steps: 40, replica_check_steps: 10, standby_workers: always"}
    means = {name: [] for name in settings}
    for i, name in enumerate(["none", "all", "all", "none"]):
        run = Run(arguments, folder, f"overhead{i}", hidden=2048, layers=16, ffn=8192, steps=91,
                  batch=4 * arguments.gpus, micro_batch=4,
                  rest=f"checkpoint: {{at_end: false}}\nfault: {{{settings[name]}}}")
        run.finish()
        times = [line["step_time_s"] for line in run.lines("metrics.jsonl") if line["step"] > 11]
        means[name].append(statistics.mean(times))
        print(f"{name}: mean step {1e3 * means[name][-1]:.2f} ms, median "
              f"{1e3 * statistics.median(times):.2f} ms, of {len(times)} steps", flush=True)
    none, everything = (statistics.mean(means[name]) for name in ("none", "all"))
    print(f"without faults: all of it costs {100 * (everything / none - 1):+.2f} % of the step")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millrace", type=pathlib.Path)
    parser.add_argument("--job", choices=["1b", "8b", "overhead"], help="this one alone")
    parser.add_argument("--gpus", type=int, choices=[1, 2, 4, 8], default=2)
    parser.add_argument("--kills", type=int, default=3, help="of the 1B job")
    parser.add_argument("--profile", default=ROOT / "configs/hardware/h200-sxm.yaml")
    parser.add_argument("--folder", type=pathlib.Path, help="for all that is written")
    arguments = parser.parse_args()
    if arguments.kills < 1:
        parser.error("--kills: expected 1 or more")
    arguments.millrace = arguments.millrace.resolve()
    folder = pathlib.Path(arguments.folder or tempfile.mkdtemp(prefix="fault_times-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name, train in {"1b": train_1b, "8b": train_8b,
                        "overhead": train_without_faults}.items():
        if arguments.job in (None, name):
            train(arguments, folder)


if __name__ == "__main__":
    main()
