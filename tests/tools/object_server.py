#!/usr/bin/python3
"""A real S3-compatible server on this machine alone: OpenStack Swift with its s3api, from
Debian's package python3-swift. It checks signatures and hashes of bodies, and has uploads in
parts. It ignores conditions of writes (If-None-Match, If-Match).

    object_server.py FOLDER [PORT]

Keeps objects in FOLDER, listens on 127.0.0.1, prints "ready http://127.0.0.1:PORT
https://localhost:PORT" and serves until its standard input ends. FOLDER/certificate.pem is that
of its own authority. The access key is test:tester and its secret is secret-of-the-test;
there is one bucket, millrace-test. Exits with 77 and a reason where the package is missing or the
folder cannot hold objects.
"""

import logging
import os
import pathlib
import subprocess
import sys
import urllib.request

SKIPPED = 77
KEY_ID = "test:tester"
SECRET = "secret-of-the-test"
BUCKET = "millrace-test"

try:
    import eventlet
    eventlet.monkey_patch()
    from eventlet import wsgi
    from swift.common import constraints, storage_policy, utils
    from swift.common.ring import RingBuilder
    from swift.common.wsgi import loadapp
except ImportError as error:
    print(f"skipped: {error}; apt-get install python3-swift", flush=True)
    sys.exit(SKIPPED)

SERVERS = ("account", "container", "object")

PROXY = """
[DEFAULT]
swift_dir = {folder}
log_level = ERROR
[pipeline:main]
pipeline = catch_errors listing_formats bulk s3api tempauth slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:bulk]
use = egg:swift#bulk
[filter:s3api]
use = egg:swift#s3api
force_swift_request_proxy_log = false
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""

STORAGE = """
[DEFAULT]
swift_dir = {folder}
devices = {folder}/disks
mount_check = false
log_level = ERROR
fsync = false
disable_fallocate = true
[pipeline:main]
pipeline = {server}-server
[app:{server}-server]
use = egg:swift#{server}
"""

SWIFT = """
[swift-hash]
swift_hash_path_suffix = suffix
swift_hash_path_prefix = prefix
[storage-policy:0]
name = default
default = yes
"""


class Memory:
    """The part of memcached that Swift asks for."""

    def __init__(self):
        self.values = {}

    def get(self, key, **_):
        return self.values.get(key)

    def set(self, key, value, **_):
        self.values[key] = value

    def incr(self, key, delta=1, **_):
        self.values[key] = self.values.get(key, 0) + delta
        return self.values[key]

    def decr(self, key, delta=1, **_):
        return self.incr(key, -delta)

    def delete(self, key, **_):
        self.values.pop(key, None)


def save_ring(folder, server, port):
    builder = RingBuilder(part_power=2, replicas=1, min_part_hours=0)
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1, "ip": "127.0.0.1",
                     "port": port, "device": "disk", "meta": ""})
    builder.rebalance()
    builder.get_ring().save(str(folder / f"{server}.ring.gz"))


def has_attributes(folder):
    """Whether the disk keeps the attributes in which Swift stores what an object is."""
    probe = folder / "probe"
    probe.write_text("")
    try:
        os.setxattr(probe, "user.probe", b"1")
        return True
    except OSError:
        return False
    finally:
        probe.unlink()


def make_certificate(folder):
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost"], check=True, stderr=subprocess.DEVNULL)
    return {"certfile": str(certificate), "keyfile": str(key)}


def make_bucket(address, name):
    login = urllib.request.Request(f"{address}/auth/v1.0", headers={
        "X-Storage-User": KEY_ID, "X-Storage-Pass": SECRET})
    with urllib.request.urlopen(login) as answer:
        token, storage = answer.headers["X-Auth-Token"], answer.headers["X-Storage-Url"]
    urllib.request.urlopen(urllib.request.Request(
        f"{storage}/{name}", method="PUT", headers={"X-Auth-Token": token})).close()


def main():
    folder = pathlib.Path(sys.argv[1]).absolute()
    (folder / "disks/disk").mkdir(parents=True, exist_ok=True)
    if not has_attributes(folder):
        print(f"skipped: the disk of {folder} has no extended attributes", flush=True)
        sys.exit(SKIPPED)
    (folder / "swift.conf").write_text(SWIFT)
    for module in (utils, constraints, storage_policy):
        module.SWIFT_CONF_FILE = str(folder / "swift.conf")
    utils.HASH_PATH_SUFFIX, utils.HASH_PATH_PREFIX = b"suffix", b"prefix"
    constraints.reload_constraints()
    storage_policy.reload_storage_policies()

    log = logging.getLogger("null")
    log.addHandler(logging.NullHandler())
    log.propagate = False

    def listen(port=0):
        return eventlet.listen(("127.0.0.1", port))

    def serve(listening, app):
        eventlet.spawn(wsgi.server, listening, app, log, log_output=False)

    sockets = {server: listen() for server in SERVERS}
    for server in SERVERS:
        save_ring(folder, server, sockets[server].getsockname()[1])
    for server in SERVERS:
        conf = folder / f"{server}.conf"
        conf.write_text(STORAGE.format(folder=folder, server=server))
        serve(sockets[server], loadapp(str(conf), global_conf={}))
    conf = folder / "proxy.conf"
    conf.write_text(PROXY.format(folder=folder, secret=SECRET))
    proxy = loadapp(str(conf), global_conf={})
    memory = Memory()

    def with_memory(environment, respond):
        environment["swift.cache"] = memory
        return proxy(environment, respond)

    front = listen(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    serve(front, with_memory)
    encrypted = listen()
    encrypted_port = encrypted.getsockname()[1]
    serve(eventlet.wrap_ssl(encrypted, server_side=True, **make_certificate(folder)), with_memory)
    address = f"http://127.0.0.1:{front.getsockname()[1]}"
    make_bucket(address, BUCKET)
    print(f"ready {address} https://localhost:{encrypted_port}", flush=True)
    eventlet.tpool.execute(sys.stdin.read)


if __name__ == "__main__":
    main()
