"""How true plans are over a slow network: two hosts of two CPU ranks, made of namespaces on
this machine, whose links carry so many Mbit/s each way.

    shaped_hosts.py MILLRACE [--mbit 1000] [--steps 30] [--layout "pipeline: 2, data: 2"]...

Measures a profile over both hosts, trains each layout with it, checks that all losses agree,
and prints the predicted and the measured step (the median after the first five) of each.
Needs what tests/e2e/hosts.py needs, and the program tc. The machine should do nothing else.
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

LAYOUTS = ("data: 4", "data: 4, zero: 1", "data: 2, tensor: 2", "data: 2, pipeline: 2",
           "tensor: 4", "pipeline: 4", "pipeline: 2, tensor: 2", "data: 2, pipeline: 2, zero: 1")
LOSS_TOLERANCE = 2e-5


def shape(hosts, number, mbit):
    rule = f"root tbf rate {mbit}mbit burst 64kb latency 100ms"
    hosts.run(number, ["tc", "qdisc", "add", "dev", "eth0", *rule.split()], check=True)


def job_text(hosts, layout, steps):
    return f"""\
name: shaped
model: {{family: llama, vocab_size: 1024, hidden: 256, layers: 4, heads: 8, kv_heads: 4,
        ffn_hidden: 704, sequence_length: 128}}
data: {{synthetic: true}}
training: {{steps: {steps}, global_batch: 16, seed: 1, optimizer: {{learning_rate: 1e-3}}}}
resources: {{devices_per_agent: 2, threads_per_device: 1}}
layout: {layout}
checkpoint: {{at_end: false, interval_steps: 0, resume: none}}
profile_output: none
output: {{directory: {hosts.private}/runs}}
"""


def run(hosts, words):
    done = hosts.mpirun(words)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def train(hosts, millrace, layout, steps):
    """The run's records."""
    job = hosts.private + "/job.yaml"
    with open(hosts.folder_of(1) + "/job.yaml", "w") as file:
        file.write(job_text(hosts, layout, steps))
    run(hosts, [millrace, "agent", job])
    folder = max(glob.glob(hosts.folder_of(1) + "/runs/shaped-2*"), key=os.path.getmtime)
    with open(folder + "/metrics.jsonl") as lines:
        return [json.loads(line) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("millrace")
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layout", action="append")
    arguments = parser.parse_args()
    reason = WhyNot() or ("no program tc (Debian: iproute2)" if not shutil.which("tc") else "")
    if reason:
        sys.exit(reason)
    millrace = os.path.abspath(arguments.millrace)
    layouts = arguments.layout or LAYOUTS
    with Hosts(2) as hosts:
        for number in (1, 2):
            shape(hosts, number, arguments.mbit)
        errors = []
        first_losses = None
        print(f"{'layout':34} {'predicted':>10} {'measured':>10} {'error':>7}")
        for layout in layouts:
            records = train(hosts, millrace, "{" + layout + "}", arguments.steps)
            losses = [record["loss"] for record in records]
            first_losses = first_losses or losses
            worst = max(abs(a / b - 1) for a, b in zip(losses, first_losses))
            if len(losses) != arguments.steps or worst > LOSS_TOLERANCE:
                sys.exit(f"{layout}: {len(losses)} losses, {worst:.1e} from the first layout's")
            measured = statistics.median(record["step_time_s"] for record in records[5:])
            predicted = records[-1]["predicted_step_time_s"]
            errors.append(predicted / measured - 1)
            print(f"{layout:34} {predicted * 1e3:7.1f} ms {measured * 1e3:7.1f} ms "
                  f"{100 * errors[-1]:+6.1f} %", flush=True)
        sizes = [abs(error) for error in errors]
        print(f"{len(sizes)} layouts at {arguments.mbit} Mbit/s: median error "
              f"{100 * statistics.median(sizes):.1f} %, worst {100 * max(sizes):.1f} %")


if __name__ == "__main__":
    main()
