"""Jobs over several hosts that the tests kill; see hosts.py."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

from hosts import Hosts
from hosts_test import copy_text, records, run_folder

# Agent 0's, as each host knows it: some come by IPv4, some by IPv6.
FIRST = {2: "10.77.0.1:4711", 3: "[fd77::1]:4711", 4: "node1:4711"}


def records_on(hosts, number, file):
    with open(f"{run_folder(hosts, number)}/{file}") as lines:
        return [json.loads(line) for line in lines]


def read_lines(path):
    with open(path) as file:
        return file.readlines()


class LostHostsCase(unittest.TestCase):
    """Starts agents on hosts, kills hosts, and reads what the first host's run says."""

    millrace = ""  # The program.
    num_hosts = 4

    def setUp(self):
        self.hosts = self.enterContext(Hosts(self.num_hosts))
        self.numbers = range(1, self.num_hosts + 1)
        copy_text(self.hosts, self.numbers)

    def environment_of(self, number):
        """What an agent of that host finds in its environment, besides that of all."""
        return {}

    def start_agent(self, number, *words):
        return self.start_program(number, "agent", *words)

    def start_program(self, number, *words):
        process = subprocess.Popen(
            self.hosts.command_on(number) + [self.millrace, *words], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self.hosts.environment(MILLRACE_SECRET="0123456789abcdef",
                                       **self.environment_of(number)))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def start(self, job, num_hosts=None):
        """Starts an agent on each of the first `num_hosts` hosts, or on all.

        Returns the first host's process and the others' by number."""
        numbers = self.numbers[:num_hosts]
        if len(numbers) == 1:
            return self.start_program(1, "run", job), {}
        first = self.start_agent(1, job, "--agents", str(len(numbers)), "--port", "4711")
        others = {number: self.start_agent(number, "--join", FIRST[number])
                  for number in numbers[1:]}
        return first, others

    def end(self, process, exit_code=0):
        output = process.communicate(timeout=300)[0]
        self.assertEqual(process.returncode, exit_code, output)
        return output

    def wait_until(self, what, condition):
        for _ in range(1200):
            if condition():
                return
            time.sleep(0.05)
        events = [event for event in self.records("events.jsonl")
                  if event["event"] != "checkpoint_committed"]
        self.fail(f"waited for {what} in vain at step {self.step()}, after " +
                  "\n".join(map(str, events)))

    def records(self, file):
        try:
            return records(self.hosts, file)
        except (OSError, ValueError):  # Not there yet, or half written.
            return []

    def step(self):
        lines = self.records("metrics.jsonl")
        return lines[-1]["step"] if lines else 0

    def newest_run(self):
        try:
            return run_folder(self.hosts)
        except ValueError:
            return None  # Not there yet.

    def events(self, name):
        return [event for event in self.records("events.jsonl") if event["event"] == name]

    def curve(self):
        """Losses by step; a step that was trained again counts by its last time."""
        return {line["step"]: line["loss"] for line in self.records("metrics.jsonl")}

    def kill_worker(self, worker):
        """Ends the process of the job's worker of that index, on whatever host it runs."""
        words = b"\0--worker\0%d\0" % worker
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as command:
                    is_worker = words in command.read() + b"\0"
                if is_worker and os.readlink(f"/proc/{name}/exe") == os.path.realpath(
                        self.millrace):
                    os.kill(int(name), signal.SIGKILL)
            except (OSError, ValueError):
                continue  # It has ended, or is none.

    def kill_worker_twice(self, worker):
        """After more than 20 steps each time."""
        for num_deaths in (1, 2):
            self.wait_until("training", lambda: len(self.events("training")) == num_deaths)
            step = self.step()
            self.wait_until("steps", lambda: self.step() > step + 20)
            self.kill_worker(worker)
            self.wait_until("the death", lambda: len(self.events("worker_died")) == num_deaths)

    def kill_host(self, number, word=b""):
        """Ends all of Millrace's processes on a host at once, as a power cut does.

        With `word` only those that have it among the words of their command."""
        own = os.stat(f"/proc/{self.hosts.pid_of(number)}/ns/net").st_ino
        for name in os.listdir("/proc"):
            try:
                if (name.isdigit() and os.stat(f"/proc/{name}/ns/net").st_ino == own and
                        os.readlink(f"/proc/{name}/exe") == os.path.realpath(self.millrace)):
                    with open(f"/proc/{name}/cmdline", "rb") as words:
                        if word and word not in words.read().split(b"\0"):
                            continue
                    os.kill(int(name), signal.SIGKILL)
            except OSError:
                pass  # It has ended.

    def restored(self):
        """The details of recoveries: from where, and how many steps were trained again."""
        return [(event["detail"],
                 int(re.search(r"(\d+) steps? trained again", event["detail"])[1]))
                for event in self.events("restored")]

    def agent_of(self, number):
        """The index that the host's agent was given."""
        logs = os.listdir(run_folder(self.hosts, number) + "/logs")
        return min(int(found[1]) for found in (re.match(r"agent-(\d+)\.log", name)
                                               for name in logs) if found)
