"""python/millrace's Trainer: its steps are those of `millrace run`, bit for bit; batches,
weights without copies, checkpoints, several ranks, and what it refuses.

    trainer_test.py PATH_OF_MILLRACE FOLDER_OF_LIBRARIES
"""

import gc
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
MILLRACE = None

JOB = """name: from-python
model:
  family: llama
  vocab_size: 64
  hidden: 32
  layers: 2
  heads: 4
  kv_heads: 2
  ffn_hidden: 64
  sequence_length: 16
data: {synthetic: true}
training:
  steps: 6
  global_batch: 4
  seed: 5
  optimizer: {learning_rate: 1e-2, warmup_steps: 1}
resources: {backend: cpu, devices_per_agent: 1}
checkpoint: {directory: CHECKPOINTS, at_end: true}
"""
RANK = """
import json, sys
import millrace
with millrace.Trainer(sys.argv[1], rendezvous=sys.argv[2]) as trainer:
    losses = [trainer.step().loss for _ in range(3)]
    trainer.save(sys.argv[3])
    print(json.dumps({"rank": trainer.rank, "losses": losses, "layout": trainer.info.layout}))
"""


def rows(seed):
    return [[(7 * s + 3 * t + seed) % 64 for t in range(17)] for s in range(4)]


def batch(seed):
    return [row[:-1] for row in rows(seed)], [row[1:] for row in rows(seed)]


class TrainerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # One profile for all: what it says never changes a result.
        os.environ.setdefault("XDG_CACHE_HOME", CACHE)
        self.job = self.write("job.yaml", JOB)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text.replace("CHECKPOINTS", str(self.folder / "checkpoints")))
        return str(path)

    def open(self, job=None):
        trainer = millrace.Trainer(job or self.job)
        self.addCleanup(trainer.close)
        return trainer

    def test_steps_are_those_of_a_run(self):
        trainer = self.open()
        losses = [trainer.step().loss for _ in range(6)]
        trainer.save(str(self.folder / "ours"))
        subprocess.run([MILLRACE, "run", self.job], check=True, cwd=self.folder,
                       stdout=subprocess.DEVNULL)
        run, = [r for r in (self.folder / "runs").iterdir() if not r.is_symlink()]
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(losses, [r["loss"] for r in records if "loss" in r])
        of_run = json.loads(
            (self.folder / "checkpoints" / "step-00000006" / "manifest.json").read_text())
        ours = json.loads((self.folder / "ours" / "step-00000006" / "manifest.json").read_text())
        self.assertEqual(checksums(ours), checksums(of_run))

    def test_trains_on_given_batches(self):
        one, two = self.open(), self.open()
        for step in range(1, 4):
            first, second = one.step(batch(1)), two.step(dict(zip(["tokens", "targets"], batch(1))))
            self.assertEqual(first.step, step)
            self.assertEqual(first.loss, second.loss)
            if step == 1:
                self.assertAlmostEqual(first.loss, math.log(64), delta=0.5)
        self.assertLess(first.loss, 4)
        self.assertNotEqual(one.step(batch(2)).loss, two.step().loss)

    def test_targets_of_minus_one_are_not_trained(self):
        tokens, targets = batch(1)
        masked = [[-1] * 16, targets[1], [-1] * 16, [-1] * 16]
        alone = self.open().step(([tokens[1]] * 4, [targets[1]] * 4))
        result = self.open().step((tokens, masked))
        self.assertAlmostEqual(result.loss, alone.loss, places=5)
        self.assertAlmostEqual(result.gradient_norm, alone.gradient_norm, places=4)
        self.check_refused(lambda: self.open().step((tokens, [[-1] * 16] * 4)), "0 trained tokens")

    def test_documents_do_not_see_each_other(self):
        tokens, targets = batch(1)
        first = tokens[0][:8], targets[0][:8]
        second = tokens[1][:8], targets[1][:8]

        def loss(a, b, starts):
            return self.open().step(
                ([a[0] + b[0]] * 4, [a[1] + b[1]] * 4, [starts] * 4)).loss

        packed, whole = [0] * 8 + [8] * 8, [0] * 16
        mean = (loss(first, first, packed) + loss(second, second, packed)) / 2
        self.assertAlmostEqual(loss(first, second, packed), mean, places=6)
        self.assertNotAlmostEqual(loss(first, second, whole), mean, places=6)

    def test_state_is_not_copied(self):
        trainer = self.open()
        numpy = import_numpy()
        pieces = {p.name: p for p in trainer.parameters()}
        head = numpy.from_dlpack(pieces["lm_head.weight"])
        self.assertEqual(head.shape, (64, 32))
        before = head.copy()
        trainer.step()
        self.assertFalse((head == before).all())
        moment, = [p for p in trainer.state() if p.name == "lm_head.weight.exp_avg"]
        self.assertGreater(abs(numpy.from_dlpack(moment)).max(), 0)
        writable = writable_view(pieces["lm_head.weight"])
        for i in range(len(writable)):
            writable[i] = 0  # All tokens equally likely.
        trainer.take_changes()
        self.assertAlmostEqual(trainer.step(batch(1)).loss, math.log(64), places=6)

    def test_tensors_outlive_the_trainer(self):
        numpy = import_numpy()
        trainer = self.open()
        head = numpy.from_dlpack(trainer.parameters()[-1])
        expected = head.copy()
        trainer.close()
        del trainer
        gc.collect()
        self.assertTrue((head == expected).all())
        head = None
        gc.collect()
        from millrace import _dlpack
        self.assertEqual(_dlpack._alive, {})

    def test_a_capsule_that_nobody_takes_is_freed(self):
        from millrace import _dlpack
        trainer = self.open()
        capsule = trainer.parameters()[0].__dlpack__()
        self.assertEqual(len(_dlpack._alive), 1)
        del capsule
        gc.collect()
        self.assertEqual(_dlpack._alive, {})

    def test_goes_on_from_a_checkpoint(self):
        trainer = self.open()
        for _ in range(3):
            trainer.step()
        trainer.save(str(self.folder / "kept"))
        expected = [trainer.step().loss for _ in range(3)]
        again = self.open()
        again.load(str(self.folder / "kept" / "step-00000003"))
        self.assertEqual(again.info.completed_steps, 3)
        self.assertEqual([again.step().loss for _ in range(3)], expected)
        # `millrace run` goes on from it as well.
        job = self.write("resumed.yaml", JOB.replace("CHECKPOINTS", str(self.folder / "kept")))
        text = subprocess.run([MILLRACE, "run", job], check=True, cwd=self.folder,
                              capture_output=True, text=True).stdout
        self.assertIn("step-00000003", text)

    def run_ranks(self, job):
        """Standard output and errors of two ranks."""
        processes = []
        for rank in range(2):
            environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), RANK=str(rank),
                               WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
            processes.append(subprocess.Popen(
                [sys.executable, "-c", RANK, job, str(self.folder / "meet"),
                 str(self.folder / "kept")], env=environment, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True))
        return [process.communicate(timeout=300) for process in processes]

    def test_all_ranks_learn_why_rank_zero_cannot_plan(self):
        job = self.write("unprofiled.yaml", JOB + "profile: no-such-profile.yaml\n")
        for _, errors in self.run_ranks(job):
            self.assertIn("millrace._library.Error", errors)
            self.assertIn("no-such-profile.yaml", errors)

    def test_ranks_are_processes(self):
        single = self.open()
        expected = [single.step().loss for _ in range(3)]
        results = [json.loads(output.splitlines()[-1]) for output, _ in self.run_ranks(self.job)]
        self.assertEqual([r["rank"] for r in results], [0, 1])
        self.assertEqual(results[0]["losses"], results[1]["losses"])
        self.assertEqual(results[0]["layout"], results[1]["layout"])
        for ours, theirs in zip(results[0]["losses"], expected):
            self.assertAlmostEqual(ours, theirs, places=5)
        again = self.open()
        again.load(str(self.folder / "kept" / "step-00000003"))
        self.assertEqual(again.info.completed_steps, 3)

    def test_calls_back(self):
        seen = []
        trainer = self.open()
        last = trainer.train(callbacks=[lambda t, r: seen.append((t, r.step))])
        self.assertEqual(seen, [(trainer, i) for i in range(1, 7)])
        self.assertEqual(last.step, 6)
        other = self.open()
        self.assertEqual(other.train([batch(i) for i in range(3)]).step, 3)
        self.assertEqual(other.train(callbacks=[lambda t, r: r.step < 5]).step, 5)
        self.assertGreater(other.validate(2), 0)

    def test_the_example_learns(self):
        text = subprocess.run(
            [sys.executable, str(ROOT / "python/examples/train.py"), self.job], check=True,
            env=dict(os.environ, PYTHONPATH=str(ROOT / "python")), capture_output=True,
            text=True).stdout
        losses = [float(line.split()[3][:-1]) for line in text.splitlines() if "loss" in line]
        self.assertEqual(len(losses), 6)
        self.assertLess(losses[-1], losses[0] - 0.05)
        self.assertIn("rank 0 holds StatePiece(", text)

    def check_refused(self, call, *words):
        with self.assertRaises(millrace.Error) as raised:
            call()
        for word in words:
            self.assertIn(word, str(raised.exception))

    def test_refuses_what_cannot_be(self):
        self.check_refused(lambda: millrace.Trainer(str(self.folder / "none.yaml")), "none.yaml")
        broken = self.write("broken.yaml", JOB.replace("hidden: 32", "hiden: 32"))
        self.check_refused(lambda: millrace.Trainer(broken), "broken.yaml:5", "hiden")
        trainer = self.open()
        tokens, targets = batch(1)
        self.check_refused(lambda: trainer.step((tokens[:3], targets)), "tokens", "64", "48")
        self.check_refused(lambda: trainer.step((tokens,)), "tokens and targets")
        self.check_refused(lambda: trainer.step({"token": tokens}), "token")
        tokens[2][5] = 64
        self.check_refused(lambda: trainer.step((tokens, targets)), "tokens[2][5] is 64", "0 to 63")
        starts = [[0] * 16, [0] * 16, [0] * 4 + [3] * 12, [0] * 16]
        self.check_refused(lambda: trainer.step((*batch(1), starts)), "document_starts[2][4] is 3")
        big = [[2**40 + t for t in row] for row in targets]
        self.check_refused(lambda: trainer.step((targets, big)), "targets", "32 bits")
        self.check_refused(lambda: trainer.step(([[0.5] * 16] * 4, targets)), "tokens", "integers")
        self.check_refused(lambda: trainer.validate(0), "at least one")
        self.check_refused(lambda: trainer.load(str(self.folder / "none")), "none")
        self.check_refused(lambda: trainer.save(""), "folder")
        # None of it was a step.
        self.assertEqual(trainer.info.completed_steps, 0)
        trainer.train()
        self.check_refused(trainer.step, "6 steps", "training.steps")
        trainer.close()
        self.check_refused(trainer.step, "closed")

    def test_ranks_need_a_folder(self):
        environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        os.environ.update(environment)
        try:
            self.check_refused(lambda: millrace.Trainer(self.job), "rendezvous")
        finally:
            for name in environment:
                del os.environ[name]


def checksums(manifest):
    """The content of the files, piece by piece, without their names."""
    pieces = [dict(piece, offset=0) for file in manifest["files"] for piece in file["pieces"]]
    assert pieces and all(piece["checksums"] for piece in pieces)
    return pieces


def import_numpy():
    try:
        import numpy
    except ImportError:
        raise unittest.SkipTest("this Python has no numpy")
    return numpy


def writable_view(piece):
    """The memory of a piece as ctypes' floats: NumPy's views of DLPack are read-only."""
    import ctypes
    return (ctypes.c_float * (piece.end - piece.begin)).from_address(piece._data)


if __name__ == "__main__":
    MILLRACE = os.path.abspath(sys.argv.pop(1))
    os.environ["MILLRACE_LIBRARY_PATH"] = os.path.abspath(sys.argv.pop(1))
    import millrace
    with tempfile.TemporaryDirectory() as CACHE:
        unittest.main()
