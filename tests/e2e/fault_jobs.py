"""Training jobs as real processes, and what bad days do to them: for fault_matrix.py and
scripts/chaos. A job runs on this machine (`millrace run`, or under mpirun) or over the hosts
of hosts.py, one agent a host. Only processes of the job itself are ever signalled: they are
known by its folder, which is among the words of their commands, or by their host's network.
"""

import glob
import json
import os
import pathlib
import re
import signal
import subprocess
import time

POLL_S = 0.005
SECRET = "0123456789abcdef"
PORT = 4711


class FaultError(Exception):
    """A rule that a job broke, in words."""


def check(holds, words):
    if not holds:
        raise FaultError(words)


def job_text(folder, *, text, steps=200, layout="{data: 2, tensor: 1, pipeline: 1, zero: 0}",
             devices=2, batch=8, optimizer="{learning_rate: 3e-3, warmup_steps: 5}",
             checkpoint="", fault="", data="", model="", output="", cache="", extra=""):
    """A tiny job. `folder` holds its output and cached data where those are not given."""
    model = model or ("{family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4, "
                      "kv_heads: 2, ffn_hidden: 64, sequence_length: 32}")
    data = data or f"text: [{text}/*.txt]"
    return f"""\
name: tiny
model: {model}
data: {{{data}, cache_directory: {cache or folder + '/cache'}}}
training: {{steps: {steps}, global_batch: {batch}, seed: 3, optimizer: {optimizer}}}
resources: {{devices_per_agent: {devices}, threads_per_device: 1}}
layout: {layout}
checkpoint: {{{checkpoint or 'interval_steps: 0'}}}
fault: {{{fault}}}
profile_output: none
output: {{directory: {output or folder + '/runs'}}}
{extra}"""


def words_of(pid):
    """The words of a process's command; none if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(
            errors="replace").split("\0")[:-1]
    except OSError:
        return []


def name_of(pid):
    """What `ps` calls a process; "" if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def program_of(pid):
    """The file that a process runs; "" if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def send(pid, number):
    """Whether the process was there to be signalled."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


class Records:
    """What a run has written so far. `roots` hold run directories; where several hosts have
    the same run, the one that got furthest counts."""

    def __init__(self, roots):
        self._roots = roots
        self._read = {}  # {path: (bytes that were read, their lines)}
        self._before = set(self._folders())

    def _folders(self):
        return [folder for root in self._roots for folder in glob.glob(root + "/tiny-2*")]

    def forget(self):
        """What is there now is of earlier runs."""
        self._before = set(self._folders())

    def folder(self):
        """The run's directory; "" before there is one."""
        def got_to(folder):
            return sum(os.path.getsize(path) for name in ("events.jsonl", "metrics.jsonl")
                       for path in glob.glob(f"{folder}/{name}"))
        found = [folder for folder in self._folders() if folder not in self._before]
        return max(found, key=got_to, default="")

    def lines(self, name, folder=""):
        """All whole lines of a file. Only what is new since the last call is read."""
        path = f"{folder or self.folder()}/{name}"
        position, lines = self._read.get(path, (0, []))
        try:
            with open(path, "rb") as file:
                if file.seek(0, os.SEEK_END) < position:
                    position, lines = 0, []  # It was written anew.
                file.seek(position)
                text = file.read()
        except OSError:
            return []
        whole = text[:text.rfind(b"\n") + 1]
        lines.extend(json.loads(line) for line in whole.splitlines())
        self._read[path] = (position + len(whole), lines)
        return lines

    def events(self, *names):
        return [event for event in self.lines("events.jsonl") if event["event"] in names]

    def metrics(self):
        return self.lines("metrics.jsonl")

    def step(self):
        lines = self.metrics()
        return lines[-1]["step"] if lines else 0

    def curve(self):
        """{step: (loss, norm of the gradient)}; a step that was trained again counts once."""
        return {line["step"]: (line["loss"], line["grad_norm"]) for line in self.metrics()}

    def result(self):
        path = pathlib.Path(self.folder(), "result.json")
        return json.loads(path.read_text()) if path.exists() else {}

    def trained_again(self):
        """For each recovery the number of steps that were trained again."""
        return [int(re.search(r"(\d+) steps? trained again", event["detail"])[1])
                for event in self.events("restored")]


class Job(Records):
    """A job on this machine: start() it, do something to it, end() it."""

    def __init__(self, millrace, folder, cache="", environment=None, num_agents=0, prefix=()):
        """`cache`: where the prepared data and the hardware profile lie, if not in the job's
        folder. Jobs that are compared need one profile, since plans follow from it. `prefix`:
        words before the command. `num_agents`: above 0 under mpirun."""
        super().__init__([folder + "/runs"])
        self.millrace = os.path.realpath(millrace)
        self.folder_of_job = folder
        self.path = folder + "/job.yaml"
        self._num_agents = num_agents
        self._prefix = list(prefix)
        self._cache = cache
        self._environment = {**os.environ, "MILLRACE_PROGRESS": "0",
                             "XDG_CACHE_HOME": (cache or folder) + "/xdg", **(environment or {})}
        self._log = folder + "/output.txt"
        self.process = None

    def write(self, **keys):
        with open(self.path, "w") as file:
            file.write(job_text(self.folder_of_job, cache=self._cache, **keys))
        return self

    def start(self):
        self.await_second()
        command = [self.millrace, "run", self.path]
        if self._num_agents:
            command = ["mpirun", "-n", str(self._num_agents), "--oversubscribe",
                       "--allow-run-as-root", "--bind-to", "none", "--mca",
                       "mpi_yield_when_idle", "1", self.millrace, "agent", self.path]
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(self._prefix + command, stdout=log, stderr=log,
                                            env=self._environment)
        return self

    def await_second(self):
        """Run directories are named by the second, so the next run must wait for its own."""
        self.forget()
        begun = max((os.path.getmtime(folder) for folder in self._before), default=0)
        while self._before and int(time.time()) == int(begun):
            time.sleep(POLL_S)

    def output(self):
        return pathlib.Path(self._log).read_text(errors="replace")

    def processes(self, word=""):
        """The job's own processes, or those of `millrace WORD`."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            if program_of(name) != self.millrace:
                continue
            words = words_of(name)
            if "--standby-fd" in words and name_of(name) != "millrace-worker":
                continue  # It waits to become a worker.
            if (not word or word in words[1:2]) and self._is_own(int(name), words):
                found.append(int(name))
        return sorted(found)

    def _is_own(self, _, words):
        return any(self.folder_of_job in word for word in words)

    def workers(self):
        """{index of the worker: process}"""
        found = {}
        for pid in self.processes("worker"):
            words = words_of(pid)
            if "--worker" in words:
                found[int(words[words.index("--worker") + 1])] = pid
        return found

    def has_ended(self):
        return self.process.poll() is not None

    def wait_until(self, what, condition, seconds=120):
        """Returns how long it took."""
        began = time.monotonic()
        while not condition():
            if self.has_ended():
                if condition():
                    break
                raise FaultError(f"the job ended while waiting for {what}: {self.tail()}")
            if time.monotonic() - began > seconds:
                raise FaultError(f"no {what} within {seconds} s: {self.tail()}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def tail(self):
        events = "\n".join(str(event) for event in self.lines("events.jsonl")[-12:]
                           if event["event"] != "checkpoint_committed")
        return f"at step {self.step()}\n{events}\n{self.output()[-4500:]}"

    def await_step(self, step):
        self.wait_until(f"step {step}", lambda: self.step() >= step)

    def end(self, exit_code=0, seconds=240):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise FaultError(f"no end within {seconds} s: {self.tail()}") from None
        check(code == exit_code, f"exit code {code}, not {exit_code}: {self.tail()}")
        return self

    def kill_all(self):
        """As a power cut does; whatever still runs at the end of a test, too."""
        for pid in self.processes():
            send(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class HostsJob(Job):
    """A job over the hosts of hosts.py that share no folder but `hosts.folder`."""

    def __init__(self, millrace, hosts):
        super().__init__(millrace, hosts.folder)
        self._roots = [hosts.folder_of(number) + "/runs"
                       for number in range(1, hosts.num_hosts + 1)]
        self.hosts = hosts
        self.agents = {}  # By number of the host.
        self._logs = {}
        self.first = 1
        self.path = hosts.private + "/job.yaml"
        self._networks = {number: os.stat(f"/proc/{hosts.pid_of(number)}/ns/net").st_ino
                          for number in range(1, hosts.num_hosts + 1)}

    def write(self, **keys):
        text = job_text(self.hosts.private, text=self.hosts.private + "/text", **keys)
        for number in range(1, self.hosts.num_hosts + 1):
            with open(self.hosts.folder_of(number) + "/job.yaml", "w") as file:
                file.write(text)
        return self

    def start(self, first=1):
        """Agent 0 runs on host `first`."""
        self.await_second()
        self.agents = {}
        self.first = first
        self.start_agent(first, self.path, "--agents", str(self.hosts.num_hosts), "--port",
                         str(PORT))
        for number in range(1, self.hosts.num_hosts + 1):
            if number != first:
                self.start_agent(number, "--join", f"10.77.0.{first}:{PORT}")
        return self

    def start_agent(self, number, *words):
        self._logs[number] = f"{self.hosts.folder_of(number)}/agent.txt"
        with open(self._logs[number], "a") as log:
            self.agents[number] = subprocess.Popen(
                self.hosts.command_on(number) + [self.millrace, "agent", *words], stdout=log,
                stderr=log, env=self.hosts.environment(MILLRACE_SECRET=SECRET))
        self.process = self.agents[self.first]

    def start_again(self, number):
        """As a service that restarts does; the coordinator may have another address now. Other
        hosts' copies of the run, of which one may be the longest for a moment, have none."""
        def path():
            host = self.hosts.folder_of(self.host_of_coordinator() or self.first)
            return pathlib.Path(host, "runs", os.path.basename(self.folder()), "address")
        self.wait_until("the coordinator's address", lambda: path().exists(), 10)
        address = path().read_text().split()[0]
        address = re.search(r"10\.77\.0\.\d+:\d+", address)[0]
        self.start_agent(number, "--join", address)

    def output(self):
        return "".join(f"--- node{number}\n" +
                       pathlib.Path(path).read_text(errors="replace")[-1000:]
                       for number, path in sorted(self._logs.items()))

    def _is_own(self, pid, _):
        return self.host_of(pid) != 0

    def host_of(self, pid):
        try:
            network = os.stat(f"/proc/{pid}/ns/net").st_ino
        except OSError:
            return 0
        return next((number for number, own in self._networks.items() if own == network), 0)

    def kill_host(self, number):
        """Ends all of the job's processes on a host at once."""
        for pid in self.processes():
            if self.host_of(pid) == number:
                send(pid, signal.SIGKILL)

    def host_of_coordinator(self):
        found = [self.host_of(pid) for pid in self.processes("coordinator")]
        return found[0] if found else 0

    def cut(self, number):
        self.hosts.run(number, ["ip", "link", "set", "eth0", "down"], check=True)

    def mend(self, number):
        self.hosts.run(number, ["sh", "-c", "ip link set eth0 up; ip -6 addr add "
                                f"fd77::{number}/64 dev eth0 nodad"], check=True)

    def has_ended(self):
        return all(agent.poll() is not None for agent in self.agents.values())

    def end_all(self, numbers, seconds=240):
        for number in numbers:
            self.process = self.agents[number]
            self.end(seconds=seconds)
        return self
