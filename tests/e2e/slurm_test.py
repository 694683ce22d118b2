"""Jobs under a real Slurm, whose nodes are the hosts of hosts.py; see slurm.py.

    slurm_test.py MILLRACE [TEST]...
"""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import slurm as slurm_module
from hosts import Hosts, SKIPPED
from hosts_test import IPV6, NO_CHECKPOINTS, copy_text, curve, job_text, write_job
from slurm import Slurm

MILLRACE = ""
SECRET = "0123456789abcdef"
ENDLESS = 1000000
# Open MPI would try the hosts' decoy interface and wait for ever.
OF_OPEN_MPI = {"OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_pml": "ob1",
               "OMPI_MCA_btl_tcp_if_include": "10.77.0.0/24",
               "OMPI_MCA_mpi_yield_when_idle": "1"}


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts = Hosts(3).__enter__()
        cls.addClassCleanup(cls.hosts.__exit__, None, None, None)
        cls.slurm = Slurm(cls.hosts).__enter__()
        cls.addClassCleanup(cls.slurm.__exit__, None, None, None)
        copy_text(cls.hosts, [1, 2, 3])
        # Slurm looks at time limits every half minute, so this job runs beside the tests, which
        # an exclusive one would not let.
        done = cls.slurm.run([MILLRACE, "submit", cls.write_endless_job("limited"), "--slurm",
                              "--now", "--nodes=2", "--time=1", "--warn-seconds=50",
                              "--sbatch=--oversubscribe", "--sbatch=--nodelist=node[1-2]",
                              f"--sbatch=--output={cls.output('limited')}"])
        if done.returncode != 0:
            raise RuntimeError(done.stdout)
        cls.script = done.stdout
        cls.limited = done.stdout.split()[-1]

    @classmethod
    def write_job(cls, name, number=1, **keys):
        """A job on one node alone; its text is on all. Returns its path there."""
        text = job_text(cls.hosts, devices=1, **keys,
                        layout="{pipeline: 1, data: 2, tensor: 1, micro_batch: 4, zero: 0}")
        with open(f"{cls.hosts.folder_of(number)}/{name}.yaml", "w") as file:
            file.write(text.replace("name: tiny", f"name: {name}"))
        return f"{cls.hosts.private}/{name}.yaml"

    @classmethod
    def write_endless_job(cls, name, number=1, interval=0):
        """One whose checkpoints are in a shared folder."""
        os.mkdir(cls.checkpoints(name))
        return cls.write_job(
            name, number, steps=ENDLESS,
            checkpoint=f"{{interval_steps: {interval}, directory: {cls.checkpoints(name)}}}")

    @classmethod
    def submit(cls, name, options, commands, number=1, interval=0):
        """Submits an endless job by this script, in which AGENTS stands for the srun command."""
        job = cls.write_endless_job(name, number, interval)
        agents = f"srun --kill-on-bad-exit=0 {MILLRACE} agent {job}"
        return cls.slurm.submit(f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append
#SBATCH --output={cls.output(name)}
#SBATCH {options}
export MILLRACE_SECRET={SECRET}
{commands.replace("AGENTS", agents)}
""")

    @classmethod
    def checkpoints(cls, name):
        return f"{cls.hosts.folder}/{name}-checkpoints"

    @classmethod
    def output(cls, name):
        return f"{cls.hosts.folder}/{name}.out"

    def text_of(self, name):
        try:
            with open(self.output(name)) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def runs(self, name, number=1):
        """The folders of its runs on that node, the oldest first."""
        return sorted(glob.glob(f"{self.hosts.folder_of(number)}/runs/{name}-2*"))

    def saved_steps(self, name):
        names = os.listdir(self.checkpoints(name))
        return [int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name)]

    def metrics(self, run):
        try:
            with open(run + "/metrics.jsonl") as file:
                lines = file.readlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_until(self, what, condition, name, limit_s=100):
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if condition():
                return
            time.sleep(0.2)
        self.fail(f"waited for {what}\n{self.text_of(name)}")

    def wait_for_steps(self, name, num_runs, number=1):
        def has_steps():
            runs = self.runs(name, number)
            return len(runs) == num_runs and len(self.metrics(runs[-1])) > 5
        self.wait_until(f"steps of run {num_runs}", has_steps, name)

    def wait_for_state(self, job, state, name):
        self.wait_until(state, lambda: self.slurm.state_of(job)[0] == state, name)

    def check_resumed(self, name):
        """The second run goes on right behind the first's last step."""
        first, second = (self.metrics(run) for run in self.runs(name))
        self.assertEqual(second[0]["step"], first[-1]["step"] + 1, self.text_of(name))
        self.assertIn(first[-1]["step"], self.saved_steps(name))

    # Goal: srun's tasks train one job, over two nodes and on one, in a heterogeneous step, with
    # and without PMIx; without a secret and PMIx they say what to do. Method: all losses must
    # be the same over two nodes, and within 2e-5 on one.
    def test_srun(self):
        job = self.write_job("tiny", steps=12, checkpoint=NO_CHECKPOINTS)
        agent = [MILLRACE, "agent", job]
        refused = self.slurm.run(["srun", "-N2", "-n2", *agent])
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("srun --mpi=pmix", refused.stdout)
        curves = []
        places = [["-N2", "-n2"], ["-N1", "-n2", "-w", "node1"],
                  ["-n1", "-w", "node1", *agent, ":", "-n1", "-w", "node2"]]
        if "pmix" in self.slurm.run(["srun", "--mpi=list"]).stdout:
            places.append(["-N2", "-n2", "--mpi=pmix"])
        for place in places:
            variables = OF_OPEN_MPI if "--mpi=pmix" in place else {"MILLRACE_SECRET": SECRET}
            done = self.slurm.run(["srun", "--kill-on-bad-exit=0", *place, *agent], **variables)
            self.assertEqual(done.returncode, 0, done.stdout)
            curves.append([line["loss"] for line in self.metrics(self.runs("tiny")[-1])])
            self.assertEqual(len(curves[-1]), 12)
            if "-N1" in place:  # The plan of one node may add in another order.
                for loss, expected in zip(curves[-1], curves[0]):
                    self.assertLess(abs(loss - expected), 2e-5 * abs(expected))
            else:
                self.assertEqual(curves[-1], curves[0], place)
            time.sleep(1.1)  # Run folders are named by the second.

    # Goal: the tasks of an array are jobs of their own, on the same nodes. Method: both train all
    # their steps, and the same.
    def test_array(self):
        job = self.write_job("array", steps=12, checkpoint=NO_CHECKPOINTS)
        array = self.slurm.submit(f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --nodelist=node[1-2] --array=1-2 --output=/dev/null
export MILLRACE_SECRET={SECRET}
srun {MILLRACE} agent {job}
""")
        for task in (1, 2):
            self.wait_for_state(f"{array}_{task}", "COMPLETED", "array")
        curves = [[line["loss"] for line in self.metrics(run)] for run in self.runs("array")]
        self.assertEqual([len(curve) for curve in curves], [12, 12])
        self.assertEqual(curves[0], curves[1])

    # Goal: a job that Slurm warns of its time limit ends with a checkpoint and the exit code
    # that requeues it, and its next start loses no step; scancel ends that one with a
    # checkpoint too. Method: the script of millrace submit, with a limit of a minute; the first
    # test by name, since its second start has a limit too.
    def test_a_time_limit(self):
        for line in ("#SBATCH --nodes=2", "#SBATCH --signal=USR1@50", "#SBATCH --requeue"):
            self.assertIn(line, self.script)
        self.wait_for_steps("limited", 2)
        self.assertEqual(self.slurm.state_of(self.limited)[1], 1)
        self.check_resumed("limited")
        self.assertIn("Exited with exit code 75", self.text_of("limited"))
        self.assertEqual(self.slurm.state_of(self.limited)[0], "RUNNING")
        stopped = "stopped by request after a checkpoint"
        before = self.text_of("limited").count(stopped)
        self.slurm.run(["scancel", self.limited])
        self.wait_for_state(self.limited, "CANCELLED", "limited")
        last = self.metrics(self.runs("limited")[-1])[-1]["step"]
        self.assertIn(last, self.saved_steps("limited"))
        self.assertEqual(self.text_of("limited").count(stopped), before + 1)

    # Goal: the same where Slurm warns the batch script alone (--signal=B:USR1@...), and requeues
    # by scontrol, for clusters without RequeueExit; later the SIGTERM at the end of the grace
    # does not disturb the checkpoint. Method: docs/cluster.md's script, signalled by scancel.
    def test_batch_script_is_signalled(self):
        job = self.submit("batch", "--time=10", """
AGENTS & agents=$!
trap 'kill -USR1 $agents; signalled=1' USR1
wait $agents; code=$?
if [ "$signalled" ]; then wait $agents; code=$?; fi
echo "code $code"
[ $code != 75 ] || scontrol requeue $SLURM_JOB_ID
exit $code
""")
        self.wait_for_steps("batch", 1)
        self.slurm.run(["scancel", "--batch", "--signal=USR1", job])
        self.wait_for_steps("batch", 2)
        self.assertIn("code 75", self.text_of("batch"))
        self.check_resumed("batch")
        self.slurm.run(["scancel", "--batch", "--signal=USR1", job])
        self.wait_until("the second signal",
                        lambda: self.text_of("batch").count("stopping after") == 2, "batch")
        self.slurm.run(["scancel", job])

        def is_cancelled():
            return self.slurm.state_of(job)[0] == "CANCELLED"

        # Where the script had ended just before, Slurm has started it once more.
        self.wait_until("the end of the second run",
                        lambda: is_cancelled() or len(self.runs("batch")) == 3, "batch")
        if not is_cancelled():
            self.wait_for_steps("batch", 3)
            self.slurm.run(["scancel", job])
        self.wait_for_state(job, "CANCELLED", "batch")
        last = self.metrics(self.runs("batch")[-1])[-1]["step"]
        self.assertIn(last, self.saved_steps("batch"))

    # Goal: a script that could not work is not written, and one that could not requeue says so.
    # Method: jobs and options of that kind, without submitting.
    def test_submit_explains(self):
        job = self.write_job("nowhere", steps=12, checkpoint="{interval_steps: 5}")
        done = self.slurm.run([MILLRACE, "submit", job, "--slurm"])
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("warning: the job ends with its time limit", done.stdout)
        self.assertIn("checkpoint.directory is not set", done.stdout)
        self.assertNotIn("--requeue", done.stdout)
        self.assertIn("--no-requeue", done.stdout)
        done = self.slurm.run([MILLRACE, "submit", "--slurm", "--sbatch=--partition=x", job])
        self.assertEqual(done.returncode, 0, done.stdout)
        ends = self.write_endless_job("ends")
        done = self.slurm.run([MILLRACE, "submit", ends, "--slurm", "--time=0:04:59"])
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("leaves no time to train", done.stdout)
        for options, words in (([], "--slurm"), (["--slurm", "--nodes=0"], "--nodes"),
                               (["--slurm", "--time=1\n2"], "--time holds a line break"),
                               (["--slurm", "--sbatch=gpu"], "no option of sbatch")):
            done = self.slurm.run([MILLRACE, "submit", job, *options])
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(words, done.stdout)
        done = self.slurm.run([MILLRACE, "submit", job, "--slurm", "--now",
                               "--sbatch=--partition=none"])
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("sbatch did not take the job", done.stdout)
        text = job_text(self.hosts).replace("resources: {devices_per_agent: 2, threads_per_device: 1}",
                                            "resources: {backend: cuda}")
        with open(self.hosts.folder_of(1) + "/gpus.yaml", "w") as file:
            file.write(text)
        done = self.slurm.run([MILLRACE, "submit", self.hosts.private + "/gpus.yaml", "--slurm"])
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("give --gpus-per-node", done.stdout)

    # Goal: a job that loses a node starts again when Slurm gives it one, behind its last
    # checkpoint; draining a node leaves the job on it alone. Method: an administrator drains
    # node3, takes it down and brings it back.
    def test_node_is_lost(self):
        job = self.submit("lost", "--nodelist=node[2-3] --time=10", "AGENTS", number=2,
                          interval=100)
        self.wait_until("a checkpoint", lambda: self.saved_steps("lost"), "lost")
        node = ["scontrol", "update", "nodename=node3", "reason=test"]
        self.slurm.run([*node, "state=drain"])
        time.sleep(1)
        self.assertEqual(self.slurm.state_of(job)[:2], ("RUNNING", 0))
        self.slurm.run([*node, "state=down"])
        self.wait_until("the requeue", lambda: self.slurm.state_of(job)[:2] == ("PENDING", 1),
                        "lost")
        saved = max(self.saved_steps("lost"))
        self.slurm.run([*node, "state=resume"])
        self.wait_for_steps("lost", 2, number=2)
        again = self.metrics(self.runs("lost", 2)[-1])
        self.assertGreater(again[0]["step"], saved, self.text_of("lost"))
        self.assertIn(f"/step-{again[0]['step'] - 1:08}\n", self.text_of("lost"))
        self.slurm.run(["scancel", job])
        self.wait_for_state(job, "CANCELLED", "lost")


class FourNodesTest(unittest.TestCase):
    # Goal: srun's tasks on four nodes that share nothing, two ranks each, train what one node
    # trains, over IPv4 and IPv6, and repeat it bit for bit. Method: losses and gradient norms of
    # every step, checkpoints on the nodes' own disks, and a second start that goes on from them.
    def test_four_nodes_that_share_nothing(self):
        with Hosts(4) as hosts, Slurm(hosts) as slurm:
            copy_text(hosts, [1, 2, 3, 4])
            keys = dict(layout="{pipeline: 2, data: 2, tensor: 2, micro_batch: 2, zero: 1}",
                        decay="none")
            saving = f"{{directory: {hosts.private}/ckpt, interval_steps: 4}}"

            def train(**more):
                job = write_job(hosts, **keys, **more)
                done = slurm.run(["srun", "-N4", "-n4", "--kill-on-bad-exit=0", MILLRACE, "agent",
                                  job], MILLRACE_SECRET=SECRET)
                self.assertEqual(done.returncode, 0, done.stdout)
                time.sleep(1.1)  # Run folders are named by the second.
                return curve(hosts)

            first = train()
            self.assertEqual(len(first), 12)
            self.assertEqual(train(extra=IPV6), first)
            self.assertEqual(train(extra=IPV6, steps=8, checkpoint=saving), first[:8])
            self.assertEqual(train(extra=IPV6, checkpoint=saving), first[8:])
            done = hosts.run(1, [MILLRACE, "run", "-n", "8", write_job(hosts, **keys)],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             env=hosts.environment())
            self.assertEqual(done.returncode, 0, done.stdout)
            for (loss, _), (expected, _) in zip(curve(hosts), first):
                self.assertLess(abs(loss - expected), 2e-5 * abs(expected))


if __name__ == "__main__":
    MILLRACE = os.path.abspath(sys.argv.pop(1))
    reason = slurm_module.WhyNot()
    if reason:
        print(f"SKIPPED, nothing was tested: {reason}")
        sys.exit(SKIPPED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        unittest.main(verbosity=2)
    finally:
        SlurmTest.doClassCleanups()  # Ctrl-C ends unittest without them.
