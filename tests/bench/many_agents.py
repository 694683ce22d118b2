"""How a job of many agents begins, and what its coordinator costs: one agent of one CPU rank on
each of many hosts, made of namespaces on this machine.

    many_agents.py MILLRACE [--agents 64] [--profile FILE] [--layout "data: 64"] [--window 20]

Prints the seconds from the start of the first agent to what the job reached since, up to its
first step, and the coordinator's share of a core over the steps that follow. Agents meet by
--join. Without --profile the job measures one first, which belongs to its start; --keep-profile
FILE keeps it for the next time. Needs what tests/e2e/hosts.py needs.
"""

import argparse
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from hosts import Hosts, WhyNot

SECRET = "0123456789abcdef0123456789abcdef"
PORT = 4711


def job_text(hosts, layout, profile):
    return f"""\
name: many
model: {{family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4, kv_heads: 2,
        ffn_hidden: 64, sequence_length: 32}}
data: {{synthetic: true}}
training: {{steps: 1000000, global_batch: {hosts.num_hosts}, seed: 1,
           optimizer: {{learning_rate: 1e-3}}}}
resources: {{devices_per_agent: 1, threads_per_device: 1}}
layout: {layout}
checkpoint: {{at_end: false, interval_steps: 0, resume: none}}
profile: {profile}
profile_output: none
fault: {{max_restarts: 0, heartbeat_interval_ms: 200}}
output: {{directory: {hosts.private}/runs}}
"""


def records(hosts, name):
    """The lines of that file of the run's folder, as far as they are whole."""
    found = glob.glob(f"{hosts.folder_of(1)}/runs/many-2*/{name}")
    if not found:
        return []
    with open(found[0]) as file:
        return [json.loads(line) for line in file.read().split("\n")[:-1]]


def coordinator_seconds(hosts):
    """The processor time that the coordinator has used."""
    own = f"{hosts.private}/runs/many-2".encode()
    for process in glob.glob("/proc/[0-9]*"):
        try:
            with open(process + "/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if b"coordinator" in words and any(word.startswith(own) for word in words):
                with open(process + "/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            continue  # It has ended.
    sys.exit("no coordinator")


def show_failure(hosts, agents, reason):
    print(reason)
    for event in records(hosts, "events.jsonl"):
        print("  ", event)
    for log in sorted(glob.glob(f"{hosts.folder}/agent-*.out"))[:2]:
        with open(log) as file:
            print(f"--- {log}\n{file.read()[-3000:]}")
    sys.exit(1)


def measure(hosts, arguments):
    profile = "auto"
    if arguments.profile:
        profile = hosts.private + "/profile.yaml"
        shutil.copy(arguments.profile, hosts.folder_of(1) + "/profile.yaml")
    layout = arguments.layout or f"data: {hosts.num_hosts}"
    with open(hosts.folder_of(1) + "/job.yaml", "w") as file:
        file.write(job_text(hosts, "{" + layout + "}", profile))
    millrace = os.path.abspath(arguments.millrace)
    began = time.monotonic()
    agents = []
    for number in range(1, hosts.num_hosts + 1):
        words = ([hosts.private + "/job.yaml", "--agents", str(hosts.num_hosts), "--port",
                  str(PORT)] if number == 1 else ["--join", f"10.77.0.1:{PORT}"])
        with open(f"{hosts.folder}/agent-{number}.out", "w") as output:
            agents.append(subprocess.Popen(
                hosts.command_on(number) + [millrace, "agent", *words],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=hosts.environment(MILLRACE_SECRET=SECRET)))
    while not records(hosts, "metrics.jsonl"):
        if agents[0].poll() is not None:
            show_failure(hosts, agents, "the job ended before its first step")
        if time.monotonic() - began > arguments.limit:
            show_failure(hosts, agents, f"no step within {arguments.limit} s")
        time.sleep(0.1)
    first_step = time.monotonic() - began
    # Event times count from the start of the coordinator.
    for event in records(hosts, "events.jsonl"):
        if event["event"] in ("started", "profiled", "planned", "generation_started", "training"):
            print(f"  {event['time_s']:6.1f} s  {event['event']}")
    print(f"first step {first_step:.1f} s after the start of {hosts.num_hosts} agents "
          f"(bar: 60 s)")
    if arguments.keep_profile:
        kept = glob.glob(f"{hosts.folder_of(1)}/runs/many-2*/profile.yaml")
        shutil.copy(kept[0], arguments.keep_profile)
    steps_before, used_before = len(records(hosts, "metrics.jsonl")), coordinator_seconds(hosts)
    time.sleep(arguments.window)
    used = coordinator_seconds(hosts) - used_before
    steps = len(records(hosts, "metrics.jsonl")) - steps_before
    print(f"coordinator: {100 * used / arguments.window:.1f} % of a core over "
          f"{arguments.window} s with {2 * hosts.num_hosts} heartbeats each 200 ms and "
          f"{steps} steps (bar: 5 %)")
    print("load of the machine in the last minute: "
          f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    agents[0].send_signal(signal.SIGTERM)
    for agent in agents:
        try:
            agent.wait(60)
        except subprocess.TimeoutExpired:
            show_failure(hosts, agents, "an agent did not end within 60 s of SIGTERM")
    codes = {agent.returncode for agent in agents}
    if codes != {0}:
        show_failure(hosts, agents, f"the agents ended with the codes {sorted(codes)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("millrace")
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--layout")
    parser.add_argument("--profile")
    parser.add_argument("--keep-profile")
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--limit", type=int, default=300)
    arguments = parser.parse_args()
    if WhyNot():
        sys.exit(WhyNot())
    with Hosts(arguments.agents) as hosts:
        measure(hosts, arguments)


if __name__ == "__main__":
    main()
