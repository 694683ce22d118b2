"""Jobs that lose hosts and go on; see hosts.py.

    lost_hosts_test.py MILLRACE [TEST]...
"""

import json
import os
import re
import shutil
import signal
import sys
import time
import unittest

import hosts as hosts_module
from hosts import SKIPPED
from hosts_test import run_folder, write_job
from lost_hosts_case import FIRST, LostHostsCase, read_lines, records_on

NUM_STEPS = 130
SLOW_PROCESSOR = "tests/data/profiles/slow_processor.yaml"


class LostHostsTest(LostHostsCase):
    undisturbed = None

    def assert_undisturbed(self, curve):
        """`curve` is that of a job where nothing fails. One such job serves all tests: losses
        depend on layouts by less than what is allowed here."""
        if LostHostsTest.undisturbed is None:
            LostHostsTest.undisturbed = self.train_undisturbed()
        self.assertEqual(sorted(curve), list(range(1, NUM_STEPS + 1)))
        for step, loss in curve.items():
            expected = LostHostsTest.undisturbed[step]
            self.assertLess(abs(loss - expected), 2e-5 * expected, step)

    def train_undisturbed(self):
        before = run_folder(self.hosts)
        time.sleep(1.1)  # Run folders are named by the second.
        first, others = self.start(self.write_job(NUM_STEPS, checkpoints=False))
        for process in (first, *others.values()):
            self.end(process)
        self.assertNotEqual(run_folder(self.hosts), before)
        losses = self.curve()
        self.assertEqual(len(losses), NUM_STEPS)
        return losses

    def write_job(self, steps, take_in_hosts="auto", checkpoints=True, fault="",
                  extra="", **keys):
        saving = f"{{directory: {self.hosts.folder}/checkpoints, interval_steps: 20, resume: none}}"
        return write_job(
            self.hosts, steps=steps,
            extra=f"fault: {{host_timeout_ms: 3000, take_in_hosts: {take_in_hosts}{fault}}}\n"
                  + extra,
            checkpoint=saving if checkpoints else "{at_end: false, resume: none}", **keys)

    # Goal: a host that ends costs the steps since the last checkpoint and nothing else: the
    # others go on by a plan for their devices, the curve is that of the undisturbed job, and
    # people read which host it was. Method: losses of every step, undisturbed and with one of
    # four hosts killed.
    def test_goes_on_without_a_host(self):
        first, others = self.start(self.write_job(NUM_STEPS))
        self.wait_until("steps", lambda: self.step() > 45)
        self.kill_host(3)
        output = self.end(first)
        for number in (2, 4):
            self.end(others[number])
        lost, = self.events("host_lost")
        self.assertIn("(node3)", lost["detail"])
        self.assertRegex(output, r"lost agent . of 4 \(node3\).*going on without it")
        # The plan for the hosts that are left was made before one was lost, or begun.
        _, planned = self.events("planned")
        self.assertIn(": " + planned["detail"] + ";", self.events("planned_ahead")[0]["detail"])
        self.assert_undisturbed(self.curve())

    def lose_a_host(self, most_again, **keys):
        """Losses with host 3 killed are those of the undisturbed job; no checkpoint is there."""
        first, others = self.start(self.write_job(NUM_STEPS, checkpoints=False, **keys))
        self.wait_until("steps", lambda: self.step() > 45)
        self.kill_host(3)
        killed = time.monotonic()
        generation = self.records("metrics.jsonl")[-1]["generation"]
        self.wait_until("training", lambda: self.records("metrics.jsonl")[-1]["generation"] >
                        generation)
        print(f"SIGKILL of a host to the next step: {time.monotonic() - killed:.2f} s")
        self.end(first)
        for number in (2, 4):
            self.end(others[number])
        (detail, again), = self.restored()
        print(detail)
        self.assertRegex(detail, "^from memory")
        self.assertLessEqual(again, most_again)
        self.assert_undisturbed(self.curve())

    # Goal: without any checkpoint a lost host costs a step at most where ranks of other hosts
    # hold its state. Method: eight data-parallel ranks on four hosts.
    def test_restores_live_state_after_a_lost_host(self):
        self.lose_a_host(1, layout="{pipeline: 1, tensor: 1, zero: 0}")

    # Goal: hosts that are left share a batch that they do not divide: some run a micro-batch more
    # than others, and the losses stay those of the job where nothing fails. Method: three of four
    # hosts, and a profile by which computing takes nearly all of a step, whatever the machine.
    def test_shares_the_batch_unevenly_after_a_lost_host(self):
        for number in self.numbers:
            shutil.copy(SLOW_PROCESSOR, self.hosts.folder_of(number))
        profile = f"{self.hosts.private}/{os.path.basename(SLOW_PROCESSOR)}"
        keys = {"devices": 1, "batch": 200, "checkpoints": False,
                "layout": "{pipeline: 1, tensor: 1, micro_batch: 1, zero: 0}",
                "extra": f"profile: {profile}\nprofile_output: none\n"}
        curves = []
        for loses in (False, True):
            first, others = self.start(self.write_job(NUM_STEPS, **keys))
            numbers = set(others)
            if loses:
                self.wait_until("steps", lambda: 45 < self.step() < NUM_STEPS - 20)
                self.kill_host(3)
                numbers.remove(3)
            self.end(first)
            for number in numbers:
                self.end(others[number])
            curves.append(self.curve())
            time.sleep(1.1)  # Run folders are named by the second.
        plans = [event["detail"] for event in self.events("planned")]
        self.assertIn("data 4 x tensor 1, 50 micro-batches of 1", plans[0])
        self.assertIn("data 3 x tensor 1, 67 or 66 micro-batches of 1", plans[-1])
        self.assertEqual(sorted(curves[1]), sorted(curves[0]))
        for step, loss in curves[1].items():
            self.assertLess(abs(loss - curves[0][step]), 2e-5 * loss, step)

    # Goal: a host that alone held slices of the state costs less than two intervals of copies,
    # which its partner has, under the layout of the hosts that are left. Method: ZeRO 1.
    def test_restores_copies_of_partners_after_a_lost_host(self):
        self.lose_a_host(3, layout="{pipeline: 1, tensor: 1, zero: 1, data_groups: 1}",
                         fault=", replica_interval_steps: 2")

    # Goal: when a host and the partner of its ranks are lost together, the job goes back to
    # its last checkpoint and says what is missing. Method: two of four hosts at once.
    def test_falls_back_to_disk_when_both_holders_are_lost(self):
        job = self.write_job(steps=120, layout="{pipeline: 1, tensor: 1, zero: 1, data_groups: 1}",
                             fault=", replica_interval_steps: 2")
        first, others = self.start(job)
        self.wait_until("steps", lambda: self.step() > 45)
        # Hosts join in any order, and copies go from each to the next.
        neighbours = sorted(self.numbers, key=self.agent_of)[1:3]
        for number in neighbours:
            self.kill_host(number)
        output = self.end(first)
        for number in set(others) - set(neighbours):
            self.end(others[number])
        incomplete = self.events("replicas_incomplete")
        self.assertRegex(incomplete[0]["detail"], "nobody has the state of ranks? .*checkpoint")
        self.assertIn("not from copies in memory", output)
        detail, again = self.restored()[-1]
        self.assertIn("/checkpoints/step-", detail)
        self.assertLess(again, 40)
        self.assertEqual(sorted(self.curve()), list(range(1, 121)))

    def numbers_by_step(self):
        return {line["step"]: (line["loss"], line["grad_norm"])
                for line in self.records("metrics.jsonl")}

    # Goal: with two partners a job goes on from memory when a host and the first partners of its
    # ranks are lost together, and trains what the undisturbed job does, bit for bit. Method: two
    # of four hosts at once, without any checkpoint. The layout needs all hosts, so both come back;
    # the second partners alone still have the parts of the first host's ranks.
    def test_restores_second_partners_copies_after_two_lost_hosts(self):
        job = self.write_job(
            NUM_STEPS, checkpoints=False,
            layout="{pipeline: 1, tensor: 1, data: 8, zero: 1, data_groups: 1}",
            fault=", replica_interval_steps: 2, replica_partners: 2")
        first, others = self.start(job)
        for process in (first, *others.values()):
            self.end(process)
        undisturbed = self.numbers_by_step()
        self.assertEqual(len(undisturbed), NUM_STEPS)
        folder = self.newest_run()
        time.sleep(1.1)  # Run folders are named by the second.
        first, others = self.start(job)
        self.wait_until("a new run", lambda: self.newest_run() != folder)
        self.wait_until("steps", lambda: self.step() > 45)
        neighbours = sorted(self.numbers, key=self.agent_of)[1:3]
        for number in neighbours:
            self.kill_host(number)
        for number in neighbours:
            others[number] = self.start_agent(number, "--join", FIRST[number])
        output = self.end(first)
        for process in others.values():
            self.end(process)
        self.assertIn("copies on two other hosts", output)
        (detail, again), = self.restored()
        print(detail)
        # The hosts that are left have their own four ranks' parts, and copies of the other four.
        self.assertRegex(detail, r"^from memory \(8 parts, .* 4 by partner's copy")
        self.assertLessEqual(again, 3)
        self.assertEqual(self.numbers_by_step(), undisturbed)

    def host_of_coordinator(self):
        """The host whose records say that the coordinator has come to it; 0: none yet."""
        for number in self.numbers[1:]:
            try:
                folder = run_folder(self.hosts, number)
                with open(folder + "/events.jsonl") as lines:
                    if any('"coordinator_moved"' in line for line in lines):
                        return number
            except (OSError, ValueError):
                pass  # Not there yet.
        return 0

    def lose_the_coordinator(self, others, lose, ends):
        """Returns the losses that the host that goes on recorded."""
        self.wait_until("steps", lambda: self.step() > 45)
        generation = self.records("metrics.jsonl")[-1]["generation"]
        lose()
        lost = time.monotonic()
        self.wait_until("another coordinator", self.host_of_coordinator)
        taken_over = time.monotonic()
        number = self.host_of_coordinator()
        # The records of the host before may not have come yet.
        self.wait_until("training", lambda: any(
            line["generation"] > generation
            for line in records_on(self.hosts, number, "metrics.jsonl")))
        print(f"loss of the coordinator's host to another coordinator: {taken_over - lost:.2f} s,"
              f" to the next step: {time.monotonic() - lost:.2f} s")
        output = {other: self.end(others[other]) for other in ends}
        self.assertIn("report: ", output[number])
        with open(run_folder(self.hosts, number) + "/result.json") as file:
            result = json.load(file)
        self.assertEqual((result["status"], result["steps"]), ("finished", NUM_STEPS))
        return {line["step"]: line["loss"]
                for line in records_on(self.hosts, number, "metrics.jsonl")}

    # Goal: the host that has the coordinator may end too. Another one goes on with its log and
    # its records, no committed step is lost, and the job ends well. Method: kill everything on
    # host 1 of four, with checkpoints in a shared folder and on the hosts' own disks.
    def test_goes_on_without_the_coordinators_host(self):
        job = self.write_job(NUM_STEPS, fault=", coordinator_replicas: 3")
        shared = self.hosts.folder + "/checkpoints"
        old_folder = None
        curves = []
        for directory in (shared, self.hosts.private + "/checkpoints"):
            with open(self.hosts.folder_of(1) + "/job.yaml") as file:
                text = file.read()
            with open(self.hosts.folder_of(1) + "/job.yaml", "w") as file:
                file.write(text.replace(shared, directory))
            first, others = self.start(job)
            self.wait_until("a new run", lambda: self.newest_run() not in (None, old_folder))
            curves.append(self.lose_the_coordinator(others, lambda: self.kill_host(1),
                                                    ends=(2, 3, 4)))
            self.assertEqual(first.wait(), -signal.SIGKILL)
            old_folder = self.newest_run()
            time.sleep(1.1)  # Run folders are named by the second.
        for curve in curves:
            self.assert_undisturbed(curve)

    # Goal: a coordinator that dies is started again on its own host, at once and without the
    # loss of a step, also where others might have it. Method: kill that process alone.
    def test_starts_a_coordinator_again_where_it_was(self):
        job = self.write_job(steps=200, fault=", coordinator_replicas: 3")
        first, others = self.start(job)
        self.wait_until("steps", lambda: self.step() > 45)
        self.kill_host(1, b"coordinator")
        self.wait_until("a coordinator", lambda: len(self.events("started")) == 2)
        for process in (first, *others.values()):
            self.end(process)
        self.assertEqual(self.host_of_coordinator(), 0)
        self.assertEqual([event["event"] for event in self.records("events.jsonl")
                          if event["event"] in ("host_lost", "worker_died")], [])
        self.assertEqual(sorted(self.curve()), list(range(1, 201)))

    # Goal: a job whose coordinator's host is cut off goes on elsewhere, and the coordinator that
    # was cut off gives up by itself and commits nothing any more. Method: cut host 1 off, let
    # the others train to the end, and see what processes of host 1 say and left.
    def test_goes_on_without_a_coordinator_that_is_cut_off(self):
        job = self.write_job(NUM_STEPS, fault=", coordinator_replicas: 3")
        first, others = self.start(job)
        curve = self.lose_the_coordinator(
            others, lambda: self.hosts.run(1, ["ip", "link", "set", "eth0", "down"], check=True),
            ends=(2, 3, 4))
        self.end(first, exit_code=1)
        with open(run_folder(self.hosts) + "/logs/coordinator.log") as log:
            self.assertIn("this process ends", log.read())
        self.hosts.run(1, ["sh", "-c", "ip link set eth0 up;"
                           " ip -6 addr add fd77::1/64 dev eth0 nodad"], check=True)
        self.assert_undisturbed(curve)

    # Goal: a host whose network is cut is left out, and taken in again when it is back, from
    # memory and without any checkpoint, so that no step is trained twice then; its processes of
    # before, which still ran, do no harm. Method: cut one host off until the others go on; then
    # reconnect it. A second host that ends has another agent in its place. Under ZeRO 1 each
    # rank alone holds its slices.
    def test_takes_in_hosts_that_return(self):
        job = self.write_job(steps=4000, take_in_hosts="always", checkpoints=False,
                             layout="{pipeline: 1, tensor: 1, zero: 1, data_groups: 1}",
                             fault=", replica_interval_steps: 1")
        first, others = self.start(job)
        self.wait_until("steps", lambda: self.step() > 25)
        self.hosts.run(2, ["ip", "link", "set", "eth0", "down"], check=True)
        self.wait_until("the loss", lambda: self.events("host_lost"))
        step = self.step()
        self.wait_until("more steps", lambda: self.step() > step)
        self.hosts.run(2, ["sh", "-c", "ip link set eth0 up;"
                           " ip -6 addr add fd77::2/64 dev eth0 nodad"], check=True)
        self.wait_until("the return", lambda: self.events("taking_in_hosts"))
        self.wait_until("all hosts", lambda: len(self.events("planned")) == 3)
        step = self.step()
        self.wait_until("more steps", lambda: self.step() > step)
        self.kill_host(4)
        self.wait_until("the second loss", lambda: len(self.events("host_lost")) == 2)
        again = self.start_agent(4, "--join", FIRST[4])
        self.wait_until("all hosts", lambda: len(self.events("planned")) == 5)
        step = self.step()
        self.wait_until("more steps", lambda: self.step() > step + 5)
        first.send_signal(signal.SIGINT)
        output = self.end(first)
        for process in (others[2], others[3], again):
            self.end(process)
        plans = [int(re.match(r"pipeline 1 x data (\d+)", event["detail"])[1])
                 for event in self.events("planned")]
        self.assertEqual(plans, [8, 4, 8, 4, 8])
        self.assertIn("taking them in with the state in memory", output)
        self.assertEqual(sorted(self.curve()), list(range(1, max(self.curve()) + 1)))
        # Steps trained twice follow from a loss, none from a return.
        generations = {}
        for line in self.records("metrics.jsonl"):
            generations.setdefault(line["generation"], []).append(line["step"])
        grown = [event["generation"] for event in self.events("taking_in_hosts")]
        self.assertEqual(len(grown), 2)
        for generation in grown:
            after = min(g for g in generations if g > generation)
            self.assertEqual(generations[after][0], generations[generation][-1] + 1)
            restored, = (event for event in self.events("restored") if event["generation"] == after)
            self.assertRegex(restored["detail"], r"^from memory .*by live state.*, 0 steps trained")
        stopped = self.events("stop_requested")[0]
        for event in self.events("checkpoint_committed"):
            self.assertGreaterEqual(event["step"], self.step(), stopped)

    # Goal: a host that is lost and comes back changes no loss: they are those of the undisturbed
    # job. Method: a host ends, an agent comes to it at once, and no checkpoint is written.
    def test_returned_hosts_change_no_loss(self):
        job = self.write_job(NUM_STEPS, take_in_hosts="always", checkpoints=False,
                             layout="{pipeline: 1, tensor: 1, zero: 1, data_groups: 1}",
                             fault=", replica_interval_steps: 1")
        first, others = self.start(job)
        self.wait_until("steps", lambda: self.step() > 30)
        self.kill_host(3)
        self.wait_until("the loss", lambda: self.events("host_lost"))
        others[3] = self.start_agent(3, "--join", FIRST[3])
        output = self.end(first)
        for process in others.values():
            self.end(process)
        self.assertIn("taking them in with the state in memory", output)
        self.assertEqual(len(self.events("planned")), 3)
        self.assertEqual([again for _, again in self.restored()][1:], [0])
        self.assertEqual(self.events("checkpoint_committed"), [])
        self.assert_undisturbed(self.curve())

    # Goal: a spare host takes a lost host's place under the same plan, so that every loss is that
    # of the undisturbed job, bit for bit, and starts no process for it. Method: three of four
    # hosts train, under ZeRO 1, by a profile that is known, and one of them is killed; its two
    # ranks' state is with their partners.
    def test_a_spare_host_takes_a_lost_hosts_place(self):
        job = self.write_job(
            NUM_STEPS, checkpoints=False, batch=12,
            layout="{pipeline: 1, tensor: 1, data: 6, micro_batch: 2, zero: 1, "
                   "data_groups: 1}",
            fault=", spare_hosts: 1, replica_interval_steps: 1")
        first, others = self.start(job)
        for process in (first, *others.values()):
            output = self.end(process)
            if process == first:
                self.assertIn("2 devices stay idle, 2 of them on spare hosts", output)
        undisturbed = self.numbers_by_step()
        self.assertEqual(len(undisturbed), NUM_STEPS)
        folder = self.newest_run()
        time.sleep(1.1)  # Run folders are named by the second.
        first, others = self.start(job)
        self.wait_until("a new run", lambda: self.newest_run() != folder)
        self.wait_until("steps", lambda: self.step() > 45)
        by_agent = {self.agent_of(number): number for number in self.numbers}
        log = f"{run_folder(self.hosts, by_agent[3])}/logs/agent-3.log"
        started = [line for line in read_lines(log) if "started worker" in line]
        self.assertEqual(len(started), 2)
        self.kill_host(by_agent[1])
        output = self.end(first)
        self.assertEqual([line for line in read_lines(log) if "started worker" in line], started)
        for agent in (2, 3):
            self.end(others[by_agent[agent]])
        taken, = self.events("spare_taken")
        self.assertRegex(taken["detail"], f"^spare host node{by_agent[3]} takes the place: a step "
                         "takes .* as before")
        self.assertIn(taken["detail"], output)
        self.assertEqual(len(self.events("planned")), 1)
        (detail, again), = self.restored()
        self.assertRegex(detail, r"^from memory \(6 parts")
        self.assertLessEqual(again, 2)
        self.assertEqual(self.numbers_by_step(), undisturbed)

    # Goal: a spare host also takes the place of the coordinator's host: the next coordinator has
    # the plan by its log, and searches none. Method: kill host 1; layouts of six ranks alone fit.
    def test_a_spare_host_takes_the_coordinators_hosts_place(self):
        job = self.write_job(NUM_STEPS, checkpoints=False, batch=12,
                             layout="{pipeline: 1, tensor: 1, data: 6, zero: 0}",
                             fault=", coordinator_replicas: 3, spare_hosts: 1")
        first, others = self.start(job)
        curve = self.lose_the_coordinator(others, lambda: self.kill_host(1), ends=(2, 3, 4))
        self.assertEqual(first.wait(), -signal.SIGKILL)
        events = [event["event"] for event in
                  records_on(self.hosts, self.host_of_coordinator(), "events.jsonl")]
        self.assertEqual((events.count("spare_taken"), events.count("planned")), (1, 1))
        self.assertEqual(sorted(curve), list(range(1, NUM_STEPS + 1)))

    # Goal: the host of a device that fails twice is left out, and a spare host takes its place
    # under the same plan. Method: one worker of a host is killed twice.
    def test_a_spare_host_takes_the_place_of_a_failing_device(self):
        job = self.write_job(
            NUM_STEPS, checkpoints=False, batch=12,
            layout="{pipeline: 1, tensor: 1, data: 6, zero: 0}",
            fault=", spare_hosts: 1, leave_out_ms: 600000, replica_interval_steps: 1")
        first, others = self.start(job)
        self.kill_worker_twice(2)
        by_agent = {self.agent_of(number): number for number in self.numbers}
        output = self.end(first)
        for process in others.values():
            self.end(process)
        left_out, = self.events("device_left_out")
        self.assertEqual((left_out["rank"], left_out["host"]), (2, f"node{by_agent[1]}"))
        taken, = self.events("spare_taken")
        self.assertIn(f"spare host node{by_agent[3]} takes the place", taken["detail"])
        self.assertIn("failed twice within 1h; the job goes on without agent 1 of 4 "
                      f"(node{by_agent[1]}) for 10m", output)
        self.assertEqual(len(self.events("planned")), 1)
        self.assertEqual(sorted(self.curve()), list(range(1, NUM_STEPS + 1)))

    # Goal: when no spare host is left the job shrinks; the host that comes back trains, and the
    # next is spare again. Too many spare hosts are refused. Method: two of four hosts are killed
    # one after the other, and come back so.
    def test_shrinks_without_a_spare_host(self):
        job = self.write_job(4000, checkpoints=False, fault=", spare_hosts: 4")
        refused = self.end(self.start_agent(1, job, "--agents", "4", "--port", "4711"), 2)
        self.assertIn("fault.spare_hosts is 4, and the job has 4 agents", refused)
        job = self.write_job(4000, take_in_hosts="always", checkpoints=False, batch=12,
                             layout="{pipeline: 1, tensor: 1, zero: 0}", fault=", spare_hosts: 1")
        first, others = self.start(job)
        self.wait_until("steps", lambda: self.step() > 25)
        by_agent = {self.agent_of(number): number for number in self.numbers}
        for agent, event in ((1, "spare_taken"), (2, "planned_ahead")):
            self.kill_host(by_agent[agent])
            self.wait_until("the loss", lambda: len(self.events("host_lost")) == agent)
            step = self.step()
            self.wait_until("more steps", lambda: self.step() > step + 5)
            self.assertNotEqual(self.events(event), [])
        for agent in (1, 2):
            others[by_agent[agent]] = self.start_agent(by_agent[agent], "--join",
                                                       FIRST[by_agent[agent]])
            self.wait_until("the return", lambda: len(self.events("host_returned")) == agent)
            step = self.step()
            self.wait_until("more steps", lambda: self.step() > step + 20)
        first.send_signal(signal.SIGINT)
        output = self.end(first)
        for process in others.values():
            if process.poll() is None:
                self.end(process)
        self.assertIn("no spare host is left: the others shrink to 4 devices", output)
        self.assertIn("as many hosts train as the job asks for, so it is spare", output)
        plans = [int(re.match(r"pipeline 1 x data (\d+)", event["detail"])[1])
                 for event in self.events("planned")]
        self.assertEqual(plans, [6, 4, 6])
        self.assertEqual(sorted(self.curve()), list(range(1, max(self.curve()) + 1)))

    # Goal: hosts that cannot go on without another wait for it, say why, and end with that
    # reason when it stays away. Method: a job that asks for eight ranks.
    def test_waits_for_a_host_it_needs(self):
        job = self.write_job(steps=4000, layout="{pipeline: 1, tensor: 1, data: 8}")
        first, others = self.start(job)
        self.wait_until("steps", lambda: self.step() > 25)
        self.kill_host(3)
        self.wait_until("the wait", lambda: self.events("waiting_for_hosts"))
        again = self.start_agent(3, "--join", FIRST[3])
        step = self.step()
        self.wait_until("more steps", lambda: self.step() > step + 5)
        first.send_signal(signal.SIGINT)
        output = self.end(first)
        for process in (others[2], others[4], again):
            self.end(process)
        self.assertIn("the other hosts cannot go on, waiting for those that are lost", output)


if __name__ == "__main__":
    LostHostsCase.millrace = sys.argv.pop(1)
    reason = hosts_module.WhyNot()
    if reason:
        print(f"SKIPPED, nothing was tested: {reason}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
