"""Several hosts on one Linux machine, out of namespaces.

A host has its own network, host name, mounts and shared memory. Hosts are joined by a
switch that is a namespace too, so nothing is added to the machine's own network, and all of
it is gone when the `with` block ends. Each host has, in this order, the interface `decoy0`,
whose address 172.17.0.1 is the same on every host and leads to nobody (as a container
bridge's does), and `eth0` with 10.77.0.N and fd77::N.

The path `hosts.private` is a folder of each host's own: the same path everywhere, and other
files on each. A test reads host N's files under `hosts.folder_of(N)`.

The kernel has one table of neighbours for all namespaces, of 1024 entries unless the machine
says otherwise (net.ipv4.neigh.default.gc_thresh3), and 33 hosts that all talk to each other
fill it. So more than 16 hosts are told each other's hardware addresses for good, in entries
that the table does not count. Such a host does not notice by ARP that another is gone.

Needs root, iproute2 and util-linux. Tests that may run without them ask WhyNot() first.
"""

import os
import shutil
import signal
import subprocess
import tempfile

SKIPPED = 77  # The exit code that ctest shows as "Skipped".
MOST_WITH_ARP = 16


def WhyNot():
    """The reason why no hosts can be made here; empty if they can."""
    for tool in ("ip", "nsenter", "unshare", "mpirun"):
        if shutil.which(tool) is None:
            return f"no program {tool} (Debian: iproute2, util-linux, openmpi-bin)"
    probe = ("mount --make-rprivate / && hostname probe && ip link set lo up &&"
             " ip link add probe0 type veth peer name probe1 &&"
             " ip link add probe2 type bridge")
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "sh", "-ec", probe],
        capture_output=True, text=True)
    if tried.returncode == 0:
        return ""
    return ("network, mount and host-name namespaces are not permitted here: " +
            " ".join(tried.stderr.split()))


class Hosts:
    """`with Hosts(4) as hosts:` makes node1 to node4.

    With `own_cores` a host runs on cores of its own, an equal share of this machine's. Without
    it hosts share all of them, so that ranks of one host slow down those of another."""

    def __init__(self, num_hosts, own_cores=False):
        self.num_hosts = num_hosts
        self._cores = {}  # The cores of host N, as `taskset -c` takes them.
        if own_cores:
            cores = sorted(os.sched_getaffinity(0))
            share = len(cores) // num_hosts
            if share == 0:
                raise ValueError(f"{num_hosts} hosts on {len(cores)} cores: expected a core each")
            for number in range(1, num_hosts + 1):
                own = cores[(number - 1) * share:number * share]
                self._cores[number] = ",".join(str(core) for core in own)
        self.names = [f"node{i}" for i in range(1, num_hosts + 1)]
        self._processes = {}
        self.keeps_files = False  # Of the hosts, when they end.

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-hosts-")
        self.private = self.folder + "/private"
        os.mkdir(self.private)
        try:
            self._Start("switch", "ip link add br0 type bridge && ip link set br0 up")
            for number in range(1, self.num_hosts + 1):
                self._StartHost(number)
            if self.num_hosts > MOST_WITH_ARP:
                self._IntroduceAll()
            self._WriteLauncher()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        self._EndProcesses()
        # A namespace lives as long as a process in it.
        for process in self._processes.values():
            process.stdin.close()
            process.stdout.close()
            process.wait()
        if not self.keeps_files:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _EndProcesses(self):
        """Ends what a test left running on the hosts, known by the hosts' own networks."""
        def network_of(pid):
            try:
                return os.stat(f"/proc/{pid}/ns/net").st_ino
            except OSError:
                return None  # It has ended.

        own = {process.pid for process in self._processes.values()}
        networks = {network_of(pid) for pid in own}
        # A host that failed to start is still in the machine's network.
        networks -= {None, network_of("self")}
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in own and network_of(name) in networks:
                try:
                    os.kill(int(name), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def folder_of(self, number):
        """The machine's path of host `number`'s private folder."""
        return f"{self.folder}/node{number}"

    def _Start(self, name, commands):
        # The shell ends, and the namespaces with it, when its input is closed.
        process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-ec",
             commands + "; echo up; cat > /dev/null"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._processes[name] = process
        if process.stdout.readline() != "up\n":
            raise RuntimeError(f"cannot start host {name}")

    def _StartHost(self, number):
        name = f"node{number}"
        own = self.folder_of(number)
        os.mkdir(own)
        os.mkdir(own + "/tmp")
        known = self.folder + "/known_hosts"
        with open(known, "w") as file:
            file.write("127.0.0.1 localhost\n::1 localhost\n")
            for i, other in enumerate(self.names, 1):
                file.write(f"10.77.0.{i} {other}\nfd77::{i} {other}\n")
        self._Start(name, f"""
            hostname {name}
            mount --bind {known} /etc/hosts
            mount --bind {own} {self.private}
            mount -t tmpfs -o mode=1777 tmpfs /dev/shm
            ip link set lo up
            ip link add decoy0 type bridge
            ip link add decoy1 type veth peer name decoy2
            ip link set decoy1 master decoy0 up
            ip link set decoy2 up
            ip addr add 172.17.0.1/16 dev decoy0
            ip link set decoy0 up""")
        port = f"port{number}"
        switch = self._processes["switch"].pid
        self._Check(["nsenter", "-t", str(switch), "--net", "sh", "-ec",
                     f"ip link add {port} type veth peer name eth0 address {self._Mac(number)}"
                     f" netns {self._processes[name].pid} && ip link set {port} master br0 up"])
        self._Check(self.command_on(number) + ["sh", "-ec", f"""
            ip addr add 10.77.0.{number}/24 dev eth0
            ip -6 addr add fd77::{number}/64 dev eth0 nodad
            ip link set eth0 up"""])

    @staticmethod
    def _Mac(number):
        return f"02:77:00:00:{number // 256:02x}:{number % 256:02x}"

    def _IntroduceAll(self):
        neighbours = "".join(
            f"neigh replace {address}{number} lladdr {self._Mac(number)} dev eth0 nud permanent\n"
            for number in range(1, self.num_hosts + 1) for address in ("10.77.0.", "fd77::"))
        for number in range(1, self.num_hosts + 1):
            # An entry for the host itself does no harm.
            self.run(number, ["ip", "-batch", "-"], input=neighbours, check=True)

    def _WriteLauncher(self):
        # The program that mpirun takes for ssh: LAUNCHER [OPTIONS] HOST COMMAND...
        self._launcher = self.folder + "/launcher"
        with open(self._launcher, "w") as file:
            file.write("#!/bin/sh\nwhile case $1 in -*) true;; *) false;; esac; do shift; done\n"
                       "host=$1; shift\ncase $host in\n")
            for name in self.names:
                pin = " ".join(self._pin(self.names.index(name) + 1))
                file.write(f"{name}) pid={self._processes[name].pid} pin='{pin}' ;;\n")
            file.write("*) echo \"no host $host\" >&2; exit 1 ;;\nesac\n"
                       "exec $pin nsenter -t $pid --net --mount --uts --wd=\"$PWD\" sh -c \"$*\"\n")
        os.chmod(self._launcher, 0o755)

    @staticmethod
    def _Check(command):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def pid_of(self, number):
        """The process that holds the host's namespaces."""
        return self._processes[f"node{number}"].pid

    def switch_pid(self):
        """The process that holds the switch's namespaces, with the bridge br0."""
        return self._processes["switch"].pid

    def _pin(self, number):
        """The words that put a command on the cores of host `number`; none if it may use all."""
        return ["taskset", "-c", self._cores[number]] if self._cores else []

    def command_on(self, number):
        """The words before a command that is to run on host `number`."""
        pid = self.pid_of(number)
        return self._pin(number) + ["nsenter", "-t", str(pid), "--net", "--mount", "--uts",
                                    f"--wd={os.getcwd()}"]

    def run(self, number, command, **keywords):
        """subprocess.run() on host `number`."""
        return subprocess.run(self.command_on(number) + command, text=True, **keywords)

    def environment(self, **more):
        return {**os.environ, "TMPDIR": self.private + "/tmp",
                "XDG_CACHE_HOME": self.private + "/xdg", "MILLRACE_PROGRESS": "0",
                "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}

    def mpirun_command(self, program, num_hosts=None, variables=()):
        """mpirun on node1, one process a host, each with those environment variables."""
        names = self.names[:num_hosts or self.num_hosts]
        # mpirun's own connections must not try the decoy either.
        network = ["--mca", "oob_tcp_if_include", "10.77.0.0/24",
                   "--mca", "btl_tcp_if_include", "10.77.0.0/24"]
        return (self.command_on(1) +
                ["mpirun", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", self._launcher,
                 "--mca", "btl", "self,vader,tcp", "--mca", "pml", "ob1", *network,
                 "-x", "TMPDIR", "-x", "XDG_CACHE_HOME", "-x", "MILLRACE_PROGRESS",
                 *(word for name in variables for word in ("-x", name)),
                 "--mca", "mpi_yield_when_idle", "1", "--oversubscribe", "--bind-to", "none",
                 "--host", ",".join(f"{name}:1" for name in names), "--map-by", "ppr:1:node",
                 *program])

    def mpirun(self, program, num_hosts=None, timeout=240, **more):
        """Runs it to its end. The result's `stdout` holds both streams."""
        return subprocess.run(self.mpirun_command(program, num_hosts, more), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, env=self.environment(**more))
