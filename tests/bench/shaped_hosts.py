"""How true plans are over a slow network, and how good: hosts of two CPU ranks, made of
namespaces on this machine, whose links carry so many Mbit/s each way and delay each packet.
Each host has an equal share of this machine's cores for itself, as real hosts have.

    shaped_hosts.py MILLRACE SLOW_LINK [--hosts 2] [--mbit 1000] [--delay-us 500] [--steps 30]
                    [--layout "pipeline: 2, data: 2"]... [--keep FOLDER]
    shaped_hosts.py MILLRACE --gpus [GPUS] [--steps 30] [--layout "tensor: 2"]... [--keep FOLDER]

SLOW_LINK is the program of slow_link.cc: ninja -C build-test millrace slow_link, then

    tests/bench/shaped_hosts.py build-test/millrace build-test/tests/bench/slow_link

Measures a profile over the hosts, trains twelve layouts and the planner's own choice with it,
compares all losses, and prints the predicted and the measured step of each (the median
after the first five). Then two bars: predictions of the first eight layouts within 10 % each and
5 % in the median; the planner's choice within 3 % of the best of the twelve. Exits with 1 if one
is missed. With --keep the first host's run folders are copied to FOLDER at the end, for `millrace
report` and `millrace diagnose`.

With --gpus there are two hosts with one of this machine's GPUs each, or with so many, joined as
fast as the machine does it, and other layouts. Each is also trained on one host with all of these
GPUs, whose losses it must have where both are deterministic: by NCCL there too, since copy engines,
which the planner would take on one host, add in another order. The first bar alone is checked. The planner's choice of what
replicas shard within a host and among hosts comes last.

Needs what tests/e2e/hosts.py needs and /dev/net/tun. Times count only if the machine
does nothing else: its load is printed.
"""

import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from hosts import Hosts, WhyNot

# Every choice that matters is named, so that the planner adds none and no two layouts are the same.
# The first eight are those whose predictions are compared.
LAYOUTS = ("data: 4, zero: 0, data_groups: 1, micro_batch: 4",
           "data: 4, zero: 1, data_groups: 1, micro_batch: 4",
           "data: 2, tensor: 2, zero: 0, data_groups: 1, micro_batch: 8",
           "data: 2, pipeline: 2, zero: 0, data_groups: 1, micro_batch: 2",
           "tensor: 4, micro_batch: 16",
           "pipeline: 4, micro_batch: 2",
           "pipeline: 2, tensor: 2, micro_batch: 4",
           "data: 2, pipeline: 2, zero: 1, data_groups: 1, micro_batch: 4",
           "data: 4, zero: 2, data_groups: 1, micro_batch: 4",
           "data: 4, zero: 1, data_groups: 2, micro_batch: 4",
           "data: 4, zero: 2, data_groups: 2, micro_batch: 2",
           "data: 2, tensor: 2, zero: 1, data_groups: 1, micro_batch: 4")
NUM_PREDICTED = 8
# By the number of GPUs of a host.
GPU_LAYOUTS = {
    1: ("data: 2, zero: 0, micro_batch: 4", "data: 2, zero: 1, micro_batch: 4",
        "data: 2, zero: 2, micro_batch: 2", "tensor: 2, micro_batch: 4",
        "pipeline: 2, micro_batch: 1"),
    2: ("data: 4, zero: 1, data_groups: 1, micro_batch: 4",
        "data: 4, zero: 1, data_groups: 2, micro_batch: 4",
        "data: 2, tensor: 2, zero: 1, micro_batch: 4", "pipeline: 2, tensor: 2, micro_batch: 2",
        "data: 4, zero: 3, data_groups: 2, micro_batch: 4"),
    4: ("data: 8, zero: 1, data_groups: 1, micro_batch: 2",
        "data: 8, zero: 1, data_groups: 2, micro_batch: 2",
        "data: 4, tensor: 2, zero: 1, micro_batch: 4", "pipeline: 2, tensor: 4, micro_batch: 2",
        "data: 8, zero: 3, data_groups: 2, micro_batch: 2")}
# Layouts that the planner completes.
GPU_CHOICES = {1: "data: 2", 2: "data: 4", 4: "data: 8"}
EACH, MEDIAN, CHOICE = 0.10, 0.05, 0.03
LOSS_TOLERANCE = 2e-5
BF16_TOLERANCE = 2e-3  # Between layouts, on GPUs.
FIRST_STEPS = 5


class SlowLinks:
    """Puts a slow link in the place of each host's cable, while it lives."""

    def __init__(self, hosts, program, mbit, delay_us):
        self.links = []
        for number in range(1, hosts.num_hosts + 1):
            # Half of the delay at either end of the way between two hosts.
            self.links.append(self._Lay(hosts, program, number, mbit, delay_us / 2))

    @staticmethod
    def _Lay(hosts, program, number, mbit, delay_us):
        port = f"slow{number}"
        hosts.run(number, ["ip", "link", "delete", "eth0"], check=True)
        link = subprocess.Popen(
            [program, str(hosts.pid_of(number)), "eth0", str(hosts.switch_pid()), port, str(mbit),
             str(round(delay_us))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if link.stdout.readline() != "up\n":
            sys.exit("no slow link")
        hosts.run(number, ["sh", "-ec", f"""
            ip link set eth0 mtu 65000
            ip addr add 10.77.0.{number}/24 dev eth0
            ip -6 addr add fd77::{number}/64 dev eth0 nodad
            ip link set eth0 up"""], check=True)
        subprocess.run(["nsenter", "-t", str(hosts.switch_pid()), "--net", "sh", "-ec",
                        f"ip link set {port} mtu 65000 master br0 up"], check=True)
        return link

    def close(self):
        for link in self.links:
            link.stdin.close()
            link.wait()
            link.stdout.close()


SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                       "../../configs/hardware/h200-sxm.yaml")
CPU_MODEL = """\
model: {family: llama, vocab_size: 1024, hidden: 256, layers: 4, heads: 8, kv_heads: 4,
        ffn_hidden: 704, sequence_length: 128}"""
GPU_MODEL = """\
model: {family: llama, vocab_size: 32000, hidden: 1024, layers: 8, heads: 16, kv_heads: 8,
        ffn_hidden: 2816, sequence_length: 2048}"""


def job_text(hosts, layout, steps, gpus, devices, profile, deterministic):
    return f"""\
name: shaped
{GPU_MODEL if gpus else CPU_MODEL}
data: {{synthetic: true}}
training: {{steps: {steps}, global_batch: 16, seed: 1, optimizer: {{learning_rate: 1e-3}},
           precision: {"bf16" if gpus else "fp32"},
           deterministic: {"true" if deterministic else "false"}}}
resources: {{devices_per_agent: {devices},
            {"backend: cuda, transport: nccl" if gpus else "threads_per_device: 1"}}}
layout: {layout}
profile: {profile}
checkpoint: {{at_end: false, interval_steps: 0, resume: none}}
profile_output: none
output: {{directory: {hosts.private}/runs}}
"""


class Bench:
    def __init__(self, hosts, millrace, steps, gpus):
        self.hosts, self.millrace, self.steps, self.gpus = hosts, millrace, steps, gpus
        self.first_losses = None
        self.num_apart = 0  # Layouts with other losses than they should have.

    def train(self, layout, num_hosts=None, deterministic=False):
        """The run's records and the layout that it ran; on one host with all GPUs if num_hosts
        is 1."""
        devices = 2 * self.gpus // (num_hosts or 2) if self.gpus else 2
        job = self.hosts.private + "/job.yaml"
        with open(self.hosts.folder_of(1) + "/job.yaml", "w") as file:
            # Losses do not depend on the profile, so the run on one host measures none.
            profile = SHIPPED if num_hosts else "auto"
            file.write(job_text(self.hosts, layout, self.steps, self.gpus, devices, profile,
                                deterministic))
        # Namespaces do not divide GPUs.
        mine = ",".join(f"$((OMPI_COMM_WORLD_RANK * {devices} + {i}))" for i in range(devices))
        choose = f"CUDA_VISIBLE_DEVICES={mine} " if self.gpus and not num_hosts else ""
        done = self.hosts.mpirun(["sh", "-c", f"{choose}exec {self.millrace} agent {job}"],
                                 num_hosts=num_hosts, timeout=900)
        if done.returncode != 0:
            sys.exit(f"{layout}: exit code {done.returncode}\n{done.stdout}")
        folder = max(glob.glob(self.hosts.folder_of(1) + "/runs/shaped-2*"), key=os.path.getmtime)
        plan = next((line[6:].split(";")[0] for line in done.stdout.splitlines()
                     if line.startswith("plan: ")), "")
        with open(folder + "/metrics.jsonl") as lines:
            return [json.loads(line) for line in lines], plan

    def measure(self, layout, chosen=False):
        """Measured and predicted seconds of a step; prints both. `chosen`: the planner completes
        the layout."""
        records, plan = self.train(layout)
        losses = [record["loss"] for record in records]
        tolerance = LOSS_TOLERANCE
        self.first_losses = expected = self.first_losses or losses
        if self.gpus and chosen:
            tolerance = BF16_TOLERANCE
        elif self.gpus:
            losses, expected = ([record["loss"] for record in
                                 self.train(layout, num_hosts, deterministic=True)[0]]
                                for num_hosts in (None, 1))
        worst = max(abs(a / b - 1) for a, b in zip(losses, expected))
        if len(losses) != self.steps:
            sys.exit(f"{layout}: {len(losses)} losses of {self.steps}")
        if worst > tolerance:
            self.num_apart += 1
            print(f"{layout}: losses up to {worst:.1e} from those expected (bar {tolerance:.0e})")
        measured = statistics.median(record["step_time_s"] for record in records[FIRST_STEPS:])
        predicted = records[-1]["predicted_step_time_s"]
        print(f"{layout:60} {predicted * 1e3:7.1f} ms {measured * 1e3:7.1f} ms "
              f"{100 * (predicted / measured - 1):+6.1f} %  {worst:.0e}", flush=True)
        if chosen:
            print(f"  which is {plan}", flush=True)
        return measured, predicted


def verdict(met):
    return "met" if met else "MISSED"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("millrace")
    parser.add_argument("slow_link", nargs="?")
    parser.add_argument("--gpus", type=int, nargs="?", const=1, choices=sorted(GPU_LAYOUTS))
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--delay-us", type=int, default=500)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layout", action="append")
    parser.add_argument("--keep", metavar="FOLDER")
    arguments = parser.parse_args()
    if (bool(arguments.gpus) == bool(arguments.slow_link) or
            (arguments.gpus and arguments.hosts != 2)):
        sys.exit("expected SLOW_LINK, or --gpus with two hosts and no SLOW_LINK")
    reason = WhyNot() or ("" if arguments.gpus or os.path.exists("/dev/net/tun")
                          else "no /dev/net/tun")
    if reason:
        sys.exit(reason)
    if arguments.steps <= FIRST_STEPS:
        sys.exit(f"--steps: expected more than {FIRST_STEPS}")
    layouts = arguments.layout or (GPU_LAYOUTS[arguments.gpus] if arguments.gpus else LAYOUTS)
    with Hosts(arguments.hosts, own_cores=True) as hosts:
        links = None
        if not arguments.gpus:
            links = SlowLinks(hosts, os.path.abspath(arguments.slow_link), arguments.mbit,
                              arguments.delay_us)
        try:
            bench = Bench(hosts, os.path.abspath(arguments.millrace), arguments.steps,
                          arguments.gpus)
            link = (f"{arguments.mbit} Mbit/s, {arguments.delay_us} us one way" if links
                    else f"GPUs of each: {arguments.gpus}")
            print(f"{arguments.hosts} hosts, {link}; load of the machine before: "
                  f"{os.getloadavg()[0]:.1f}")
            print(f"{'layout':60} {'predicted':>10} {'measured':>10} {'error':>7}  losses within")
            results = [bench.measure("{" + layout + "}") for layout in layouts]
            choice = f"{{{GPU_CHOICES[arguments.gpus]}}}" if arguments.gpus else "auto"
            chosen = bench.measure(choice, chosen=True)[0]
        finally:
            if arguments.keep:
                shutil.copytree(hosts.folder_of(1) + "/runs", arguments.keep, symlinks=True)
            if links:
                links.close()
    errors = [abs(predicted / measured - 1)
              for measured, predicted in results[:NUM_PREDICTED]]
    median = statistics.median(errors)
    is_true = max(errors) <= EACH and median <= MEDIAN
    learns = bench.num_apart == 0
    print(f"layouts with other losses than they should have: {bench.num_apart}")
    print(f"predictions of {len(errors)} layouts: worst {100 * max(errors):.1f} % (bar "
          f"{100 * EACH:.0f} %), median {100 * median:.1f} % (bar {100 * MEDIAN:.0f} %): "
          f"{verdict(is_true)}")
    if arguments.gpus:
        sys.exit(0 if is_true and learns else 1)
    best = min(measured for measured, _ in results)
    is_good = chosen <= (1 + CHOICE) * best
    print(f"the planner's choice: {chosen * 1e3:.1f} ms, {100 * (chosen / best - 1):+.1f} % beside "
          f"the best of {len(results)}, {best * 1e3:.1f} ms (bar {100 * CHOICE:.0f} %): "
          f"{verdict(is_good)}")
    sys.exit(0 if is_true and is_good and learns else 1)


if __name__ == "__main__":
    main()
