"""Jobs that keep their checkpoints in a bucket of a real S3-compatible server (OpenStack Swift,
tests/tools/object_server.py). Skipped with the reason where that is not installed.

    object_checkpoints_test.py MILLRACE [TEST]...
"""

import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SKIPPED = 77
SERVER = pathlib.Path(__file__).parent.parent / "tools/object_server.py"
SECRET = "secret-of-the-test"
BUCKET = "s3://millrace-test"
LIMIT_S = 240
MILLRACE = None

JOB = """\
name: tiny
model: {{family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4, kv_heads: 2,
        ffn_hidden: 64, sequence_length: 32}}
data: {{text: [tests/data/text/*.txt], cache_directory: {folder}/cache}}
training: {{steps: {steps}, global_batch: 8, seed: 3, optimizer: {{learning_rate: 3e-3}}}}
resources: {{devices_per_agent: 1, threads_per_device: 1}}
layout: {layout}
checkpoint: {{interval_steps: 50, directory: {directory}{more}}}
output: {{directory: {folder}/runs}}
profile_output: none
"""
LAYOUT = "{pipeline: 1, data: 2, tensor: 1, zero: 1}"


def family(pid):
    """The process and its descendants."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                text = file.read()
        except OSError:
            continue  # It has ended.
        parents[int(text.split()[0])] = int(text.rsplit(")", 1)[1].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def kill(job):
    """All of its processes at once, as when the power fails."""
    for pid in family(job.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    job.wait()


class Server:
    """The server, until the end of the test."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-objects-")
        # It complains of clients that break off, as some here do.
        with open(self.folder + "/errors.txt", "w") as errors:
            self.process = subprocess.Popen(
                ["/usr/bin/python3", str(SERVER), self.folder], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, text=True)
        line = self.process.stdout.readline().strip()
        if not line.startswith("ready "):
            with open(self.folder + "/errors.txt") as errors:
                print(line or "the server does not start: " + errors.read())
            self.close()
            sys.exit(SKIPPED if line.startswith("skipped") else 1)
        self.address, self.encrypted = line.split()[1:]

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class ObjectCheckpointsTest(unittest.TestCase):
    server = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-bucket-job-")
        self.jobs = []
        self.output = None
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.server.address, "HOME": self.folder,
            "XDG_CACHE_HOME": self.folder + "/xdg", "MILLRACE_PROGRESS": "0"}

    def tearDown(self):
        for job in self.jobs:
            if job.poll() is None:
                kill(job)
        if self.output is not None:
            self.output.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def write_job(self, directory, steps=600, layout=LAYOUT, more=""):
        path = self.folder + "/job.yaml"
        with open(path, "w") as file:
            file.write(JOB.format(folder=self.folder, directory=directory, steps=steps,
                                  layout=layout, more=more))
        return path

    def start(self, job):
        """Two agents, as if of two hosts."""
        time.sleep(1.1)  # Run folders are named by the second.
        if self.output is not None:
            self.output.close()
        self.output = open(self.folder + "/output.txt", "w+")
        self.jobs.append(subprocess.Popen(
            ["mpirun", "-n", "2", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none",
             MILLRACE, "agent", job], stdout=self.output, stderr=subprocess.STDOUT,
            env=self.environment, start_new_session=True))
        return self.jobs[-1]

    def said(self):
        self.output.seek(0)
        return self.output.read()

    def end(self, job, exit_code=0):
        self.assertEqual(job.wait(timeout=LIMIT_S), exit_code, self.said())
        return self.said()

    def run_folder(self):
        return os.path.realpath(self.folder + "/runs/tiny-latest")

    def lines(self, name, run=None):
        try:
            with open(f"{run or self.run_folder()}/{name}") as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def events(self, name):
        return [line for line in self.lines("events.jsonl") if line["event"] == name]

    def curve(self):
        return {line["step"]: line["loss"] for line in self.lines("metrics.jsonl")}

    def parameter_hash(self):
        with open(self.run_folder() + "/result.json") as file:
            return json.load(file)["parameter_hash"]

    def wait_for(self, condition, job):
        give_up_at = time.monotonic() + LIMIT_S
        while not condition():
            self.assertLess(time.monotonic(), give_up_at, self.said())
            self.assertIsNone(job.poll(), self.said())
            time.sleep(0.02)

    def millrace(self, *arguments, exit_code=0):
        done = subprocess.run([MILLRACE, *arguments], env=self.environment, text=True,
                              capture_output=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, exit_code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    # Goal: a job whose processes are all killed goes on from the bucket as if nothing had
    # happened, once it counts as gone; commands read and rewrite what is there; no file of the
    # run holds the secret. Method: the curve and the parameters of a run that was let alone.
    def test_goes_on_from_a_bucket(self):
        job = self.start(self.write_job(self.folder + "/local"))
        self.end(job)
        expected_curve, expected = self.curve(), self.parameter_hash()
        first_run = self.run_folder()

        prefix = BUCKET + "/first/ckpt"
        path = self.write_job(prefix)
        job = self.start(path)
        self.wait_for(lambda: self.run_folder() != first_run
                      and len(self.events("checkpoint_committed")) >= 2, job)
        kill(job)
        committed = self.events("checkpoint_committed")

        job = self.start(path)
        self.end(job)
        committed += self.events("checkpoint_committed")
        self.assertTrue(self.curve())
        self.assertGreater(min(self.curve()), 50)
        self.assertEqual(self.curve(), {step: expected_curve[step] for step in self.curve()})
        self.assertEqual(self.parameter_hash(), expected)
        for name in glob.glob(self.folder + "/runs/**", recursive=True):
            if os.path.isfile(name):
                with open(name, "rb") as file:
                    self.assertNotIn(SECRET.encode(), file.read(), name)

        listed = json.loads(self.millrace("checkpoint", "list", prefix, "--json"))
        # The newest two, of which the last step's is one. Where commits take longer than the steps
        # between them, not every 50th step has one.
        self.assertEqual([entry["step"] for entry in listed],
                         sorted({event["step"] for event in committed})[:-3:-1])
        self.assertEqual(listed[0]["step"], 600)
        newest = listed[0]["path"]
        self.assertIn("is whole", self.millrace("checkpoint", "verify", newest))
        self.millrace("checkpoint", "export", newest, self.folder + "/a.safetensors")
        local = sorted(glob.glob(self.folder + "/local/step-*"))[-1]
        self.millrace("checkpoint", "export", local, self.folder + "/b.safetensors")
        with open(self.folder + "/a.safetensors", "rb") as a:
            with open(self.folder + "/b.safetensors", "rb") as b:
                self.assertEqual(a.read(), b.read())
        self.millrace("checkpoint", "export", newest, self.folder + "/hf", "--to", "huggingface")

        # Another layout, in the bucket and by a job.
        other = BUCKET + "/first/other"
        self.millrace("checkpoint", "reshard", newest, other, "--pipeline", "2")
        self.assertIn("is whole", self.millrace("checkpoint", "verify",
                                                other + "/step-00000600"))
        job = self.start(self.write_job(other, steps=610,
                                        layout="{pipeline: 1, data: 1, tensor: 2, zero: 0}"))
        self.end(job)
        self.assertEqual(min(self.curve()), 601)

    # Goal: while a job lives, another one is refused its prefix by name; the prefix can be had
    # once the job has been stopped, which mpirun may do by SIGKILL. Method: a job without end,
    # another one, and Ctrl-C.
    def test_keeps_one_job(self):
        path = self.write_job(BUCKET + "/one", steps=1000000)
        job = self.start(path)
        self.wait_for(lambda: self.events("checkpoint_committed"), job)
        first_run = self.run_folder()
        said = self.end(self.start(path), exit_code=2)
        self.assertIn("in use by the job of " + first_run, said)
        self.assertIsNone(job.poll())
        job.send_signal(signal.SIGINT)
        job.wait(timeout=LIMIT_S)
        began = time.monotonic()
        last = self.start(self.write_job(BUCKET + "/one", steps=1))
        said = self.end(last)
        print(f"a free prefix is taken, and nothing trained, in {time.monotonic() - began:.1f} s")
        self.assertNotIn("in use", said)

    # Goal: what is wrong with the place is said before training, with the remedy. Method: each
    # mistake, and a path that is none.
    def test_says_what_is_wrong(self):
        prefix = BUCKET + "/wrong"

        def refused(directory=prefix, more="", **environment):
            before = dict(self.environment)
            self.environment.update(environment)
            said = self.end(self.start(self.write_job(directory, more=more)), exit_code=2)
            self.environment = before
            return said

        def command(path, **environment):
            before = dict(self.environment)
            self.environment.update(environment)
            said = self.millrace("checkpoint", "list", path, exit_code=1)
            self.environment = before
            return said

        self.assertIn("AWS_ACCESS_KEY_ID", refused(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY=""))
        self.assertIn("SignatureDoesNotMatch", refused(AWS_SECRET_ACCESS_KEY="wrong"))
        self.assertIn("make the bucket", refused("s3://no-such-bucket/ckpt"))
        self.assertIn("credentials", command(prefix, AWS_ACCESS_KEY_ID="",
                                             AWS_SECRET_ACCESS_KEY=""))
        self.assertIn("SignatureDoesNotMatch", command(prefix, AWS_SECRET_ACCESS_KEY="wrong"))
        self.assertIn("no such folder", command(prefix + "/none"))
        # By TLS the same, of a server whose certificate is trusted, and from no other.
        https = {"AWS_ENDPOINT_URL": self.server.encrypted}
        self.assertIn("certificate is not trusted", command(prefix, **https))
        trusted = {**https, "AWS_CA_BUNDLE": self.server.folder + "/certificate.pem"}
        self.assertIn("no such folder", command(prefix, **trusted))
        elsewhere = self.server.encrypted.replace("localhost", "127.0.0.1")
        self.assertIn("certificate is not trusted",
                      command(prefix, **{**trusted, "AWS_ENDPOINT_URL": elsewhere}))
        self.assertIn("s3://BUCKET/PREFIX", command("s3:/bucket/x"))
        path = self.write_job("s3://x", more=", region: a, endpoint: minio")
        said = self.millrace("plan", path, exit_code=2)
        self.assertIn("checkpoint.directory: expected s3://BUCKET/PREFIX", said)
        self.assertIn("checkpoint.endpoint: expected http://HOST:PORT", said)
        self.assertIn("neither checkpoint.directory nor",
                      self.millrace("plan", self.write_job("checkpoints", more=", region: a"),
                                    exit_code=2))

    # Goal: `millrace doctor` measures the bucket of a job and leaves nothing there, and says what
    # would stop the job, with the remedy. Method: a bucket that serves, and each mistake.
    def test_doctor_examines_the_bucket(self):
        prefix = BUCKET + "/doctor"
        facts = self.folder + "/doctor.json"

        def doctor(directory=prefix, more="", fails=True, **environment):
            before = dict(self.environment)
            self.environment.update(environment)
            said = self.millrace("doctor", self.write_job(directory, more=more), "--json", facts,
                                 exit_code=3 if fails else 0)
            self.environment = before
            with open(facts) as file:
                return said, json.load(file)["hosts"][0]["buckets"]

        said, buckets = doctor(fails=False)
        self.assertIn(f"bucket {prefix}", said)
        self.assertEqual([(bucket["path"], bucket["error"]) for bucket in buckets], [(prefix, "")])
        self.assertGreater(buckets[0]["write_bytes_s"], 1e5)
        self.assertGreater(buckets[0]["read_bytes_s"], 1e5)
        self.assertGreater(buckets[0]["request_s"], 0)
        left = glob.glob(self.server.folder + "/**/*probe-*", recursive=True)
        self.assertEqual(left, [])
        self.assertIn("no such folder", self.millrace("checkpoint", "list", prefix, exit_code=1))
        self.assertIn("AWS_ACCESS_KEY_ID", doctor(AWS_ACCESS_KEY_ID="",
                                                  AWS_SECRET_ACCESS_KEY="")[0])
        self.assertIn("SignatureDoesNotMatch", doctor(AWS_SECRET_ACCESS_KEY="wrong")[0])
        self.assertIn("make the bucket", doctor("s3://no-such-bucket/ckpt")[0])
        self.assertIn("this host reaches it", doctor(AWS_ENDPOINT_URL="http://127.0.0.1:1")[0])
        resume = f", resume: {prefix}/step-00000050"
        said, buckets = doctor(self.folder + "/local", more=resume)
        self.assertIn(f"nothing is at {prefix}/step-00000050", said)
        self.assertEqual(buckets, [])


if __name__ == "__main__":
    MILLRACE = os.path.abspath(sys.argv.pop(1))
    os.chdir(pathlib.Path(__file__).parent.parent.parent)
    unittest.main(verbosity=2)
