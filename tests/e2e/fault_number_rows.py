"""Rows of the table of faults in docs/faults.md: ranks that are slow, and wrong numbers. See
fault_rows.py.
"""

import glob
import os
import shutil
import signal
import struct
import threading
import time

import fault_bytes
from fault_case import DATA, FROM_MEMORY_OR_DISK, LAYOUTS, saved_steps
from fault_jobs import check, send
from hosts_test import TEXT

# Speed. -------------------------------------------------------------------------------------

# A step of it takes a tenth of a second or more.
SLOW_KEYS = dict(layout=DATA, steps=100, batch=8, model="{family: llama, vocab_size: 288, "
                 "hidden: 128, layers: 4, heads: 4, kv_heads: 4, ffn_hidden: 352, "
                 "sequence_length: 128}")


class SlowDown:
    """Makes a process take `factor` times as long, by stopping it again and again."""

    PERIOD_S = 0.03

    def __init__(self, pid, factor):
        self._pid = pid
        self._stopped_s = self.PERIOD_S * (1 - 1 / factor)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._over.is_set() and send(self._pid, signal.SIGSTOP):
            time.sleep(self._stopped_s)
            if not send(self._pid, signal.SIGCONT):
                break
            time.sleep(self.PERIOD_S - self._stopped_s)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        send(self._pid, signal.SIGCONT)


def slow_rank(case, factor=2):
    """A rank that computes twice as long is named, with what its host says of the cause."""
    keys = dict(SLOW_KEYS, text=TEXT)
    job = case.job()
    job.write(**keys).start()
    case.early_moment(job, 30, 45)
    early = len(job.events("slow_rank"))
    rank, pid = case.any_worker(job)
    step = job.step()
    began = time.monotonic()

    def named():
        return [event for event in job.events("slow_rank")[early:] if event["rank"] == rank]

    with SlowDown(pid, factor):
        job.wait_until("notice of the slow rank", named)
        case.note("noticed", time.monotonic() - began)
    case.note("steps to the notice", named()[0]["step"] - step)
    case.note("false alarms", len(job.events("slow_rank")) - 1)
    check(case.figures["steps to the notice"] <= 40,
          f"named after {case.figures['steps to the notice']} steps")
    check("times as long" in named()[0]["detail"] and ";" in named()[0]["detail"],
          f"no cause is named: {named()[0]}")
    job.end()
    case.check_equal(job, keys)


# Wrong numbers. -----------------------------------------------------------------------------

def prepared_tokens(case):
    """A copy of the tiny job's token file: (its prefix, its ids)."""
    case.matrix.expected(dict(text=TEXT))
    found, = glob.glob(case.matrix.folder + "/cache/data/*/*-00000.bin")
    prefix = case.folder + "/tokens"
    for ending in (".bin", ".idx"):
        shutil.copy(found[:-4] + ending, prefix + ending)
    return prefix, fault_bytes.TokenFile(prefix)


def not_a_number(case):
    """A token whose embedding is no number makes the gradients of the steps that read it so.
    Those steps are skipped, with rank and op named, and nothing else is poisoned."""
    prefix, tokens = prepared_tokens(case)
    job = case.job()
    job.write(text=TEXT, steps=1, optimizer="{learning_rate: 3e-3, warmup_steps: 0}",
              data=f"indexed: [{prefix}]").start().end()
    model = case.folder + "/model"
    case.run("checkpoint", "export", saved_steps(job.folder() + "/checkpoints")[-1], model,
             "--to", "huggingface", "--dtype", "fp32")
    rare = sorted(token for token, count in tokens.counts().items() if 20 <= count <= 100)
    token = case.random.choice(rare)
    hidden = case.random.randrange(32)
    fault_bytes.poison(model + "/model.safetensors", "model.embed_tokens.weight",
                       token * 32 + hidden)
    bad = []
    curves = []
    for layout in (DATA, LAYOUTS[2]):
        job.write(text=TEXT, steps=150, layout=layout, data=f"indexed: [{prefix}]",
                  model=f"{{from: {model}, sequence_length: 32}}",
                  checkpoint=f"directory: {case.folder}/{len(bad)}").start()
        job.end()
        events = job.events("not_finite")
        bad.append([event["step"] for event in events])
        curves.append({step: values for step, values in job.curve().items()
                       if step not in bad[-1]})
        for event in events:
            check("some parameters are not numbers" in event["detail"] or
                  "it began in " in event["detail"] and "rank" in event,
                  f"the cause is not named: {event}")
    case.note("lost", len(bad[0]))
    check(bad[0] and bad[0] == bad[1], f"skipped were {bad[0]} and under another layout {bad[1]}")
    check(len(bad[0]) <= 2 * tokens.counts()[token], f"{len(bad[0])} steps were skipped")
    for step, (loss, _) in curves[0].items():
        check(abs(loss - curves[1][step][0]) <= 2e-5 * abs(loss), f"poisoned in step {step}")
    case.run("checkpoint", "export", saved_steps(case.folder + "/1")[-1], case.folder + "/end")
    for name, content in fault_bytes.tensors_in(case.folder + "/end").items():
        for index, value in enumerate(struct.unpack(f"<{len(content) // 4}f", content)):
            is_own = name == "model.embed_tokens.weight" and index == token * 32 + hidden
            check((value == value) != is_own, f"element {index} of {name} is {value}")


def flip_weight(case):
    """A bit of a weight flips in the memory of one replica; all others have the right one."""
    num_ranks = case.random.choice([2, 3, 4])
    # At this rate no weight changes, so they can be found in memory.
    keys = dict(text=TEXT, layout=f"{{data: {num_ranks}, tensor: 1, pipeline: 1, zero: 0}}",
                devices=num_ranks, batch=12, steps=250,
                optimizer="{learning_rate: 1e-30, warmup_steps: 5}",
                fault="replica_check_steps: 20")
    job = case.job()
    job.write(**keys, checkpoint="interval_steps: 10").start()
    job.wait_until("a checkpoint", lambda: job.events("checkpoint_committed"))
    case.early_moment(job, 15, 120)
    part = sorted(glob.glob(job.folder() + "/checkpoints/step-*/rank-00000*"))[-1]
    weights = fault_bytes.some_weights(part, case.random)
    _, pid = case.any_worker(job)
    step = job.step()
    began = time.monotonic()
    places = fault_bytes.flip_in_memory(pid, weights, case.random)
    check(places > 0, "the weights are nowhere in the worker's memory")
    # The job trains on while its memory is searched.
    flipped_by = max(step, job.step())
    job.wait_until("notice", lambda: job.events("replicas_differ"))
    case.note("noticed", time.monotonic() - began)
    event = job.events("replicas_differ")[0]
    case.note("steps to the notice", event["step"] - step)
    check(event["step"] <= flipped_by + 25,
          f"noticed after step {event['step']}, flipped from step {step} to {flipped_by}")
    job.end()
    check(len(job.events("replicas_differ")) == 1, "it was not healed at once")
    check(job.result()["parameter_hash"] == case.matrix.expected(keys)[1], "other parameters")


def flip_and_kill(case):
    """A bit of a weight flips in one replica, and before the next comparison another one is
    killed. The recovery finds that its live states differ and takes none of them."""
    num_ranks = case.random.choice([3, 4])  # One that differs of two, or of three.
    keys = dict(SLOW_KEYS, text=TEXT, devices=num_ranks, batch=12, steps=50,
                layout=f"{{data: {num_ranks}, tensor: 1, pipeline: 1, zero: 0}}",
                optimizer="{learning_rate: 1e-30, warmup_steps: 5}")
    job = case.job()
    job.write(**keys, checkpoint="interval_steps: 20",
              fault=case.random.choice(FROM_MEMORY_OR_DISK)).start()
    job.wait_until("a checkpoint", lambda: job.events("checkpoint_committed"))
    saved = saved_steps(job.folder() + "/checkpoints")[-1]
    weights = fault_bytes.some_weights(glob.glob(saved + "/rank-00000*")[0], case.random)
    (flipped, flipped_pid), (_, killed) = case.random.sample(sorted(job.workers().items()), 2)
    places = fault_bytes.flip_in_memory(flipped_pid, weights, case.random)
    check(places > 0, "the weights are nowhere in the worker's memory")
    if case.random.random() < 0.5:  # Its gradients go into all replicas meanwhile.
        time.sleep(case.random.random() * 0.5)
    send(killed, signal.SIGKILL)
    job.wait_until("recovery", lambda: job.events("restored"))
    event = (job.events("replicas_differ") or [None])[0]
    check(event is not None, f"the flipped state was taken: {job.events('restored')}")
    check("no copy of it is trusted" in event["detail"],
          f"it was noticed by a comparison before the recovery: {event}")
    # A snapshot that the killed rank has left votes too.
    if "with no majority" in event["detail"]:
        check(num_ranks == 3, f"two that agree are no majority: {event}")
    else:
        check(event["rank"] == flipped, f"rank {flipped} is not outvoted: {event}")
    restored = job.events("restored")[0]
    check(restored["step"] <= event["step"], f"restored from {restored}, differed {event}")
    case.note("lost", max(job.trained_again()))
    job.end()
    check(len(job.events("replicas_differ")) == 1, "it was not healed at once")
    curve, parameter_hash = case.matrix.expected(keys)
    check(job.result()["parameter_hash"] == parameter_hash, "other parameters")
    check(job.curve() == curve, "other losses in the steps that were trained again")


def corrupt_shard(case):
    """Samples with ids that are no tokens are left out, the same ones under every layout; a
    file that was cut off is refused by its name."""
    prefix, tokens = prepared_tokens(case)
    data = f"indexed: [{prefix}]"
    if case.random.random() < 0.3:
        os.truncate(prefix + ".bin", case.random.randrange(os.path.getsize(prefix + ".bin")))
        job = case.job()
        job.write(text=TEXT, data=data).start().end(exit_code=2)
        check(prefix in job.output(), f"the file is not named: {job.output()}")
        return
    places = [case.random.randrange(tokens.count) for _ in range(case.random.randrange(1, 6))]
    tokens.overwrite(places, 60000)
    curves, hashes = [], []
    for layout, harmed in ((LAYOUTS[2], False), (DATA, True), (DATA, False)):
        job = case.job()
        job.write(text=TEXT, data=data, layout=layout).start()
        if harmed:
            case.early_moment(job)
            send(case.any_worker(job)[1], signal.SIGKILL)
        job.end()
        logs = "".join(open(path).read() for path in glob.glob(job.folder() + "/logs/*"))
        check(prefix in logs and "data.broken_records" in logs,
              f"the file is not named: {logs[-2000:]}")
        curves.append(job.curve())
        hashes.append(job.result()["parameter_hash"])
    check(sorted(curves[1]) == sorted(curves[2]), "steps are missing after a killed worker")
    check(hashes[1] == hashes[2] and curves[1] == curves[2],
          "a killed worker changed the samples")
    case.check_close(curves[0], curves[1])
