"""`millrace doctor` over several hosts; see hosts.py.

    doctor_test.py MILLRACE [TEST]...
"""

import glob
import json
import os
import subprocess
import sys
import unittest

import hosts as hosts_module
from hosts import Hosts, SKIPPED

MILLRACE = ""
WOULD_FAIL = 3


def put_wrapper(hosts, number, before=""):
    """Puts a program of the same name on a host, which runs `before` first."""
    path = hosts.folder_of(number) + "/doctor"
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\n{before}\nexec {MILLRACE} doctor \"$@\"\n")
    os.chmod(path, 0o755)
    return hosts.private + "/doctor"


class DoctorTest(unittest.TestCase):
    def doctor(self, hosts, program=None, exit_code=0, arguments=(), **keywords):
        """The text and the JSON of an examination."""
        command = program or [MILLRACE, "doctor"]
        done = hosts.mpirun([*command, "--json", hosts.private + "/doctor.json", *arguments],
                            timeout=120, **keywords)
        self.assertEqual(done.returncode, exit_code, done.stdout)
        with open(hosts.folder_of(1) + "/doctor.json") as file:
            return done.stdout, json.load(file)

    # Goal: healthy hosts pass, every host and pair is in the tables, and an address that all
    # hosts have (the decoy's) is neither a way nor an error. Method: two hosts by mpirun.
    def test_healthy_hosts(self):
        with Hosts(2) as hosts:
            text, found = self.doctor(hosts)
            self.assertIn("a job would run" if found["findings"] else "all well", text)
            self.assertFalse(found["would_fail"])
            self.assertEqual([host["host"] for host in found["hosts"]], ["node1", "node2"])
            self.assertEqual([(rail["own_interface"], rail["interface"])
                              for rail in found["rails"]], [("eth0", "eth0")])
            rail = found["rails"][0]
            self.assertGreater(rail["there_bytes_s"], 1e7)
            self.assertGreater(rail["back_bytes_s"], 1e7)
            self.assertLess(abs(rail["clock_offset_s"]), 0.01)
            self.assertEqual({way["address"] for way in found["reached"] if not way["error"]},
                             {"10.77.0.1", "10.77.0.2", "fd77::1", "fd77::2"})
            self.assertEqual({way["address"] for way in found["reached"] if way["error"]},
                             {"172.17.0.1"})
            self.assertTrue(all(way["led_elsewhere"] for way in found["reached"] if way["error"]))
            # The working folder is the machine's, so both see it.
            self.assertIn("shared by all hosts", text)
            self.assertEqual(glob.glob("probe-*") + glob.glob("runs/probe-*"), [])

    # Goal: two hosts whose packets are lost do not hang the examination and are named with the
    # addresses tried; the others are measured. Method: one host sends what is for the other to
    # a card that is not there.
    def test_blocked_pair(self):
        with Hosts(3) as hosts:
            for family, address in (("-4", "10.77.0.3"), ("-6", "fd77::3")):
                hosts.run(2, ["ip", family, "neigh", "replace", address, "lladdr",
                              "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"], check=True)
            text, found = self.doctor(hosts, exit_code=WOULD_FAIL)
            self.assertIn("10.77.0.3 (no answer in 3s), fd77::3 (no answer in 3s)", text)
            self.assertIn("FAILS    node2: does not reach node3 at ", text)
            self.assertIn("FAILS    node3: does not reach node2 at ", text)
            self.assertIn("3 hosts: a job would fail", text)
            self.assertEqual([(rail["from"], rail["to"]) for rail in
                              sorted(found["rails"], key=lambda rail: rail["to"])],
                             [(0, 1), (0, 2)])

    # Goal: settings of the network that differ are named. Method: packet sizes and a variable.
    def test_network_settings(self):
        with Hosts(2) as hosts:
            hosts.run(2, ["ip", "link", "set", "eth0", "mtu", "1400"], check=True)
            put_wrapper(hosts, 1)
            program = [put_wrapper(hosts, 2, "export NCCL_IB_DISABLE=1")]
            text, _ = self.doctor(hosts, program)
            self.assertIn("warning  node2: packet sizes (MTU): decoy0 1500, eth0 1400, "
                          "others have decoy0 1500, eth0 1500", text)
            self.assertIn("warning  node2: NCCL's and Gloo's variables: NCCL_IB_DISABLE=1, "
                          "others have none", text)

    # Goal: a host with lower limits is named, a warning first, a failure where a job of these
    # hosts would exceed it. Method: ulimit on one of two hosts.
    def test_lower_limits(self):
        with Hosts(2) as hosts:
            put_wrapper(hosts, 1, "ulimit -n 1024")
            program = [put_wrapper(hosts, 2, "ulimit -n 500")]
            text, _ = self.doctor(hosts, program)
            self.assertIn("warning  node2: open files: 500, others have 1024", text)
            put_wrapper(hosts, 2, "ulimit -n 64")
            text, found = self.doctor(hosts, program, exit_code=WOULD_FAIL)
            self.assertTrue(found["would_fail"])
            self.assertIn("FAILS    node2: open files: 64 are allowed", text)

    def write_job(self, hosts, number, extra="", checkpoint="{interval_steps: 5}"):
        """Writes a job and a text that it trains on, on one host."""
        folder = hosts.folder_of(number)
        with open(folder + "/text.txt", "w") as file:
            file.write("The same text on all hosts. " * 100)
        with open(folder + "/job.yaml", "w") as file:
            file.write(f"""\
name: tiny
model: {{family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4, kv_heads: 2,
        ffn_hidden: 64, sequence_length: 32}}
data: {{text: [{hosts.private}/text.txt], cache_directory: {hosts.private}/cache}}
training: {{steps: 12, global_batch: 8, seed: 3, optimizer: {{learning_rate: 3e-3}}}}
resources: {{devices_per_agent: 2, threads_per_device: 1}}
checkpoint: {checkpoint}
output: {{directory: {hosts.private}/runs}}
{extra}""")
        return hosts.private + "/job.yaml"

    # Goal: what a job would be refused for is found beforehand, each with its host. Method: a
    # job whose hosts share no folder, which is fine; then one thing amiss after the other.
    def test_job_file(self):
        with Hosts(2) as hosts:
            job = self.write_job(hosts, 1)
            self.write_job(hosts, 2)
            text, _ = self.doctor(hosts, arguments=[job])
            self.assertIn("node2: does not see the checkpoint folder", text)
            self.assertNotIn("FAILS", text)

            without = "{at_end: false, interval_steps: 0, resume: none}"
            self.write_job(hosts, 1, checkpoint=without)
            text, _ = self.doctor(hosts, exit_code=WOULD_FAIL, arguments=[job])
            self.assertIn("FAILS    node2: this host's copy of the job differs: "
                          "checkpoint.interval_steps is 5 here and 0", text)
            os.remove(hosts.folder_of(2) + "/job.yaml")
            text, found = self.doctor(hosts, arguments=[job])
            self.assertEqual([host["devices"] for host in found["hosts"]], [2, 2])

            with open(hosts.folder_of(2) + "/text.txt", "a") as file:
                file.write("One sentence more.")
            text, _ = self.doctor(hosts, exit_code=WOULD_FAIL, arguments=[job])
            self.assertIn("FAILS    node2: data of the job: 1 files", text)
            os.remove(hosts.folder_of(2) + "/text.txt")
            text, _ = self.doctor(hosts, exit_code=WOULD_FAIL, arguments=[job])
            self.assertIn("FAILS    node2: data.text", text)

            self.write_job(hosts, 1, checkpoint=without, extra="network: {interface: only_here}")
            done = hosts.mpirun([MILLRACE, "doctor", job], timeout=120)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("no address of this host suits network.interface only_here", done.stdout)

    # Goal: without MPI the hosts meet by an address and a secret, and all end with one exit
    # code; another secret gets nowhere. Method: two hosts by hand.
    def test_by_hand(self):
        with Hosts(2) as hosts:
            environment = hosts.environment(MILLRACE_SECRET="0123456789abcdef")
            first = subprocess.Popen(
                hosts.command_on(1) + [MILLRACE, "doctor", "--agents", "2", "--port", "4711"],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
            joined = hosts.run(2, [MILLRACE, "doctor", "--join", "node1:4711"],
                               capture_output=True, env=environment)
            text, _ = first.communicate(timeout=120)
            self.assertEqual((first.returncode, joined.returncode), (0, 0), text + joined.stderr)
            self.assertIn("millrace doctor --join node1:4711", text)
            self.assertIn("node2", text)
            self.assertIn("1 way between hosts", text)

    # Goal: one host alone needs no launcher.
    def test_one_host(self):
        with Hosts(1) as hosts:
            done = hosts.run(1, [MILLRACE, "doctor"], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, env=hosts.environment())
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("node1", done.stdout)
            self.assertIn("\n1 host: ", done.stdout)


if __name__ == "__main__":
    MILLRACE = os.path.abspath(sys.argv.pop(1))
    WHY_NOT = hosts_module.WhyNot()
    if WHY_NOT:
        print(f"SKIPPED, nothing was tested: {WHY_NOT}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
