"""Goal: the peers train what the job file says, and loss_curve.py tells equal trainings from
others. Method: job_dims.py against Millrace's own reading of the same file, as step_bench
prints it; loss curves made by hand.

    peers_test.py PATH_OF_STEP_BENCH
"""

import contextlib
import io
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench/peers"))
sys.dont_write_bytecode = True

import job_dims
import loss_curve

STEP_BENCH = None
JOB = """\
name: odd
model: {vocab_size: 96, hidden: 48, layers: 2, heads: 6, kv_heads: 2, head_dim: 10,
        ffn_hidden: 40, sequence_length: 16, rope_theta: 5e5, norm_epsilon: 1e-6}
data: {text: [/usr/include/**]}
training:
  steps: 50
  global_batch: 4
  gradient_clip_norm: 0
  optimizer: {learning_rate: 3e-3, min_learning_rate: 1e-4, warmup_steps: 7, decay: linear,
              beta2: 0.99, weight_decay: 0}
layout: {micro_batch: 2, tensor: auto}
"""


def millrace_reads(path):
    result = subprocess.run([STEP_BENCH, str(path), "micro_batch=1"], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.splitlines()[0])["job"]


class JobDimsTest(unittest.TestCase):
    def check(self, path):
        ours, theirs = millrace_reads(path), job_dims.read_job(path)
        self.assertEqual(ours, {key: theirs[key] for key in ours})

    def test_reads_a_whole_config(self):
        self.check(ROOT / "configs/quickstart.yaml")

    def test_reads_odd_keys_and_defaults(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "odd.yaml"
            path.write_text(JOB)
            self.check(path)
            job = job_dims.read_job(path)
            self.assertEqual((job["micro_batch"], job["tensor"], job["devices"]), (2, None, None))

    def test_counts_flops_by_hand(self):
        m = {"num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "hidden": 8,
             "ffn_hidden": 16, "vocab_size": 32, "sequence_length": 10}
        # q, o: 8 x 8 each; k, v: 8 x 4 each; three of 8 x 16; two norms; norm and head.
        parameters = 2 * 64 + 2 * 32 + 3 * 128 + 2 * 8 + 8 + 256
        full, causal = job_dims.flops_per_token(m)
        self.assertEqual(causal, 6 * parameters + 6 * 8 * 10)
        self.assertEqual(full, 6 * parameters + 12 * 8 * 10)

    def test_learning_rate_warms_up_and_decays(self):
        job = {"num_steps": 30, "optimizer": {"learning_rate": 1.0, "min_learning_rate": 0.5,
                                              "warmup_steps": 10, "decay": "linear"}}
        for step, rate in ((1, 0.1), (10, 1.0), (20, 0.75), (30, 0.5)):
            self.assertAlmostEqual(job_dims.learning_rate_at(job, step), rate)
        job["optimizer"]["decay"] = "cosine"
        self.assertAlmostEqual(job_dims.learning_rate_at(job, 20), 0.75)
        self.assertAlmostEqual(job_dims.learning_rate_at(job, 15),
                               0.5 + 0.5 * (1 + math.cos(math.pi / 4)) / 2)


class LossCurveTest(unittest.TestCase):
    def exit_code(self, difference, steps=range(1, 101)):
        """The code of loss_curve.py on two curves; `difference`, by step: ours less the peer's."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [f"{folder}/{name}" for name in ("ours", "peer")]
            for path, part in zip(paths, (1, 0)):
                with open(path, "w", encoding="utf-8") as file:
                    for step in steps:
                        loss = 5 - step / 50 + part * difference(step)
                        print(json.dumps({"step": step, "loss": loss}), file=file)
            sys.argv = ["loss_curve.py", *paths]
            with contextlib.redirect_stdout(io.StringIO()):
                with self.assertRaises(SystemExit) as exit_:
                    loss_curve.main()
            return exit_.exception.code

    def test_noise_that_averages_out_is_allowed(self):
        self.assertEqual(self.exit_code(lambda step: 0.1 * (-1) ** step), 0)

    def test_a_lasting_difference_is_not(self):
        self.assertEqual(self.exit_code(lambda step: 0.03 if step > 60 else 0), 1)
        self.assertEqual(self.exit_code(lambda step: -0.03), 1)

    def test_what_is_no_number_is_not(self):
        self.assertEqual(self.exit_code(lambda step: math.nan if step == 50 else 0), 1)

    def test_gaps_are_refused(self):
        steps = [step for step in range(1, 101) if step != 40]
        self.assertIn("without a gap", self.exit_code(lambda step: 0, steps))


if __name__ == "__main__":
    STEP_BENCH = sys.argv.pop(1)
    unittest.main()
