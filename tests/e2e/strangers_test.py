"""Strangers on the coordinator's port, while a real job trains; and where its secret is.

    strangers_test.py MILLRACE [--frames N] [TEST]...

N connections (2,000 unless given; 100,000 take some minutes) send random bytes or damaged parts
of a recorded conversation. With 100,000 or more the slow senders are followed to their end too.
"""

import argparse
import glob
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

OPTIONS = None
SECRET = "0123456789abcdef0123456789abcdef"
LONG = 100_000
IN_FLIGHT = 64
# The coordinator keeps so many strangers (server.cc), besides its peers and files.
MOST_DESCRIPTORS = 256 + 64
MOST_MORE_MEMORY = 64 << 20

JOB = """\
name: tiny
model: {{family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4, kv_heads: 2,
        ffn_hidden: 64, sequence_length: 32}}
data: {{synthetic: true}}
training: {{steps: {steps}, global_batch: 8, seed: 3, optimizer: {{learning_rate: 1e-3}}}}
resources: {{devices_per_agent: {devices}, threads_per_device: 1}}
checkpoint: {{interval_steps: 50}}
output: {{directory: {folder}/runs}}
"""


class Job:
    """A job of two ranks whose secret the test knows: from the environment of `millrace run`, or
    from a file that the two agents of mpirun read."""

    def __init__(self, secret_file=False, steps=1000000):
        self.folder = tempfile.mkdtemp(prefix="millrace-strangers-")
        with open(self.folder + "/job.yaml", "w") as file:
            file.write(JOB.format(folder=self.folder, steps=steps,
                                  devices=1 if secret_file else 2))
        self.output = open(self.folder + "/output.txt", "w")
        command = [OPTIONS.millrace, "run", self.folder + "/job.yaml"]
        environment = self.environment()
        if secret_file:
            with open(self.folder + "/secret", "w") as file:
                os.chmod(file.name, 0o600)
                file.write(SECRET + "\n")
            command = ["mpirun", "-n", "2", "--oversubscribe", "--allow-run-as-root", "--bind-to",
                       "none", OPTIONS.millrace, "agent", self.folder + "/job.yaml",
                       "--secret-file", self.folder + "/secret"]
            del environment["MILLRACE_SECRET"]

        def prepare():
            # The default of many systems.
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
            os.umask(0o022)

        self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT,
                                        env=environment, preexec_fn=prepare)

    def environment(self):
        return {**os.environ, "MILLRACE_SECRET": SECRET, "XDG_CACHE_HOME": self.folder + "/xdg"}

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=60)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.output.close()
        shutil.rmtree(self.folder)

    def text(self):
        with open(self.folder + "/output.txt") as file:
            return file.read()

    def records(self, name):
        try:
            with open(f"{self.folder}/runs/tiny-latest/{name}") as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def steps(self):
        lines = self.records("metrics.jsonl")
        return lines[-1]["step"] if lines else 0

    def events(self, name):
        return [event for event in self.records("events.jsonl") if event["event"] == name]

    def processes(self):
        """All processes of the job."""
        found = [self.process.pid]
        for pid in found:
            for path in glob.glob(f"/proc/{pid}/task/*/children"):
                with open(path) as file:
                    found.extend(map(int, file.read().split()))
        return found

    def pids(self, word):
        """The job's processes of one kind."""
        return [pid for pid in self.processes() if words_of(pid)[1:2] == [word]]

    def address(self):
        words = words_of(self.pids("worker")[0])
        host, port = words[words.index("--coordinator") + 1].rsplit(":", 1)
        return host, int(port)

    def coordinator(self):
        """Bytes in memory, open descriptors and seconds of a core."""
        [pid] = self.pids("coordinator")
        with open(f"/proc/{pid}/status") as file:
            [memory] = [line.split()[1] for line in file if line.startswith("VmRSS")]
        with open(f"/proc/{pid}/stat") as file:
            times = file.read().rsplit(")", 1)[1].split()[11:13]
        return {"memory": int(memory) << 10, "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "seconds": sum(map(int, times)) / os.sysconf("SC_CLK_TCK")}


def words_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().split("\0")
    except FileNotFoundError:
        return []


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def connect(address):
    result = socket.socket()
    result.setblocking(False)
    result.connect_ex(address)
    return result


def record(job):
    """What a real agent sends in a conversation with the coordinator, which refuses it because
    the job has all its agents. Recorded between the two."""
    recorded = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        def relay():
            here, _ = server.accept()
            with here, socket.create_connection(job.address()) as there:
                open_ends = [here, there]
                while len(open_ends) == 2:
                    for end in select.select(open_ends, [], [])[0]:
                        data = end.recv(1 << 16)
                        if not data:
                            open_ends.remove(end)
                        elif end is here:
                            recorded.append(data)
                            there.sendall(data)
                        else:
                            here.sendall(data)

        thread = threading.Thread(target=relay)
        thread.start()
        done = subprocess.run(
            [OPTIONS.millrace, "agent", "--join", f"127.0.0.1:{server.getsockname()[1]}"],
            env=job.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=60)
        thread.join()
    if done.returncode != 2 or "all 1 agents" not in done.stdout:
        raise AssertionError(f"the agent was not refused as expected: {done.stdout}")
    return recorded


def damage(recorded, numbers):
    """Random bytes, or a recorded conversation with some bytes changed, cut or repeated."""
    kind = numbers.randrange(5)
    if kind == 0:
        return numbers.randbytes(numbers.randrange(1, 300))
    data = bytearray(b"".join(recorded[:1] if kind < 3 else recorded))
    for _ in range(numbers.randrange(1, 8)):
        place = numbers.randrange(len(data))
        change = numbers.randrange(4)
        if change == 0:
            data[place] ^= 1 << numbers.randrange(8)
        elif change == 1:
            data[place] = numbers.randrange(256)
        elif change == 2:
            del data[place:place + numbers.randrange(1, 32)]
        else:
            data[place:place] = numbers.randbytes(numbers.randrange(1, 32))
        if not data:
            return b"\0"
    return bytes(data)


def send_to(address, messages):
    """Sends each on a connection of its own, many at a time, and waits until the coordinator has
    ended it. Returns the largest answer."""
    largest = 0
    waiting = {}
    poller = select.epoll()
    messages = iter(messages)
    exhausted = False
    while waiting or not exhausted:
        while not exhausted and len(waiting) < IN_FLIGHT:
            data = next(messages, None)
            if data is None:
                exhausted = True
                break
            end = connect(address)
            waiting[end.fileno()] = [end, data, 0]
            poller.register(end.fileno(), select.EPOLLOUT | select.EPOLLIN)
        ready = poller.poll(60)
        if waiting and not ready:
            raise AssertionError(f"{len(waiting)} connections were left open")
        for number, _ in ready:
            entry = waiting[number]
            end, data, answered = entry
            try:
                if data:
                    end.sendall(data)
                    entry[1] = b""
                    end.shutdown(socket.SHUT_WR)
                    poller.modify(number, select.EPOLLIN)
                    continue
                answer = end.recv(1 << 16)
            except BlockingIOError:
                continue
            except OSError:  # Reset: the coordinator has ended it.
                answer = b""
            if answer:
                entry[2] = answered + len(answer)
                largest = max(largest, entry[2])
            else:
                poller.unregister(number)
                end.close()
                del waiting[number]
    return largest


class StrangersTest(unittest.TestCase):
    def start(self, **keywords):
        self.job = Job(**keywords)
        self.addCleanup(self.job.close)
        wait_until(lambda: self.job.steps() > 0 or self.job.process.poll() is not None,
                   "the first step", 180)
        self.assertIsNone(self.job.process.poll(), self.job.text())

    def assert_no_process_shows_the_secret(self):
        """Neither as an argument nor to other users."""
        processes = self.job.processes()
        self.assertGreaterEqual(len(processes), 4)
        for pid in processes:
            self.assertNotIn(SECRET, " ".join(words_of(pid)))
            self.assertEqual(os.stat(f"/proc/{pid}/environ").st_mode & 0o777, 0o400)

    def assert_no_file_shows_the_secret(self):
        """Neither the run folder nor what the job printed; and the folder is the user's alone."""
        self.assertNotIn(SECRET, self.job.text())
        num_files = 0
        for folder, _, names in os.walk(self.job.folder + "/runs"):
            if folder != self.job.folder + "/runs":
                self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700, folder)
            for name in names:
                path = os.path.join(folder, name)
                self.assertEqual(os.stat(path).st_mode & 0o777, 0o600, path)
                with open(path, "rb") as file:
                    self.assertNotIn(SECRET.encode(), file.read(), path)
                num_files += 1
        self.assertGreater(num_files, 10)

    def goes_on(self, what):
        step = self.job.steps()
        wait_until(lambda: self.job.steps() > step + 2, f"steps {what}")

    # Goal: who does not know the secret learns nothing, costs little and disturbs nobody, whatever
    # he sends, however slowly, and however many come: steps go on, a killed worker comes back,
    # the coordinator's memory and descriptors stay bounded, and the run has one event of it.
    # Method: a job with 1,024 descriptors a process; damaged frames, a conversation replayed,
    # 1,100 connections that say nothing, and 100 that send a byte now and then.
    def test_strangers(self):
        self.start()
        job = self.job
        self.assert_no_process_shows_the_secret()
        address = job.address()
        recorded = record(job)
        before = job.coordinator()
        numbers = random.Random(17)

        began = time.monotonic()
        longest = send_to(address, (damage(recorded, numbers) for _ in range(OPTIONS.frames)))
        took = time.monotonic() - began
        after = job.coordinator()
        print(f"{OPTIONS.frames} damaged frames in {took:.1f} s, "
              f"{1e6 * (after['seconds'] - before['seconds']) / OPTIONS.frames:.0f} us of the "
              f"coordinator each, answers of {longest} bytes at most; memory "
              f"{before['memory'] >> 20} -> {after['memory'] >> 20} MiB")
        self.assertLess(after["memory"] - before["memory"], MOST_MORE_MEMORY)
        self.goes_on("after damaged frames")

        whole = b"".join(recorded)
        send_to(address, [whole] * (OPTIONS.frames // 20))
        self.goes_on("after replays")
        self.assertEqual(job.events("agents_missing"), [])

        silent = [connect(address) for _ in range(1100)]
        slow = [connect(address) for _ in range(100)]
        began = job.coordinator()["seconds"], time.monotonic()
        self.goes_on("beside silent connections")
        os.kill(job.pids("worker")[0], signal.SIGKILL)
        place = 0
        deadline = time.monotonic() + 60
        while len(job.events("training")) < 2:
            self.assertLess(time.monotonic(), deadline, "the killed worker did not come back")
            for end in slow:
                try:
                    end.send(whole[place:place + 1])
                except OSError:
                    pass
            place += 1
            time.sleep(0.1)
        self.goes_on("after the killed worker")
        held = job.coordinator()
        share = (held["seconds"] - began[0]) / (time.monotonic() - began[1])
        print(f"1,200 connections that do not go on: {held['descriptors']} descriptors, "
              f"{held['memory'] >> 20} MiB, {100 * share:.0f} % of a core")
        self.assertLess(held["descriptors"], MOST_DESCRIPTORS)
        self.assertLess(held["memory"] - before["memory"], MOST_MORE_MEMORY)
        if OPTIONS.frames >= LONG:
            wait_until(lambda: job.coordinator()["descriptors"] < 64, "all of them ended", 120)
        for end in silent + slow:
            end.close()

        self.assertEqual(len(job.events("stranger")), 1)
        self.assertEqual(len(job.events("worker_died")), 1)
        self.assertEqual(job.end(), 0, job.text())
        self.assertIn("connections of strangers were turned away", job.text())
        self.assert_no_file_shows_the_secret()

    # Goal: agents of mpirun that have a file with the secret use that, and show it nowhere.
    def test_secret_file_under_mpirun(self):
        self.start(secret_file=True)
        self.assert_no_process_shows_the_secret()
        for pid in self.job.pids("agent"):
            with open(f"/proc/{pid}/environ") as file:
                self.assertNotIn(SECRET, file.read())
        with open(f"/proc/{self.job.pids('worker')[0]}/environ") as file:
            self.assertIn("MILLRACE_SECRET=" + SECRET, file.read())
        for pid in self.job.pids("agent"):
            os.kill(pid, signal.SIGINT)
        self.assertEqual(self.job.process.wait(timeout=60), 0, self.job.text())
        self.assert_no_file_shows_the_secret()


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("millrace", type=os.path.abspath)
    parser.add_argument("--frames", type=int, default=2000)
    OPTIONS, rest = parser.parse_known_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
