"""What a job does of itself when its loss jumps (fault.on_loss_spike), a rank is slow
(fault.on_slow_rank) or a device fails twice (fault.leave_out_ms), as real processes.

    policies_test.py MILLRACE [TEST]...
"""

import os
import random
import re
import shutil
import signal
import sys
import tempfile
import unittest

from fault_case import newest_generation
from fault_jobs import Job, program_of, send
from fault_number_rows import SLOW_KEYS, SlowDown
from hosts_test import TEXT

MILLRACE = ""
STEPS = 140
INTERVAL = 10  # Steps between checkpoints.


class PoliciesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-policies-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, **keys):
        job = Job(MILLRACE, self.folder)
        self.addCleanup(job.kill_all)
        job.write(**keys).start()
        return job


class LossSpikeTest(PoliciesTest):
    """A text that is soon known by heart, with a few lines in it that nobody can know."""

    def setUp(self):
        super().setUp()
        chance = random.Random(1)
        os.mkdir(self.folder + "/text")
        lines = ["the cat sat on the mat and the dog lay by the door.\n"] * 800
        for place in (250, 500):
            lines[place] = "".join(chance.choice("abcdehlmnorsty")
                                   for _ in range(160)) + "\n"
        with open(self.folder + "/text/all.txt", "w") as file:
            file.writelines(lines)

    def train(self, policy, harm=None, memory=""):
        job = self.start(text=self.folder + "/text", steps=STEPS,
                         optimizer="{learning_rate: 1e-2, warmup_steps: 5}",
                         layout="{data: 2, tensor: 1, pipeline: 1, zero: 0}",
                         checkpoint=f"interval_steps: {INTERVAL}",
                         fault=f"on_loss_spike: {policy}{memory}")
        if harm is not None:
            harm(job)
        job.end()
        return job

    def spikes(self, job):
        return [event for event in job.events("loss_spike")]

    # Goal: a spike is told, and by default nothing else follows. Method: every step is trained
    # once, and the event names the loss and what is usual.
    def test_continue_says_so_and_goes_on(self):
        job = self.train("continue")
        self.assertGreaterEqual(len(self.spikes(job)), 1)
        self.assertIn("going on (fault.on_loss_spike: continue)", self.spikes(job)[0]["detail"])
        self.assertEqual([line["step"] for line in job.metrics()], list(range(1, STEPS + 1)))

    # Goal: skip_batch leaves out the batch of the spike and no other, and what was left out
    # stays so whoever dies later. Method: the steps that were trained by the last generations;
    # then the same with a worker, or the coordinator and then a worker, killed after the spike:
    # the parameters are the same bit by bit.
    def test_skip_batch_leaves_out_the_step(self):
        undisturbed = self.train("continue").curve()
        job = self.train("skip_batch")
        spikes = self.spikes(job)
        self.assertGreaterEqual(len(spikes), 1)
        first = spikes[0]["step"]
        left_out = {event["step"] for event in spikes}
        for event in spikes:
            self.assertRegex(event["detail"], f"going back to the last checkpoint and leaving "
                                              f"out step {event['step']} ")
        self.check_left_out(job, spikes, {event["step"]: {event["step"]} for event in spikes})
        curve = job.curve()
        for step in range(1, first):
            self.assertEqual(curve[step], undisturbed[step])
        self.assertNotEqual(curve[first + 1], undisturbed[first + 1])
        self.assertEqual(set(curve), set(range(1, STEPS + 1)) | left_out)
        expected = job.result()["parameter_hash"]

        def after_the_spike(job):
            job.wait_until("the spike", lambda: self.spikes(job))
            generation = newest_generation(job)
            job.wait_until("training", lambda: newest_generation(job) > generation)

        def kill_worker(job):
            after_the_spike(job)
            send(sorted(job.workers().items())[1][1], signal.SIGKILL)

        def kill_both(job):
            after_the_spike(job)
            send(job.processes("coordinator")[0], signal.SIGKILL)
            job.wait_until("a coordinator", lambda: len(job.events("started")) > 1)
            kill_worker(job)

        for harm in (kill_worker, kill_both):
            for memory in ("", ", replica_interval_steps: 3"):
                again = self.train("skip_batch", harm, memory)
                self.assertEqual(len(again.events("worker_died")), 1)
                self.assertEqual(again.result()["parameter_hash"], expected,
                                 f"{harm.__name__}{memory}: {again.tail()}")

    def check_left_out(self, job, spikes, left_out_by):
        """After a spike no later generation trains the steps that were left out."""
        for event in spikes:
            later = [line["step"] for line in job.metrics()
                     if line["generation"] > event["generation"]]
            self.assertFalse(left_out_by[event["step"]] & set(later), (event, later))
            self.assertIn(event["step"] + 1, later)

    # Goal: roll_back leaves out all batches since the last checkpoint. Method: the newest
    # checkpoint that was committed before the spike, which may be some intervals old where
    # steps are short, and the steps that the next generation trains.
    def test_roll_back_leaves_out_all_since_the_checkpoint(self):
        job = self.train("roll_back")
        spikes = self.spikes(job)
        self.assertGreaterEqual(len(spikes), 1)
        committed = 0
        left_out_by = {}
        for event in job.events("checkpoint_committed", "loss_spike"):
            if event["event"] == "checkpoint_committed":
                committed = max(committed, event["step"])
                continue
            first, last = re.search(r"leaving out steps? (\d+)(?: to (\d+))?",
                                    event["detail"]).groups()
            self.assertEqual(int(last or first), event["step"])
            self.assertEqual(int(first) - 1, committed)
            left_out_by[event["step"]] = set(range(int(first), event["step"] + 1))
        self.assertGreater(committed, 0)
        self.check_left_out(job, spikes, left_out_by)

    # Goal: a spike before the first checkpoint leaves out its batch too. Method: no checkpoints
    # but at the end, under both policies.
    def test_goes_back_to_the_beginning_without_a_checkpoint(self):
        global INTERVAL
        interval = INTERVAL
        self.addCleanup(lambda: globals().update(INTERVAL=interval))
        INTERVAL = 0
        for policy in ("skip_batch", "roll_back"):
            job = self.train(policy)
            spikes = self.spikes(job)
            self.assertGreaterEqual(len(spikes), 1)
            for event in spikes:
                self.assertNotIn("last checkpoint", event["detail"])
            self.check_left_out(job, spikes, {event["step"]: {event["step"]} for event in spikes})


class SlowRankTest(PoliciesTest):
    def slow_job(self, **keys):
        job = self.start(**dict(SLOW_KEYS, text=TEXT, **keys))
        job.await_step(30)
        return job

    # Goal: a rank that computes 1.15 times as long is named within thirty steps, where the
    # machine is quiet enough. Method: its process is stopped again and again; the number of
    # steps is printed, and a machine whose noise hides the rank is said to do so.
    def test_slightly_slow_rank_is_named(self):
        job = self.slow_job()
        rank, pid = sorted(job.workers().items())[1]
        step = job.step()
        with SlowDown(pid, 1.15):
            job.wait_until("the notice or the end", lambda: (
                any(event["rank"] == rank and event["step"] > step
                    for event in job.events("slow_rank")) or job.step() >= SLOW_KEYS["steps"]))
        named = [event for event in job.events("slow_rank") if event["step"] > step]
        print([f"rank {event['rank']} named after {event['step'] - step} steps: "
               f"{event['detail']}" for event in named] or "not named: the machine is too noisy")
        job.end()

    # Goal: fault.on_slow_rank: replace restarts the process of a rank that computes twice as
    # long, once, and nobody is hurt by it. Method: the process is stopped again and again until
    # it is gone; the event has the cause; the parameters are those of the run that nobody slowed
    # down.
    def test_replace_restarts_a_slow_rank(self):
        expected = self.slow_job()
        expected.end()
        job = self.slow_job(fault="on_slow_rank: replace")
        rank, pid = sorted(job.workers().items())[1]
        step = job.step()
        with SlowDown(pid, 2.5):
            job.wait_until("the replacement", lambda: job.events("worker_killed"))
        killed, = job.events("worker_killed")
        self.assertEqual(killed["rank"], rank)
        self.assertRegex(killed["detail"], r"^slow: computes [\d.]+ times as long as its "
                                           r"Program's prediction, as learnt; ")
        print(f"replaced after {job.step() - step} steps: {killed['detail']}")
        job.end()
        self.assertEqual(program_of(pid), "")
        self.assertEqual(job.result()["parameter_hash"], expected.result()["parameter_hash"])


class FailingDeviceTest(PoliciesTest):
    KEYS = dict(text=TEXT, steps=2500, batch=12, devices=3,
                layout="{tensor: 1, pipeline: 1, zero: 0}",
                optimizer="{learning_rate: 3e-4, warmup_steps: 5}")

    def kill_twice(self, job):
        """Kills worker 1 of three, and its next process."""
        for num_deaths in (1, 2):
            job.wait_until("training", lambda: len(job.events("training")) == num_deaths)
            step = job.step()
            job.await_step(step + 30)
            send(job.workers()[1], signal.SIGKILL)
            job.wait_until("the death", lambda: len(job.events("worker_died")) == num_deaths)

    # Goal: a device whose worker dies twice is left out, the others go on, and it may take part
    # again when its time is over. Method: the plans, and losses beside the undisturbed job's.
    def test_is_left_out_for_a_while(self):
        expected = self.start(**self.KEYS)
        expected.end()
        job = self.start(**self.KEYS, fault="leave_out_ms: 2000, take_in_hosts: always")
        self.kill_twice(job)
        job.wait_until("the plan of two", lambda: len(job.events("planned")) == 2)
        job.wait_until("the plan of three", lambda: len(job.events("planned")) == 3)
        job.end()
        left_out, = job.events("device_left_out")
        self.assertEqual(left_out["rank"], 1)
        self.assertEqual(left_out["detail"],
                         "failed twice within 1h; the job goes on without it for 2s")
        taken_in, = job.events("taking_in_hosts")
        self.assertGreaterEqual(taken_in["time_s"] - left_out["time_s"], 2)
        layouts = [event["detail"] for event in job.events("planned")]
        self.assertIn("data 3 ", layouts[0])
        self.assertNotIn("data 3 ", layouts[1])
        self.assertEqual(len(job.events("worker_died")), 2)
        curve, undisturbed = job.curve(), expected.curve()
        self.assertEqual(sorted(curve), sorted(undisturbed))
        for step, (loss, _) in curve.items():
            self.assertLessEqual(abs(loss / undisturbed[step][0] - 1), 1e-3, step)

    # Goal: a job that needs the device goes on with it at once. Method: a layout of three.
    def test_is_taken_back_where_it_is_needed(self):
        keys = dict(self.KEYS, layout="{data: 3, tensor: 1, pipeline: 1, zero: 0}", steps=800)
        expected = self.start(**keys)
        expected.end()
        job = self.start(**keys, fault="leave_out_ms: 60000")
        self.kill_twice(job)
        job.end()
        self.assertEqual(len(job.events("device_left_out")), 1)
        self.assertEqual(len(job.events("devices_taken_back")), 1)
        self.assertEqual(job.result()["parameter_hash"], expected.result()["parameter_hash"])


if __name__ == "__main__":
    MILLRACE = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
