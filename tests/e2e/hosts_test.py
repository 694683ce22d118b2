"""Jobs over several hosts that share nothing but the network; see hosts.py.

    hosts_test.py MILLRACE [TEST]...
"""

import subprocess
import sys
import unittest

import hosts as hosts_module
from hosts import Hosts, SKIPPED

MILLRACE = ""


class HostsTest(unittest.TestCase):
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
