"""Slurm over the hosts of hosts.py: a controller on node1 and a node on each host.

    with Hosts(2) as hosts, Slurm(hosts) as slurm:
        slurm.run(["srun", "-N2", "hostname"])

Slurm's users know these settings: RequeueExit=75, ten seconds between SIGTERM and SIGKILL, no
PMIx. Everything it writes lies in the hosts' folder, but for munge's socket: munged wants one
below a folder of /run.

Needs what hosts.py needs, and Slurm and munge. Tests that may run without them ask WhyNot().
"""

import glob
import os
import re
import shutil
import subprocess
import time

import hosts as hosts_module


def WhyNot():
    """The reason why Slurm cannot run here; empty if it can."""
    for tool in ("slurmctld", "slurmd", "munged", "srun", "sbatch", "runuser"):
        # A user's PATH may lack /usr/sbin.
        if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            return f"no program {tool} (Debian: slurm-wlm, slurm-client, munge)"
    return hosts_module.WhyNot()


class Slurm:
    def __init__(self, hosts):
        self.hosts = hosts
        self.folder = hosts.folder + "/slurm"
        self._munge = f"/run/millrace-munge-{os.getpid()}"
        self._services = []

    def __enter__(self):
        try:
            self._Configure()
            self._Start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        for service in reversed(self._services):
            service.kill()
            service.wait()
        shutil.rmtree(self._munge, ignore_errors=True)

    def _Configure(self):
        for name in ("state", "log", *self.hosts.names):
            os.makedirs(f"{self.folder}/{name}")
        os.makedirs(self._munge)
        with open(self._munge + "/key", "wb") as key:
            key.write(os.urandom(128))
        os.chmod(self._munge + "/key", 0o600)
        subprocess.run(["chown", "-R", "munge:munge", self._munge], check=True)
        # Else of the machine's /tmp, which the hosts share.
        with open(self.folder + "/mpi.conf", "w") as file:
            file.write(f"PMIxCliTmpDirBase={self.hosts.private}/tmp\n")
        nodes = "\n".join(f"NodeName={name} NodeAddr=10.77.0.{number}"
                          for number, name in enumerate(self.hosts.names, 1))
        with open(self.folder + "/slurm.conf", "w") as file:
            file.write(f"""\
ClusterName=millrace
SlurmctldHost=node1(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={self._munge}/socket,cred_expire=5
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/%n/pid
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/%n
SlurmctldLogFile={self.folder}/log/slurmctld.log
SlurmdLogFile={self.folder}/log/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
JobRequeue=1
RequeueExit=75
KillWait=10
MessageTimeout=10
NodeName=DEFAULT CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
""")

    def _Service(self, number, command):
        log = f"{self.folder}/log/{os.path.basename(command[0])}-{number}.out"
        with open(log, "w") as output:
            self._services.append(subprocess.Popen(
                self.hosts.command_on(number) + command, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, env=self.environment()))

    def _Start(self):
        self._Service(1, ["runuser", "-u", "munge", "--", "munged", "--foreground", "--force",
                          "--key-file", self._munge + "/key", "--socket", self._munge + "/socket",
                          "--pid-file", self._munge + "/pid", "--log-file", self._munge + "/log",
                          "--seed-file", self._munge + "/seed"])
        self._Await("munged", lambda: os.path.exists(self._munge + "/socket"))
        self._Service(1, ["slurmctld", "-D", "-c", "-f", self.folder + "/slurm.conf"])
        for number, name in enumerate(self.hosts.names, 1):
            self._Service(number, ["slurmd", "-D", "-f", self.folder + "/slurm.conf", "-N", name])
        self._Await("slurmd", lambda: self.run(["sinfo", "-h", "-o", "%T"]).stdout.split()
                    == ["idle"])

    def _Await(self, what, condition):
        for _ in range(200):
            if condition():
                return
            time.sleep(0.1)
        logs = ""
        for log in sorted(glob.glob(self.folder + "/log/*")):
            with open(log) as file:
                logs += f"--- {log}\n{file.read()}"
        raise RuntimeError(f"{what} does not start\n{logs}")

    def environment(self, **more):
        return self.hosts.environment(
            SLURM_CONF=self.folder + "/slurm.conf",
            PATH=os.environ["PATH"] + ":/usr/sbin:/sbin", **more)

    def run(self, command, timeout=120, **more):
        """Runs one of Slurm's commands to its end; `stdout` holds both streams."""
        return subprocess.run(self.hosts.command_on(1) + command, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, env=self.environment(**more))

    def start(self, command, **more):
        return subprocess.Popen(self.hosts.command_on(1) + command, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env=self.environment(**more))

    def submit(self, script, **more):
        """Writes a batch script, submits it and returns the job's number."""
        path = f"{self.folder}/{os.urandom(4).hex()}.sbatch"
        with open(path, "w") as file:
            file.write(script)
        done = self.run(["sbatch", "--parsable", path], **more)
        if not re.fullmatch(r"\d+\n", done.stdout):
            raise RuntimeError(done.stdout)
        return done.stdout.strip()

    def state_of(self, job):
        """Such as "RUNNING", with the restarts and the exit code: ("COMPLETED", 1, "0:0")."""
        shown = self.run(["scontrol", "show", "job", job]).stdout
        return (re.search(r"JobState=(\w+)", shown)[1],
                int(re.search(r"Restarts=(\d+)", shown)[1]),
                re.search(r"ExitCode=(\S+)", shown)[1])
