"""Goal: jobs over hosts with a GPU each go on as they do on CPUs when a host is lost or its GPU
fails twice: a spare host takes its place, or it is taken in when it comes back, with the state in
memory and the losses of the undisturbed job on one GPU, though two hosts share its batch unevenly.
Method: three hosts on this machine; the first has GPU 0, and the others, of which one trains at a
time, share GPU 1. With a single GPU all of them share it, in slices of time.

    gpu_hosts_test.py MILLRACE [--backend cuda|cpu] [unittest's options]

Needs a GPU, better two, and what hosts.py needs. `--backend cpu` tries the test itself without
GPUs.
"""

import argparse
import json
import pathlib
import re
import shutil
import signal
import sys
import time
import unittest

import hosts as hosts_module
from hosts import SKIPPED
from lost_hosts_case import FIRST, LostHostsCase

parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("--backend", choices=["cuda", "cpu"], default="cuda")
OPTIONS, sys.argv[1:] = parser.parse_known_args()
# It reads the program from the command line.
from gpu_job_test import (MODELS, OPTIONS as JOB_OPTIONS, RECIPE, REST, ROOT, count_gpus,
                          write_profile)

MODEL = MODELS["small"]
if OPTIONS.backend == "cpu":
    MODEL = {**MODEL, "hidden": 32, "layers": 2, "ffn_hidden": 64, "sequence_length": 32}

JOB = """
name: tiny
model: {model}
data: {{text: ["{private}/text/*.txt"], cache_directory: {private}/cache}}
training:
  steps: {steps}
  global_batch: {batch}
  seed: 5
  precision: {precision}
  optimizer: {optimizer}
resources: {{backend: {backend}, devices_per_agent: 1}}
layout: {layout}
checkpoint: {{at_end: false, resume: none}}
fault: {{host_timeout_ms: 3000, replica_interval_steps: 2, {fault}}}
output: {{directory: {private}/runs}}
profile: {private}/{profile}
profile_output: none
"""


class GpuHostsTest(LostHostsCase):
    millrace = str(JOB_OPTIONS.millrace)
    num_hosts = 3

    @classmethod
    def setUpClass(cls):
        cls.last_gpu = min(count_gpus() - 1, 1) if OPTIONS.backend == "cuda" else 0

    def setUp(self):
        super().setUp()
        for number in self.numbers:
            for path in ROOT.glob("docs/*.md"):
                shutil.copy(path, f"{self.hosts.folder_of(number)}/text/{path.stem}.txt")

    def environment_of(self, number):
        return {"CUDA_VISIBLE_DEVICES": "0" if number == 1 else str(self.last_gpu)}

    def write_job(self, layout, fault, steps, batch):
        precision = "bf16" if OPTIONS.backend == "cuda" else "fp32"
        for number in self.numbers:
            profile = write_profile(pathlib.Path(self.hosts.folder_of(number)), precision,
                                    ranks_per_host=1, model=MODEL)
        optimizer = json.dumps(RECIPE["optimizer"]).replace('"', "")
        with open(self.hosts.folder_of(1) + "/job.yaml", "w") as file:
            file.write(JOB.format(model=json.dumps(MODEL), private=self.hosts.private, steps=steps,
                                  batch=batch, precision=precision, optimizer=optimizer,
                                  backend=OPTIONS.backend, layout=layout, fault=fault,
                                  profile=profile.name))
        return self.hosts.private + "/job.yaml"

    def undisturbed(self, job, num_hosts):
        """Losses by step of a job that nothing happens to."""
        first, others = self.start(job, num_hosts)
        for process in (first, *others.values()):
            self.end(process)
        losses = self.curve()
        self.folder = self.newest_run()
        time.sleep(1.1)  # Run folders are named by the second.
        return losses

    def assert_like(self, losses, expected):
        self.assertEqual(sorted(losses), list(range(1, max(losses) + 1)))
        apart = {step: abs(losses[step] - expected[step]) for step in losses}
        worst = max(apart, key=apart.get)
        print(f"losses of {len(losses)} steps within {apart[worst]:.1e} of the undisturbed job's "
              f"(step {worst})", flush=True)
        # Kernels may add in any order, as between layouts.
        self.assertLess(apart[worst], 5e-3)

    def lose_host_of_agent_1(self, job, num_hosts):
        """Returns the first agent and the others once they train without that host."""
        first, others = self.start(job, num_hosts)
        self.wait_until("a new run", lambda: self.newest_run() != self.folder)
        self.wait_until("steps", lambda: self.step() > 45)
        generation = self.records("metrics.jsonl")[-1]["generation"]
        number, = (number for number in others if self.agent_of(number) == 1)
        self.kill_host(number)
        killed = time.monotonic()
        self.wait_until("training", lambda: self.records("metrics.jsonl")[-1]["generation"] >
                        generation)
        print(f"SIGKILL of a host to the next step: {time.monotonic() - killed:.2f} s", flush=True)
        others.pop(number)
        return first, others, number

    def test_a_spare_host_takes_a_lost_hosts_place(self):
        job = self.write_job("{pipeline: 1, tensor: 1, data: 1, micro_batch: 1}",
                             "spare_hosts: 0", steps=600, batch=9)
        expected = self.undisturbed(job, 1)
        job = self.write_job("{pipeline: 1, tensor: 1, data: 2, micro_batch: 1, zero: 1}",
                             "spare_hosts: 1", steps=600, batch=9)
        first, others, _ = self.lose_host_of_agent_1(job, 3)
        output = self.end(first)
        for process in others.values():
            self.end(process)
        taken, = self.events("spare_taken")
        self.assertRegex(taken["detail"], "^spare host node[23] takes the place")
        self.assertIn(taken["detail"], output)
        (detail, again), = self.restored()
        print(detail, flush=True)
        self.assertRegex(detail, "^from memory")
        self.assertLessEqual(again, 4)
        self.assert_like(self.curve(), expected)

    def test_takes_in_a_host_that_returns(self):
        job = self.write_job("{pipeline: 1, tensor: 1, micro_batch: 1, zero: 0}",
                             "take_in_hosts: always", steps=1500, batch=33)
        expected = self.undisturbed(job, 1)
        first, others, number = self.lose_host_of_agent_1(job, 2)
        others[number] = self.start_agent(number, "--join", FIRST[number])
        returned = time.monotonic()
        self.wait_until("two hosts again", lambda: len(self.events("planned")) == 3)
        step = self.step()
        self.wait_until("more steps", lambda: self.step() > step + 20)
        print(f"start of an agent to 20 steps with it: {time.monotonic() - returned:.2f} s",
              flush=True)
        first.send_signal(signal.SIGINT)
        output = self.end(first)
        for process in others.values():
            self.end(process)
        plans = [int(re.search(r"data (\d+)", event["detail"])[1])
                 for event in self.events("planned")]
        self.assertEqual(plans, [2, 1, 2])
        self.assertIn("taking them in with the state in memory", output)
        grown, = self.events("taking_in_hosts")
        restored = self.events("restored")[-1]
        self.assertGreater(restored["generation"], grown["generation"])
        print(restored["detail"], flush=True)
        self.assertRegex(restored["detail"], "^from memory .*by live state.*, 0 steps trained")
        self.assert_like(self.curve(), expected)

    def test_a_spare_host_takes_the_place_of_a_failing_gpu(self):
        job = self.write_job("{pipeline: 1, tensor: 1, data: 1, micro_batch: 1}",
                             "leave_out_ms: 600000", steps=600, batch=9)
        expected = self.undisturbed(job, 1)
        job = self.write_job("{pipeline: 1, tensor: 1, data: 2, micro_batch: 1, zero: 1}",
                             "spare_hosts: 1, leave_out_ms: 600000", steps=600, batch=9)
        first, others = self.start(job, 3)
        self.wait_until("a new run", lambda: self.newest_run() != self.folder)
        self.kill_worker_twice(1)
        died = time.monotonic()
        self.wait_until("training", lambda: len(self.events("training")) == 3)
        print(f"second SIGKILL of a worker to training on the spare host: "
              f"{time.monotonic() - died:.2f} s", flush=True)
        by_agent = {self.agent_of(number): number for number in self.numbers}
        self.end(first)
        for process in others.values():
            self.end(process)
        left_out, = self.events("device_left_out")
        self.assertEqual((left_out["rank"], left_out["host"]), (1, f"node{by_agent[1]}"))
        taken, = self.events("spare_taken")
        self.assertIn(f"spare host node{by_agent[2]} takes the place", taken["detail"])
        for detail, again in self.restored():
            self.assertRegex(detail, "^from memory")
            self.assertLessEqual(again, 4)
        self.assert_like(self.curve(), expected)


if __name__ == "__main__":
    reason = hosts_module.WhyNot()
    if reason:
        print(f"SKIPPED, nothing was tested: {reason}")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1] + REST, verbosity=2)
