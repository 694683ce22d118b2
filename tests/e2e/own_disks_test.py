"""Jobs whose hosts keep data and checkpoints for each other, over hosts that share nothing but
the network; see hosts.py.

    own_disks_test.py MILLRACE [TEST]...
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

import hosts as hosts_module
import hosts_test
from hosts import Hosts, SKIPPED
from hosts_test import HostJobs, copy_text, curve, records, write_job


def steps_in(folder):
    """The checkpoints there, beside which lies the name of the job that uses the folder."""
    return sorted(name for name in os.listdir(folder) if name.startswith("step-"))


def flip_a_bit(path):
    """Near the end of the file."""
    with open(path, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-100, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


class OwnDisksTest(HostJobs):
    # Goal: hosts whose data lie on one of them train as if all had it, by the coordinator's
    # host and by another one's name; nothing is fetched twice, and what was left unfinished or
    # damaged is completed. Method: the curve of hosts that all have the text; then text, token
    # files and an evaluation set on one host alone, with what the others keep looked at and
    # changed between runs.
    def test_fetches_data_of_one_host(self):
        with Hosts(3) as hosts:
            copy_text(hosts, [1, 2, 3])
            layout = "{pipeline: 1, data: 3, tensor: 1, zero: 0}"
            keys = dict(devices=1, batch=6, layout=layout)
            self.agent(hosts, write_job(hosts, **keys))
            expected = curve(hosts)
            for number in (1, 3):
                shutil.rmtree(hosts.folder_of(number) + "/text")
                shutil.rmtree(hosts.folder_of(number) + "/cache")
            self.check_refused(hosts, write_job(hosts, source="agent0", **keys), "data:")
            self.check_refused(hosts, write_job(hosts, source="node9", **keys),
                               "data.from names node9", "node1, node2, node3")
            job = write_job(hosts, source="node2", extra=f"""
evaluation: {{interval_steps: 6, sets: {{held: ["{hosts.private}/text/*.txt"]}}}}
""", **keys)
            output = self.agent(hosts, job)
            self.assertIn("2 hosts fetch", output)
            self.assertEqual(curve(hosts), expected)
            self.assertTrue(any("evaluation" in line for line in records(hosts)))

            def fetched(number):
                return sorted(path for path in
                              glob.glob(hosts.folder_of(number) + "/cache/fetched/*/*"))

            self.assertFalse(fetched(2))
            before = {path: os.stat(path).st_mtime_ns for path in fetched(3)}
            self.assertTrue(any(path.endswith(".bin") for path in before), before)
            time.sleep(1.1)  # Run folders are named by the second.
            # A file that is there is not fetched again; one that was cut off goes on.
            tokens = next(path for path in before if path.endswith("-00000.bin"))
            with open(tokens, "rb") as file:
                content = file.read()
            os.remove(tokens)
            with open(tokens + ".partial", "wb") as file:
                file.write(content[:100])
            self.agent(hosts, job)
            self.assertEqual(curve(hosts), expected)
            after = {path: os.stat(path).st_mtime_ns for path in fetched(3)}
            self.assertEqual(after.keys(), before.keys())
            self.assertEqual([path for path in after if after[path] != before[path]], [tokens])
            with open(tokens, "rb") as file:
                self.assertEqual(file.read(), content)
            # A beginning that is of something else is found by the fingerprint, and not used.
            os.remove(tokens)
            with open(tokens + ".partial", "wb") as file:
                file.write(b"\0" * 100)
            output = self.agent(hosts, job, exit_code=2)
            self.assertIn("came with fingerprint", output)
            self.assertFalse(os.path.exists(tokens + ".partial"))

            # Token files, which agent 0's host has.
            prepared = glob.glob(hosts.folder_of(2) + "/cache/data/*/*.bin")
            os.mkdir(hosts.folder_of(1) + "/indexed")
            for path in prepared:
                for ending in (".bin", ".idx"):
                    shutil.copy(path[:-4] + ending, hosts.folder_of(1) + "/indexed/a" + ending)
            time.sleep(1.1)
            job = write_job(hosts, source="agent0", data=f"indexed: [{hosts.private}/indexed/a]",
                            **keys)
            self.agent(hosts, job)
            self.assertEqual(curve(hosts), expected)

    # Goal: hosts that share no folder keep checkpoints on their own disks, every part on two of
    # them, and any of them may be lost. Method: train over three hosts, one rank each, and look
    # at who has which part; wipe a host's folder and train on over the others, and then over
    # all; the curve is that of a run that was never interrupted. Last, wipe two neighbours.
    def test_keeps_checkpoints_on_two_hosts(self):
        with Hosts(3) as hosts:
            copy_text(hosts, [1, 2, 3])
            layout = "{pipeline: 1, data: 3, tensor: 1, zero: 1}"
            checkpoints = "{interval_steps: 4, keep: 2, directory: %s/ckpt}" % hosts.private
            secret = {"MILLRACE_SECRET": "0123456789abcdef"}

            def run(numbers, exit_code=0, **keys):
                job = write_job(hosts, devices=1, batch=6, checkpoint=checkpoints, decay="none",
                                **keys)
                agents = [self.start_agent(hosts, 1, [job, "--agents", str(len(numbers)), "--port",
                                                      "4711"], **secret)]
                agents += [self.start_agent(hosts, number, ["--join", "node1:4711"], **secret)
                           for number in numbers[1:]]
                outputs = [self.end_agent(agent, exit_code) for agent in agents]
                time.sleep(1.1)  # Run folders are named by the second.
                return outputs[0]

            def parts(number, step):
                return set(map(os.path.basename,
                               glob.glob(hosts.folder_of(number) + f"/ckpt/step-{step:08}/*")))

            run([1, 2, 3], steps=24, layout=layout)
            expected = curve(hosts)
            for number in (1, 2, 3):
                shutil.rmtree(hosts.folder_of(number) + "/ckpt")
            run([1, 2, 3], steps=12, layout=layout)
            self.assertEqual(curve(hosts), expected[:12])
            with open(hosts.folder_of(1) + "/ckpt/step-00000012/manifest.json") as file:
                manifest = json.load(file)
            places = {entry["file"]: entry["hosts"] for entry in manifest["files"]}
            self.assertEqual(len(places), 3)
            for number in (1, 2, 3):
                steps = steps_in(hosts.folder_of(number) + "/ckpt")
                self.assertEqual(steps, ["step-00000008", "step-00000012"])
                own = {name for name, on in places.items() if f"node{number}" in on}
                self.assertEqual(len(own), 2)
                self.assertEqual(parts(number, 12), own | {"manifest.json"})

            # A copy that is damaged costs nothing: the other one is read, and one line says so.
            # The rank on node1 that wrote the part reads it there first.
            part = next(name for name, on in sorted(places.items()) if "node1" in on)
            flip_a_bit(hosts.folder_of(1) + "/ckpt/step-00000012/" + part)
            output = run([1, 2, 3], steps=13, layout=layout)
            self.assertRegex(output, r"resuming from .*step-00000012")
            line = (rf"step-00000012/{re.escape(part)} on node1 is damaged, and node[23]'s copy "
                    "was read instead")
            self.assertEqual(len(re.findall(line, output)), 1, output)
            events = [record for record in records(hosts, "events.jsonl")
                      if record["event"] == "checkpoint_copy_damaged"]
            self.assertEqual(len(events), 1)
            self.assertRegex(events[0]["detail"], line)
            self.assertEqual([step["step"] for step in records(hosts)], [13])
            for (loss, _), (other, _) in zip(curve(hosts), expected[12:13]):
                self.assertEqual(loss, other)

            # The folders of all hosts together are one checkpoint for millrace checkpoint.
            def checkpoint(verb, folders, *more, exit_code=0):
                command = [hosts_test.MILLRACE, "checkpoint", verb, folders[0]]
                for folder in folders[1:]:
                    command += ["--with", folder]
                done = subprocess.run(command + list(more), text=True, check=False,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual(done.returncode, exit_code, done.stdout)
                return done.stdout

            def folders(*numbers):
                return [hosts.folder_of(number) + "/ckpt/step-00000012" for number in numbers]

            self.assertRegex(checkpoint("verify", folders(1), exit_code=1),
                             "is missing|does not match its checksum")
            output = checkpoint("verify", folders(1, 2, 3))
            self.assertIn("is whole", output)
            self.assertIn(f"{part} on {folders(1)[0]} is damaged", output)
            self.assertIn("given twice", checkpoint("verify", folders(1, 1), exit_code=1))
            self.assertIn("of the same step", checkpoint(
                "verify", [folders(1)[0], hosts.folder_of(2) + "/ckpt"], exit_code=1))
            self.assertIn("no such folder", checkpoint(
                "verify", [folders(1)[0], "/nowhere/step-00000012"], exit_code=1))
            listed = checkpoint("list", [hosts.folder_of(1) + "/ckpt",
                                         hosts.folder_of(2) + "/ckpt"])
            self.assertIn("step       12", listed)
            weights = hosts.folder + "/weights.safetensors"
            output = checkpoint("export", folders(3, 2), weights)
            self.assertIn("wrote", output)
            self.assertGreater(os.path.getsize(weights), 0)
            # Both copies of a part are damaged: the older checkpoint is taken.
            with open(hosts.folder_of(1) + "/ckpt/step-00000013/manifest.json") as file:
                entry = json.load(file)["files"][0]
            for host in entry["hosts"]:
                flip_a_bit(hosts.folder_of(int(host[-1])) + "/ckpt/step-00000013/" + entry["file"])
            output = run([1, 2, 3], steps=13, layout=layout)
            self.assertRegex(output, "checkpoint passed over: .*None of its 2 copies is whole")
            self.assertRegex(output, r"going on from .*step-00000012 instead")
            self.assertEqual(curve(hosts), expected[12:13])
            for number in (1, 2, 3):
                shutil.rmtree(hosts.folder_of(number) + "/ckpt/step-00000013")
            flip_a_bit(hosts.folder_of(1) + "/ckpt/step-00000012/" + part)  # Whole again.

            # The parts of a host that is gone are on the next one.
            shutil.rmtree(hosts.folder_of(3) + "/ckpt")
            output = run([1, 2], steps=16, layout="{pipeline: 1, data: 2, tensor: 1, zero: 1}")
            self.assertIn("resuming from", output)
            self.assertEqual([line["step"] for line in records(hosts)], [13, 14, 15, 16])
            for (loss, _), (other, _) in zip(curve(hosts), expected[12:16]):
                self.assertLess(abs(loss - other), 2e-5 * abs(other))
            # A host that has nothing reads what it needs from the others.
            shutil.rmtree(hosts.folder_of(1) + "/ckpt")
            run([1, 2, 3], steps=24, layout=layout)
            self.assertEqual([line["step"] for line in records(hosts)], list(range(17, 25)))
            for (loss, _), (other, _) in zip(curve(hosts), expected[16:]):
                self.assertLess(abs(loss - other), 2e-5 * abs(other))
            # Both copies of a part are gone.
            for number in (2, 3):
                for path in glob.glob(hosts.folder_of(number) + "/ckpt/*/rank-*"):
                    os.remove(path)
            output = run([1, 2, 3], exit_code=2, steps=30, layout=layout)
            self.assertRegex(output, "is missing, though the manifest names it. It was written on "
                                     "(node2 and node3|node3 and node2)")

    # Goal: a host that is lost for good costs nothing that a checkpoint has; the others go on.
    # Method: kill all of node3 in the middle of a run.
    def test_goes_on_without_a_host_and_its_disk(self):
        with Hosts(3) as hosts:
            copy_text(hosts, [1, 2, 3])
            secret = {"MILLRACE_SECRET": "0123456789abcdef"}
            job = write_job(hosts, devices=1, batch=6, steps=4000, checkpoint="{interval_steps: 5}",
                            extra="fault: {host_timeout_ms: 3000}")
            agents = [self.start_agent(hosts, 1, [job, "--agents", "3", "--port", "4711"], **secret)]
            agents += [self.start_agent(hosts, number, ["--join", "node1:4711"], **secret)
                       for number in (2, 3)]
            lines = []
            for line in agents[0].stdout:
                lines.append(line)
                if glob.glob(hosts.folder_of(1) + "/runs/tiny-2*/checkpoints/*/manifest.json"):
                    break
            agents[2].kill()
            shutil.rmtree(hosts.folder_of(3) + "/runs", ignore_errors=True)
            for line in agents[0].stdout:
                lines.append(line)
                if line.startswith("training again"):
                    break
            agents[0].terminate()
            lines += agents[0].stdout.readlines()
            output = "".join(lines)
            self.assertEqual(agents[0].wait(), 0, output)
            self.assertRegex(output, "training again from step [1-9]")
            self.assertIn("with a checkpoint", output)
            self.end_agent(agents[1])
            agents[2].communicate()
            events = [line["event"] for line in records(hosts, "events.jsonl")]
            self.assertIn("checkpoint_committed", events[events.index("host_lost"):])

    # Goal: hosts that share a folder use it, which nobody has to say; where only some do, these
    # count as one. Method: the same job with a folder that both see, resumed; then three hosts
    # of which two share, by a mount; and a folder that one host cannot write.
    def test_finds_shared_folders(self):
        with Hosts(3) as hosts:
            copy_text(hosts, [1, 2, 3])
            shared = hosts.folder + "/shared"
            for steps in (6, 12):
                job = write_job(hosts, steps=steps,
                                checkpoint=f"{{interval_steps: 6, directory: {shared}}}")
                done = hosts.mpirun([hosts_test.MILLRACE, "agent", job], num_hosts=2)
                self.assertEqual(done.returncode, 0, done.stdout)
                time.sleep(1.1)
            self.assertEqual([line["step"] for line in records(hosts)], list(range(7, 13)))
            self.assertEqual(steps_in(shared), ["step-00000006", "step-00000012"])
            for number in (2, 3):  # Mounted on both hosts, and not on node1.
                os.mkdir(hosts.folder_of(number) + "/ckpt")
                hosts.run(number, ["mount", "--bind", shared, hosts.private + "/ckpt"], check=True)
            job = write_job(hosts, devices=1, batch=6, steps=5,
                            checkpoint=f"{{directory: {hosts.private}/ckpt, resume: none}}")
            self.agent(hosts, job)
            self.assertIn("step-00000005", os.listdir(shared))
            with open(f"{shared}/step-00000005/manifest.json") as file:
                manifest = json.load(file)
            self.assertEqual({tuple(sorted(entry["hosts"])) for entry in manifest["files"]},
                             {("node1", "node2")})
            with open(hosts.folder_of(3) + "/file", "w"):
                pass
            job = write_job(hosts, devices=1, batch=6,
                            checkpoint=f"{{directory: {hosts.private}/file/ckpt}}")
            self.check_refused(hosts, job, "node3", "checkpoint.directory")


if __name__ == "__main__":
    hosts_test.MILLRACE = sys.argv.pop(1)
    reason = hosts_module.WhyNot()
    if reason:
        print(f"SKIPPED, nothing was tested: {reason}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
