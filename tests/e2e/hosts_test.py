"""Jobs over several hosts that share nothing but the network; see hosts.py.

    hosts_test.py MILLRACE [TEST]...
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

import hosts as hosts_module
from hosts import Hosts, SKIPPED

MILLRACE = ""
TEXT = "tests/data/text"

# Neither writes checkpoints nor looks for some.
NO_CHECKPOINTS = "{at_end: false, interval_steps: 0, resume: none}"


IPV6 = "network: {subnet: 'fd77::/64'}"


def job_text(hosts, steps=12, layout="auto", devices=2, batch=8,
             checkpoint=NO_CHECKPOINTS, data="", source="", decay="cosine", extra=""):
    data = data or f"text: [{hosts.private}/text/*.txt]"
    if source:
        data += f", from: {source}"
    return f"""\
name: tiny
model: {{family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4, kv_heads: 2,
        ffn_hidden: 64, sequence_length: 32}}
data: {{{data}, cache_directory: {hosts.private}/cache}}
training: {{steps: {steps}, global_batch: {batch}, seed: 3,
           optimizer: {{learning_rate: 3e-3, warmup_steps: 5, decay: {decay}}}}}
resources: {{devices_per_agent: {devices}, threads_per_device: 1}}
layout: {layout}
checkpoint: {checkpoint}
output: {{directory: {hosts.private}/runs}}
{extra}"""


def write_job(hosts, number=1, **keys):
    """Writes the job on one host alone and returns its path there."""
    with open(hosts.folder_of(number) + "/job.yaml", "w") as file:
        file.write(job_text(hosts, **keys))
    return hosts.private + "/job.yaml"


def copy_text(hosts, numbers):
    for number in numbers:
        shutil.copytree(TEXT, hosts.folder_of(number) + "/text")


def run_folder(hosts, number=1):
    """The newest run's folder of that host, as the machine sees it."""
    return max(glob.glob(hosts.folder_of(number) + "/runs/tiny-2*"), key=os.path.getmtime)


def records(hosts, file="metrics.jsonl"):
    with open(f"{run_folder(hosts)}/{file}") as lines:
        return [json.loads(line) for line in lines]


def curve(hosts):
    return [(line["loss"], line["grad_norm"]) for line in records(hosts)]


class HostJobs(unittest.TestCase):
    """Starts agents on hosts, and checks how they end."""

    def agent(self, hosts, job, exit_code=0, **keywords):
        done = hosts.mpirun([MILLRACE, "agent", job], **keywords)
        self.assertEqual(done.returncode, exit_code, done.stdout)
        return done.stdout

    def check_refused(self, hosts, job, *words, **variables):
        output = self.agent(hosts, job, exit_code=2, **variables)
        for word in words:
            self.assertIn(word, output)

    def start_agent(self, hosts, number, words, **variables):
        return subprocess.Popen(hosts.command_on(number) + [MILLRACE, "agent", *words], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env=hosts.environment(**variables))

    def end_agent(self, process, exit_code=0):
        output = process.communicate(timeout=240)[0]
        self.assertEqual(process.returncode, exit_code, output)
        return output


class HostsTest(HostJobs):
    def check_trains(self, num_hosts, layout, networks=("", "")):
        """Trains over the hosts once a network and then on one host, and compares the curves."""
        with Hosts(num_hosts) as hosts:
            copy_text(hosts, range(1, num_hosts + 1))
            job = write_job(hosts, layout=layout, extra=networks[0])
            self.agent(hosts, job)
            first = curve(hosts)
            self.assertEqual(len(first), 12)
            self.check_timeline(hosts, 2 * num_hosts)
            own = os.listdir(run_folder(hosts, num_hosts) + "/logs")
            self.assertEqual(sorted(own), [f"agent-{num_hosts - 1}.log",
                                           *(f"worker-{2 * num_hosts - i:04}.log" for i in (2, 1))])
            for network in networks[1:]:
                time.sleep(1.1)  # Run folders are named by the second.
                job = write_job(hosts, layout=layout, extra=network)
                self.agent(hosts, job)
                self.assertEqual(curve(hosts), first)
                if network:
                    with open(run_folder(hosts, num_hosts) +
                              f"/logs/agent-{num_hosts - 1}.log") as log:
                        self.assertIn(f"at fd77::{num_hosts}, over eth0", log.read())
            time.sleep(1.1)
            job = write_job(hosts, layout=layout)
            done = hosts.run(1, [MILLRACE, "run", "-n", str(2 * num_hosts), job],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             env=hosts.environment())
            self.assertEqual(done.returncode, 0, done.stdout)
            self.check_close(first, curve(hosts))

    def check_timeline(self, hosts, num_ranks):
        """One timeline holds all hosts' ranks, whose steps overlap on its one clock."""
        with open(run_folder(hosts) + "/timelines/measured.json") as file:
            timeline = json.load(file)
        self.assertEqual([rank["rank"] for rank in timeline["ranks"]], list(range(num_ranks)))
        begins = [rank["begin_s"] for rank in timeline["ranks"]]
        self.assertEqual(min(begins), 0)
        # The ranks end their step in one all-reduce.
        self.assertLess(max(begins), max(rank["events"][-1][2] for rank in timeline["ranks"]))
        trace = hosts.folder + "/trace.json"
        subprocess.run([MILLRACE, "report", run_folder(hosts), "--trace", trace], check=True,
                       stdout=subprocess.DEVNULL)
        with open(trace) as file:
            names = {event["args"]["name"] for event in json.load(file)["traceEvents"]
                     if event["name"] == "process_name"}
        self.assertTrue(any(name.startswith(f"rank {num_ranks - 1} on node{num_ranks // 2}, ")
                            for name in names), names)

    def check_close(self, over_hosts, on_one_host):
        """The plan of one host may add in another order."""
        self.assertEqual(len(over_hosts), len(on_one_host))
        for (loss, _), (expected, _) in zip(over_hosts, on_one_host):
            self.assertLess(abs(loss - expected), 2e-5 * abs(expected))

    # Goal: hosts that share nothing, not even the job file, train what one host trains, and
    # repeat it bit for bit, over IPv4 and over IPv6. Method: losses and gradient norms of every
    # step. The layout states zero: what the first run learns could else change it, and with it
    # the order of sums.
    def test_two_hosts_train(self):
        self.check_trains(2, "{pipeline: 2, data: 2, tensor: 1, micro_batch: 2, zero: 0}")

    def test_four_hosts_train(self):
        self.check_trains(4, "{pipeline: 2, data: 2, tensor: 2, micro_batch: 2, zero: 1}",
                          networks=("", IPV6, IPV6))

    # Goal: hosts that differ are refused before training, with host and difference named.
    # Method: one difference at a time; then without it the job trains.
    def test_refuses_hosts_that_differ(self):
        global MILLRACE
        with Hosts(2) as hosts:
            copy_text(hosts, [1, 2])
            job = write_job(hosts, checkpoint=NO_CHECKPOINTS)
            write_job(hosts, number=2, steps=13)
            self.check_refused(hosts, job, "node2, agent 1", "training.steps is 13 here and 12")
            with open(hosts.folder_of(2) + "/job.yaml", "w") as file:
                file.write("name: [\n")
            self.check_refused(hosts, job, "node2, agent 1", "job.yaml")
            os.remove(hosts.folder_of(2) + "/job.yaml")

            text = sorted(glob.glob(hosts.folder_of(2) + "/text/*.txt"))[0]
            with open(text, "a") as file:
                file.write("One sentence more than on the other host.\n")
            self.check_refused(hosts, job, "node1", "node2", "different")
            shutil.rmtree(hosts.folder_of(2) + "/text")
            self.check_refused(hosts, job, "node2, agent 1", "data")
            copy_text(hosts, [2])

            common = MILLRACE
            try:
                MILLRACE = hosts.private + "/millrace"
                for number in (1, 2):
                    shutil.copy(common, hosts.folder_of(number) + "/millrace")
                other = hosts.folder_of(2) + "/millrace"
                subprocess.run(["objcopy", "--remove-section=.note.gnu.build-id", other],
                               check=True)
                self.check_refused(hosts, job, "node2, agent 1", "an unknown build", "node1")
            finally:
                MILLRACE = common
            self.agent(hosts, job)

    # Goal: a coordinator that is killed leaves none of its probes in the shared folder. Method:
    # kill it while it waits for the second agent, which comes to the next one.
    def test_leaves_no_probes(self):
        with Hosts(2) as hosts:
            copy_text(hosts, [1, 2])
            shared = hosts.folder + "/shared"
            job = write_job(hosts, checkpoint=f"{{directory: {shared}}}")
            first = self.start_agent(hosts, 1, [job, "--agents", "2", "--port", "4711"],
                                     MILLRACE_SECRET="0123456789abcdef")
            first.stdout.readline()  # It waits.

            def coordinator(other_than=None):
                for _ in range(200):
                    found = hosts.run(1, ["pgrep", "-P", str(first.pid)], capture_output=True)
                    if found.stdout.strip() not in ("", other_than):
                        if any(name.startswith("probe") for name in os.listdir(shared)):
                            return found.stdout.strip()
                    time.sleep(0.05)
                self.fail("no coordinator")

            os.makedirs(shared, exist_ok=True)
            killed = coordinator()
            os.kill(int(killed), 9)
            coordinator(other_than=killed)
            time.sleep(0.5)  # Its own probe is written.
            self.assertEqual(len(os.listdir(shared)), 1, os.listdir(shared))
            self.end_agent(self.start_agent(hosts, 2, ["--join", "node1:4711"],
                                            MILLRACE_SECRET="0123456789abcdef"))
            self.end_agent(first)
            self.assertEqual(sorted(os.listdir(shared)), [".owner", "step-00000012"])

    # Goal: whoever reads of a dead rank learns on which host it was, and finds the end of its
    # log on agent 0's host. NCCL is told the interface, and a user's own choice stays. Method:
    # look at the environment of one of node2's workers and kill it; then stop the job, which
    # promises a checkpoint on the hosts' own disks.
    def test_names_the_host_of_a_dead_rank(self):
        with Hosts(2) as hosts:
            copy_text(hosts, [1, 2])
            job = write_job(hosts, steps=4000)
            with subprocess.Popen(hosts.mpirun_command([MILLRACE, "agent", job],
                                                       variables=["NCCL_SOCKET_FAMILY"]),
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env=hosts.environment(NCCL_SOCKET_FAMILY="AF_INET6")
                                  ) as process:
                lines = []
                for line in process.stdout:
                    lines.append(line)
                    if line.startswith("step"):
                        break
                worker = hosts.run(2, ["pgrep", "-f", f"worker --worker 3 .*"
                                       f"{hosts.private}"], capture_output=True)
                pid = int(worker.stdout.split()[0])
                with open(f"/proc/{pid}/environ") as environment:
                    variables = environment.read().split("\0")
                self.assertIn("NCCL_SOCKET_IFNAME==eth0", variables)
                self.assertIn("NCCL_SOCKET_FAMILY=AF_INET6", variables)
                os.kill(pid, 9)
                for line in process.stdout:
                    lines.append(line)
                    if line.startswith("training again"):
                        break
                process.terminate()
                lines += process.stdout.readlines()
            output = "".join(lines)
            self.assertIn("rank 3 (node2) died: killed by signal 9", output)
            self.assertIn("stopping after this step, with a checkpoint", output)
            with open(run_folder(hosts) + "/logs/worker-0003.log") as log:
                self.assertIn("The end of node2:", log.read())

    # Goal: the job's keys and the environment choose the network, IPv6 as well as IPv4. Method:
    # look at where workers say that they listen, by the agent's record of them.
    def test_the_network_is_chosen(self):
        cases = [
            ("network: {subnet: 'fd77::/64', ports: 20000-20010}", {}, r"fd77::"),
            ("network: {interface: '^decoy,wlan'}", {}, r"10\.77\.0\."),
            ("network: {interface: '=eth0'}", {"NCCL_SOCKET_IFNAME": "decoy0"}, r"10\.77\.0\."),
            ("", {"GLOO_SOCKET_IFNAME": "eth"}, r"10\.77\.0\."),
        ]
        with Hosts(2) as hosts:
            copy_text(hosts, [1, 2])
            for extra, variables, address in cases:
                job = write_job(hosts, steps=6, extra=extra)
                self.agent(hosts, job, **variables)
                for number in (1, 2):
                    with open(f"{run_folder(hosts, number)}/logs/agent-{number - 1}.log") as log:
                        self.assertRegex(log.read(), f"at {address}{number}, over eth0")
                time.sleep(1.1)  # Run folders are named by the second.

    # Goal: a network that cannot work is refused with the reason and what there is. Method: a
    # key or variable that suits no interface, ports that are taken, and none that is open.
    def test_explains_networks_that_cannot_work(self):
        with Hosts(2) as hosts:
            copy_text(hosts, [1, 2])
            job = write_job(hosts, extra="network: {interface: ib}")
            self.check_refused(hosts, job, "network.interface ib", "eth0 (10.77.0.1)", "fd77::1")
            job = write_job(hosts, extra="network: {subnet: 10.0.0.1}")
            self.check_refused(hosts, job, "network.subnet", "expected a subnet")
            job = write_job(hosts)
            self.check_refused(hosts, job, "MILLRACE_SECRET is no secret", MILLRACE_SECRET="short")
            self.check_refused(hosts, job, "GLOO_SOCKET_IFNAME ib", GLOO_SOCKET_IFNAME="ib")
            listen = ("import socket; s = socket.create_server(('::', 20000),"
                      " family=socket.AF_INET6, dualstack_ipv6=True); print('up', flush=True);"
                      " s.accept()")
            with subprocess.Popen(hosts.command_on(1) + ["python3", "-c", listen],
                                  stdout=subprocess.PIPE, text=True) as taken:
                taken.stdout.readline()
                job = write_job(hosts, extra="network: {ports: 20000}")
                output = self.agent(hosts, job, exit_code=1)
                self.assertIn("port 20000 (network.ports) is in use", output)
                taken.kill()
            # Only node2 lacks the interface.
            hosts.run(1, ["ip", "link", "add", "only1", "type", "bridge"], check=True)
            hosts.run(1, ["sh", "-c", "ip addr add 10.78.0.1/24 dev only1; ip link set only1 up"],
                      check=True)
            job = write_job(hosts, extra="network: {interface: 'only1'}")
            output = self.agent(hosts, job, exit_code=1)
            self.assertIn("no coordinator for 30s at 10.78.0.1:", output)
            self.assertIn("agent 1 (node2)", output)

    # Goal: agents find each other without any launcher, whoever comes first, and nobody else
    # gets in. Method: one command a host, as ssh or systemd would start it, one of them by a
    # name of node1 that is known only later; then a second agent of a host, secrets that are
    # none or that others may read, and an address that is none. Last, some agents come by IPv4
    # and some by IPv6: workers use the kind that all hosts have, and the job is refused where
    # one host has the one kind alone and another the other.
    def test_joins_without_a_launcher(self):
        with Hosts(3) as hosts:
            copy_text(hosts, [1, 2, 3])
            job = write_job(hosts, devices=1, batch=6, layout="{pipeline: 1, data: 3}")
            secret = hosts.private + "/secret"
            for number in (1, 2, 3):
                with open(hosts.folder_of(number) + "/secret", "w") as file:
                    file.write("0123456789abcdef\n")
                os.chmod(hosts.folder_of(number) + "/secret", 0o600)
            joining = ["--join", "node1:4711", "--secret-file", secret]
            early = self.start_agent(hosts, 2, ["--join", "first:4711", *joining[2:]])
            self.assertIn("no address of host first", early.stdout.readline())
            with open(hosts.folder + "/known_hosts", "a") as known:
                known.write("10.77.0.1 first\nfd77::1 first\n")
            first = self.start_agent(hosts, 1, [job, "--agents", "3", "--port", "4711",
                                                "--secret-file", secret])
            lines = []
            for line in first.stdout:
                lines.append(line)
                if "waiting for agent 2 of 3" in line:
                    break
            twice = self.start_agent(hosts, 2, joining)
            self.assertIn("node2 has joined already, as agent 1", self.end_agent(twice, 2))
            os.chmod(hosts.folder_of(3) + "/secret", 0o644)
            self.assertIn("chmod 600", self.end_agent(self.start_agent(hosts, 3, joining), 2))
            self.assertIn("MILLRACE_SECRET", self.end_agent(
                self.start_agent(hosts, 3, ["--join", "node1:4711"]), 2))
            self.assertIn("HOST:PORT", self.end_agent(
                self.start_agent(hosts, 3, ["--join", "node1"],
                                 MILLRACE_SECRET="0123456789abcdef"), 2))
            late = self.start_agent(hosts, 3, ["--join", "[fd77::1]:4711"],
                                    MILLRACE_SECRET="0123456789abcdef")
            self.end_agent(first)
            self.end_agent(early)
            self.end_agent(late)
            self.assertEqual(len(curve(hosts)), 12)

            def start_mixed():
                agents = [self.start_agent(hosts, 1, [job, "--agents", "3", "--port", "4711",
                                                      "--secret-file", secret])]
                return agents + [self.start_agent(hosts, number, ["--join", f"{address}:4711"],
                                                  MILLRACE_SECRET="0123456789abcdef")
                                 for number, address in ((2, "10.77.0.1"), (3, "[fd77::1]"))]

            time.sleep(1.1)  # Run folders are named by the second.
            for agent in start_mixed():
                self.end_agent(agent)
            self.assertEqual(len(curve(hosts)), 12)
            hosts.run(2, ["ip", "-6", "addr", "flush", "dev", "eth0"], check=True)
            hosts.run(3, ["ip", "-4", "addr", "flush", "dev", "eth0"], check=True)
            for agent in start_mixed():
                self.assertRegex(self.end_agent(agent, 2), "node. by 10.77.0.. and node3 by fd77:")

    # Goal: a job is seen from any host with the secret, and nobody without it; logs come from
    # the host that has them while the job runs, and from files afterwards. Method: two hosts
    # that share nothing; each looks at the ranks of the other.
    def test_is_seen_from_any_host(self):
        with Hosts(2) as hosts:
            copy_text(hosts, [1, 2])
            job = write_job(hosts, steps=1000000)
            secret = {"MILLRACE_SECRET": "0123456789abcdef"}
            agents = [self.start_agent(hosts, 1, [job, "--agents", "2", "--port", "4711"], **secret),
                      self.start_agent(hosts, 2, ["--join", "node1:4711"], **secret)]

            def ask(number, *words, exit_code=0, **variables):
                done = hosts.run(number, [MILLRACE, *words], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, timeout=60,
                                 env=hosts.environment(**variables))
                self.assertEqual(done.returncode, exit_code, done.stdout)
                return done.stdout

            for _ in range(600):
                metrics = glob.glob(hosts.folder_of(1) + "/runs/tiny-2*/metrics.jsonl")
                if metrics and os.path.getsize(metrics[0]) > 0:
                    break
                time.sleep(0.1)
            status = ask(2, "status", "node1:4711", **secret)
            self.assertIn("node1: ranks 0, 1; node2: ranks 2, 3", status)
            self.assertRegex(status, "speed .* of predicted speed")
            status = json.loads(ask(2, "status", "node1:4711", "--json", **secret))
            self.assertEqual([rank["host"] for rank in status["ranks"]],
                             ["node1", "node1", "node2", "node2"])
            self.assertGreater(status["step"], 0)

            run = hosts.private + "/runs/" + os.path.basename(run_folder(hosts))
            self.assertIn("trainer made in",
                          ask(1, "logs", "node1:4711", "--rank", "3", **secret))
            self.assertIn("trainer made in", ask(2, "logs", "node1:4711", "--rank", "0", **secret))
            self.assertIn("trainer made in", ask(1, "logs", run, "--rank", "3", **secret))
            self.assertIn("its host, node2, keeps it",
                          ask(1, "logs", run, "--rank", "3", exit_code=2))
            self.assertIn("no rank 4", ask(2, "logs", "node1:4711", "--rank", "4", exit_code=2,
                                           **secret))
            for variables in ({"MILLRACE_SECRET": "fedcba9876543210"}, {}):
                ask(2, "status", "node1:4711", exit_code=1 if variables else 2, **variables)
            self.assertIn("neither a run directory", ask(2, "status", "nothing", exit_code=2))

            following = subprocess.Popen(
                hosts.command_on(2) + [MILLRACE, "logs", "node1:4711", "--rank", "1", "--follow"],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=hosts.environment(**secret))
            self.assertTrue(any("trainer made in" in following.stdout.readline()
                                for _ in range(10)))
            agents[0].send_signal(signal.SIGTERM)
            for agent in agents:
                self.end_agent(agent)
            self.assertIn("the job has ended", following.communicate(timeout=60)[0])
            self.assertEqual(following.returncode, 0)
            self.assertIn("trainer made in", ask(1, "logs", run, "--rank", "0", "--follow"))
            self.assertIn("  stopped", ask(1, "status", run))

    # Goal: srun without PMIx starts one job, not one for each process; without a secret it says
    # what to do. Method: Slurm's variables, as srun sets them, on two hosts and for two tasks
    # of one host.
    def test_joins_under_srun_without_pmix(self):
        with Hosts(2) as hosts:
            copy_text(hosts, [1, 2])
            job = write_job(hosts, layout="{pipeline: 2, data: 2, tensor: 1, micro_batch: 2}")
            common = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0",
                      "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0",
                      "SLURM_STEP_NODELIST": "node[1-2]"}
            for variables in ({}, {"MILLRACE_SECRET": "0123456789abcdef"}):
                agents = [self.start_agent(hosts, i + 1, [job], SLURM_PROCID=str(i),
                                           SLURM_NODEID=str(i), **common, **variables)
                          for i in range(2)]
                outputs = [self.end_agent(agent, 0 if variables else 2) for agent in agents]
                if not variables:
                    self.assertIn("srun --mpi=pmix", outputs[0])
            over_two = curve(hosts)
            self.assertEqual(len(over_two), 12)
            time.sleep(1.1)  # Run folders are named by the second.
            common = {**common, "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "node1",
                      "SLURM_NODEID": "0", "SLURM_STEP_ID": "1", **variables}
            agents = [self.start_agent(hosts, 1, [job], **{**common, "SLURM_PROCID": str(i),
                                                           "SLURM_LOCALID": str(i)})
                      for i in range(2)]
            for agent in agents:
                self.end_agent(agent)
            self.check_close(over_two, curve(hosts))

    # Goal: the hosts are what the other tests take them for. Method: ask each who it is, what
    # its first interface is, whom it reaches and whose files it sees, through mpirun.
    def test_hosts_are_separate_and_reach_each_other(self):
        with Hosts(2) as hosts:
            with open(hosts.folder_of(2) + "/only_here", "w"):
                pass
            script = (f"echo $(hostname) $(ls {hosts.private}) $(ls /sys/class/net | wc -l)"
                      " $(ip -o addr | grep -v ' lo ' | head -1 | cut -d' ' -f2)")
            done = hosts.mpirun(["sh", "-c", script])
            lines = sorted(line for line in done.stdout.splitlines() if line.startswith("node"))
            self.assertEqual(len(lines), 2, done.stdout)
            self.assertIn("decoy0", lines[0])
            self.assertNotIn("only_here", lines[0])
            self.assertIn("only_here", lines[1])
            listen = ("import socket; s = socket.create_server(('::', 7777),"
                      " family=socket.AF_INET6, dualstack_ipv6=True); print('up', flush=True);"
                      " [s.accept() for _ in range(2)]")
            server = subprocess.Popen(hosts.command_on(1) + ["python3", "-c", listen],
                                      stdout=subprocess.PIPE, text=True)
            server.stdout.readline()
            connect = "import socket, sys; socket.create_connection((sys.argv[1], 7777), 5)"
            for address in ("10.77.0.1", "fd77::1"):
                tried = hosts.run(2, ["python3", "-c", connect, address], capture_output=True)
                self.assertEqual(tried.returncode, 0, tried.stderr)
            server.wait()
            server.stdout.close()


if __name__ == "__main__":
    MILLRACE = sys.argv.pop(1)
    reason = hosts_module.WhyNot()
    if reason:
        print(f"SKIPPED, nothing was tested: {reason}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
