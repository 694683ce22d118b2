"""Rows of the table of faults in docs/faults.md: processes, hosts, disks and clocks that fail.
Each does one kind of harm to a job, at a moment that a seed chooses, and raises FaultError if a
rule is broken. See fault_matrix.py.
"""

import glob
import os
import re
import signal
import subprocess
import time

import fault_bytes
from fault_case import (DATA, LAYOUTS, SkippedRow, any_job, newest_generation,
                        saved_steps, stopped_job)
from fault_jobs import HostsJob, POLL_S, check, program_of, send
from hosts import Hosts
from hosts_test import TEXT, copy_text

CLOCK_LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


# Processes. ---------------------------------------------------------------------------------

def kill_worker(case):
    job, keys = any_job(case)
    case.early_moment(job)
    generation = newest_generation(job)
    _, pid = case.any_worker(job)
    began = time.monotonic()
    send(pid, signal.SIGKILL)
    case.note("noticed", job.wait_until("notice", lambda: job.events("worker_died")), 0.3)
    job.wait_until("training", lambda: newest_generation(job) > generation)
    case.note("again", time.monotonic() - began, 3)
    job.end()
    case.note("lost", max(job.trained_again()))
    check(len(job.events("worker_died")) == 1, "more than one worker died")
    case.check_equal(job, keys)


def kill_in_recovery(case):
    job, keys = any_job(case)
    case.early_moment(job)
    generation = newest_generation(job)
    _, pid = case.any_worker(job)
    send(pid, signal.SIGKILL)
    case.note("noticed", job.wait_until("notice", lambda: job.events("worker_died")), 0.3)
    time.sleep(case.random.random() * 0.15)
    job.wait_until("a worker", job.workers)
    _, second = case.any_worker(job)
    began = time.monotonic()
    send(second, signal.SIGKILL)
    job.wait_until("second notice", lambda: len(job.events("worker_died")) > 1)
    job.wait_until("training", lambda: newest_generation(job) > generation + 1)
    case.note("again", time.monotonic() - began, 3)
    job.end()
    case.check_equal(job, keys)


def stop_worker(case):
    job, keys = any_job(case)
    case.early_moment(job)
    generation = newest_generation(job)
    _, pid = case.any_worker(job)
    began = time.monotonic()
    send(pid, signal.SIGSTOP)
    case.note("noticed", job.wait_until(
        "notice", lambda: job.events("worker_killed", "worker_died")), 2)
    send(pid, signal.SIGCONT)
    job.wait_until("training", lambda: newest_generation(job) > generation)
    case.note("again", time.monotonic() - began, 5)
    check(program_of(pid) == "", "the worker that was stopped lives on")
    job.end()
    case.check_equal(job, keys)


def kill_coordinator(case):
    job, keys = any_job(case)
    case.early_moment(job)
    began = time.monotonic()
    pid, = job.processes("coordinator")
    send(pid, signal.SIGKILL)
    case.note("noticed", job.wait_until(
        "another coordinator", lambda: len(job.events("started")) > 1), 3)
    step = job.step()
    job.wait_until("steps", lambda: job.step() > step)
    case.note("again", time.monotonic() - began, 3)
    job.end()
    trained = [event for event in job.events("generation_started")
               if "measures a profile" not in event.get("detail", "")]
    check(len(trained) == 1, f"the workers did not train on: {trained}")
    check([line["step"] for line in job.metrics()] == list(range(1, 201)),
          "steps are missing or there twice")
    case.check_equal(job, keys)


def kill_mpirun(case):
    """The job ends by itself with a checkpoint; started again, it goes on with the next step."""
    keys = dict(text=TEXT, devices=1, layout=DATA, checkpoint=f"directory: {case.folder}/saved")
    job = case.job(num_agents=2)
    job.write(**keys).start()
    case.early_moment(job)
    began = time.monotonic()
    job.process.kill()
    job.process.wait()
    while job.processes():
        check(time.monotonic() - began < 60, f"processes live on: {job.processes()}")
        time.sleep(POLL_S)
    case.note("noticed", time.monotonic() - began, 3)
    before = job.curve()
    job.start()
    job.wait_until("steps", lambda: job.step() > max(before))
    case.note("again", time.monotonic() - began, 10)
    job.end()
    check(min(job.curve()) == max(before) + 1, "it did not go on with the next step")
    expected, parameter_hash = case.matrix.expected(dict(keys, devices=2))
    check(job.result()["parameter_hash"] == parameter_hash, "other parameters")
    check({**before, **job.curve()} == expected, "other losses")


# Hosts. -------------------------------------------------------------------------------------

# The rate does not depend on the number of steps. With a rate of 3e-3 and a small epsilon, jobs over
# one rank and over three come apart by more than 2e-5 after 222 steps, without any fault.
HOSTS_KEYS = dict(layout="{pipeline: 1, tensor: 1, zero: 0}", devices=1, batch=6,
                  optimizer="{learning_rate: 3e-4, epsilon: 1e-3, warmup_steps: 5, decay: none}")


def lose_host(case, lose, comes_back):
    """Three hosts of a rank each lose one, and go on without it; or until it is taken in again,
    after which the job is stopped."""
    number = case.random.choice([2, 3] if comes_back else [1, 1, 2, 3])
    steps = 100_000 if comes_back else 100
    with Hosts(3) as hosts:
        copy_text(hosts, [1, 2, 3])
        job = HostsJob(case.millrace, hosts)
        case.jobs.append(job)
        take_in = "always" if comes_back else "never"
        job.write(steps=steps, **HOSTS_KEYS, fault="coordinator_replicas: 3, "
                  f"host_timeout_ms: 3000, take_in_hosts: {take_in}",
                  checkpoint=f"directory: {hosts.folder}/saved, interval_steps: 10, keep: 1000, "
                             "resume: none").start()
        case.early_moment(job, 20, 60)
        generation = newest_generation(job)
        others = [other for other in (1, 2, 3) if other != number]
        first_records = job.folder()
        began = time.monotonic()
        lose(job, number)
        if number == 1:
            job.process = job.agents[2]
        job.wait_until("notice", lambda: job.events("coordinator_moved", "host_lost"))
        case.note("noticed", time.monotonic() - began, 3)
        commits = len(job.lines("events.jsonl", first_records))
        job.wait_until("training", lambda: newest_generation(job) > generation)
        case.note("again", time.monotonic() - began, 8 if number == 1 else 5)
        if comes_back:
            job.mend(number)
            job.wait_until("the host that came back", lambda: len(job.events("planned")) > 2)
            job.await_step(job.step() + 20)
            send(job.agents[1].pid, signal.SIGINT)
            others.append(number)
        job.end_all(others)
        if number == 1:
            # The coordinator that was cut off commits nothing any more.
            late = job.lines("events.jsonl", first_records)[commits:]
            check(not any(event["event"] == "checkpoint_committed" for event in late),
                  "two coordinators commit")
        check(comes_back or max(job.curve()) == steps, f"it ended after step {max(job.curve())}")
        case.note("lost", max(job.trained_again(), default=0))
        check(case.figures["lost"] <= 1, f"{case.figures['lost']} steps were lost")
        expected, _ = case.matrix.expected(dict(
            HOSTS_KEYS, steps=max(job.curve()), text=TEXT, devices=3,
            layout="{data: 3, pipeline: 1, tensor: 1, zero: 0}"))
        case.check_close(job.curve(), expected)
        job.kill_all()


def cut_network(case):
    lose_host(case, lambda job, number: job.cut(number), case.random.random() < 0.5)


def kill_host(case):
    lose_host(case, lambda job, number: job.kill_host(number), False)


# Disks. -------------------------------------------------------------------------------------

def fill_disk(case):
    """Checkpoints lie on a disk of their own, which something else fills for a while."""
    with Hosts(1) as hosts:
        disk = hosts.private + "/disk"
        os.mkdir(hosts.folder_of(1) + "/disk")
        hosts.run(1, ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], check=True)
        from_outside = f"/proc/{hosts.pid_of(1)}/root{disk}"
        keys = dict(text=TEXT, layout=case.random.choice(LAYOUTS), steps=300)
        job = case.job(prefix=hosts.command_on(1))
        job.write(**keys, fault="replica_interval_steps: 0",
                  checkpoint=f"directory: {disk}, interval_steps: 10").start()
        job.wait_until("a checkpoint", lambda: job.events("checkpoint_committed"))
        case.early_moment(job, 20, 150)
        # A busy disk gives up commits for later ones, and says so too.
        earlier = len(job.events("checkpoint_failed"))
        began = time.monotonic()
        step = job.step()
        left = case.random.randrange(0, 300_000)  # A checkpoint has 444 kB.

        def alarms_of_the_disk():
            return [alarm for alarm in job.events("checkpoint_failed")[earlier:]
                    if "No space left" in alarm["detail"]]

        def alarms_while_full():  # Old checkpoints that are removed make room again.
            fault_bytes.fill(from_outside + "/filler", left)
            return alarms_of_the_disk()

        job.wait_until("an alarm", alarms_while_full)
        case.note("noticed", time.monotonic() - began)
        alarm = alarms_of_the_disk()[0]
        check(alarm["step"] <= step + 25, f"noticed after step {alarm['step']} of {step}")
        job.await_step(job.step() + 20)
        whole = glob.glob(from_outside + "/step-*/manifest.json")
        check(whole, "no checkpoint is left")
        for manifest in whole:
            hosts.run(1, [case.millrace, "checkpoint", "verify",
                          os.path.dirname(manifest).replace(from_outside, disk)], check=True,
                      stdout=subprocess.DEVNULL)
        if case.random.random() < 0.5:
            send(case.any_worker(job)[1], signal.SIGKILL)
            job.wait_until("a recovery", lambda: job.events("restored"))
        os.remove(from_outside + "/filler")
        commits = len(job.events("checkpoint_committed"))
        job.wait_until("a checkpoint", lambda: len(job.events("checkpoint_committed")) > commits)
        job.end()
        case.check_equal(job, keys)


def tear_checkpoint(case):
    """The power goes while checkpoints are written, and what was not committed is torn."""
    saved = case.folder + "/saved"
    job, keys = any_job(case, checkpoint=f"directory: {saved}, interval_steps: "
                        f"{case.random.choice([1, 2, 3])}, keep: 3")
    case.early_moment(job)
    before = job.curve()
    began = time.monotonic()
    job.kill_all()
    torn = saved_steps(saved, whole=False)
    if not torn:  # The newest loses its commit.
        torn = saved_steps(saved)[-1:]
        os.rename(torn[0] + "/manifest.json", torn[0] + "/manifest.json.tmp")
    for path in glob.glob(torn[-1] + "/*"):
        size = os.path.getsize(path)
        if case.random.random() < 0.7:
            os.truncate(path, case.random.randrange(size + 1))
    newest = saved_steps(saved)[-1]
    job.start()
    job.wait_until("steps", lambda: job.step() > 0)
    case.note("again", time.monotonic() - began)
    job.end()
    check(f"resuming from {newest}" in job.output(), f"not resumed from {newest}: {job.output()}")
    check(f"step-{min(job.curve()) - 1:08}" == os.path.basename(newest), "not the next step")
    expected, parameter_hash = case.matrix.expected(keys)
    check(job.result()["parameter_hash"] == parameter_hash, "other parameters")
    check({**before, **job.curve()} == expected, "other losses")


def flip_checkpoint(case):
    """Any flipped bit of any file is found, and costs the steps since the checkpoint before."""
    saved = case.folder + "/saved"
    job, keys = stopped_job(case, layout=case.random.choice(LAYOUTS))
    before = job.curve()
    older, newest = saved_steps(saved)
    case.run("checkpoint", "verify", newest)
    for i in range(6):
        path = case.random.choice(sorted(glob.glob(newest + "/*")))
        undo = fault_bytes.flip_in_file(path, case.random)
        said = case.run("checkpoint", "verify", newest, exit_code=1)
        name = os.path.basename(path)
        check(name in said or name == "manifest.json", f"verify does not name {path}: {said}")
        if i < 5:
            undo()
    began = time.monotonic()
    job.start()
    job.wait_until("steps", lambda: job.step() > 0)
    case.note("again", time.monotonic() - began)
    job.end()
    check("passed over" in job.output(), f"nothing was passed over: {job.output()}")
    check(f"step-{min(job.curve()) - 1:08}" == os.path.basename(older), "not the one before")
    case.note("lost", max(before) - min(job.curve()) + 1)
    expected, parameter_hash = case.matrix.expected(keys)
    check(job.result()["parameter_hash"] == parameter_hash, "other parameters")
    check({**before, **job.curve()} == expected, "other losses")


def change_size(case):
    """Any layout continues any other: the weights bit by bit, the data with the next sample."""
    layouts = LAYOUTS + ["{data: 1, tensor: 1, pipeline: 1}",
                         "{data: 2, tensor: 1, pipeline: 2, zero: 0}",
                         "{data: 4, tensor: 1, pipeline: 1, zero: 1}"]
    layout, other = case.random.sample(layouts, 2)

    def size(text):
        axes = dict(re.findall(r"(data|tensor|pipeline): (\d)", text))
        return int(axes["data"]) * int(axes["tensor"]) * int(axes["pipeline"]), axes

    job, keys = stopped_job(case, layout=layout, devices=size(layout)[0])
    before = job.curve()
    newest = saved_steps(case.folder + "/saved")[-1]
    axes = size(other)[1]
    case.run("checkpoint", "reshard", newest, case.folder + "/resharded",
             *(word for axis, number in axes.items() for word in (f"--{axis}", number)))
    exported = [case.folder + name for name in ("/as_it_was", "/as_another")]
    case.run("checkpoint", "export", newest, exported[0])
    case.run("checkpoint", "export", saved_steps(case.folder + "/resharded")[0], exported[1])
    tensors = [fault_bytes.tensors_in(path) for path in exported]
    check(tensors[0] == tensors[1], "the weights changed")
    began = time.monotonic()
    job.write(**dict(keys, layout=other, devices=size(other)[0])).start()
    job.wait_until("steps", lambda: job.step() > 0)
    case.note("again", time.monotonic() - began)
    job.end()
    check(min(job.curve()) == max(before) + 1, "it did not go on with the next step")
    case.check_close({**before, **job.curve()}, case.matrix.expected(keys)[0])


# Clocks. ------------------------------------------------------------------------------------

def jump_clock(case):
    """The date jumps by an hour, back and forth."""
    if not os.path.exists(CLOCK_LIBRARY):
        raise SkippedRow(f"no {CLOCK_LIBRARY} (Debian: libfaketime)")
    offset = case.folder + "/offset"

    def set_clock(hours):
        with open(offset + ".new", "w") as file:
            file.write(f"{hours:+d}h\n")
        os.rename(offset + ".new", offset)

    set_clock(0)
    keys = dict(text=TEXT, layout=case.random.choice(LAYOUTS), checkpoint="interval_steps: 20")
    environment = {"LD_PRELOAD": CLOCK_LIBRARY, "FAKETIME_TIMESTAMP_FILE": offset,
                   "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    job = case.job(environment=environment)
    job.write(**keys).start()
    for hours in case.random.sample([-1, 1, 0, -1, 1], 3):
        step = job.step()
        case.early_moment(job, step + 20, step + 70)
        set_clock(hours)
        seen = subprocess.run(["date", "+%s"], env={**os.environ, **environment}, text=True,
                              capture_output=True, check=True)
        check(abs(int(seen.stdout) - time.time() - 3600 * hours) < 60, "the clock did not jump")
    job.end()
    wrong = job.events("worker_died", "worker_killed", "generation_failed", "host_lost")
    check(not wrong, f"false suspicion: {wrong}")
    case.check_equal(job, keys)
