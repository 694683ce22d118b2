"""Goal: scripts/bench_truth ranks with ties as the textbook does and pins a job file
without touching the rest of it. Method: its pure functions on cases worked by hand.
"""

import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.dont_write_bytecode = True  # Beside a script without .py, it would litter scripts/.
sys.path.insert(0, str(ROOT / "scripts"))
import bench_parts

LOADER = importlib.machinery.SourceFileLoader("bench_truth", str(ROOT / "scripts/bench_truth"))
bench_truth = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_truth", LOADER))
LOADER.exec_module(bench_truth)

JOB = """\
name: small  # A comment.
training:
  steps: 250
  # About the optimizer.
  optimizer:
    learning_rate: 2e-3
data:
  text:
  - a
  - b

layout:
  pipeline: 2
output:
  directory: runs
"""


class SpearmanTest(unittest.TestCase):

    def test_equal_values_share_the_mean_of_their_places(self):
        self.assertEqual(bench_parts.ranks_of([30, 10, 20, 20]), [4, 1, 2.5, 2.5])
        self.assertEqual(bench_parts.ranks_of([5, 5, 5]), [2, 2, 2])

    def test_follows_the_order_alone(self):
        self.assertAlmostEqual(bench_parts.spearman([1, 2, 3, 4], [1, 10, 100, 1000]), 1)
        self.assertAlmostEqual(bench_parts.spearman([1, 2, 3], [9, 8, 7]), -1)
        # One exchange of neighbours among five: 1 - 6 * 2 / (5 * 24).
        self.assertAlmostEqual(bench_parts.spearman([1, 2, 3, 4, 5], [1, 3, 2, 4, 5]), 0.9)

    def test_with_ties(self):
        # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
        self.assertAlmostEqual(bench_parts.spearman([1, 2, 2, 3], [1, 2, 3, 4]), 0.9 ** 0.5)

    def test_without_an_order_there_is_none(self):
        self.assertIsNone(bench_parts.spearman([1, 1, 1], [1, 2, 3]))
        self.assertIsNone(bench_parts.spearman([1, 2, 3], [4, 4, 4]))


class JobTest(unittest.TestCase):

    def test_replaces_a_value(self):
        self.assertEqual(bench_parts.set_key(JOB, "training.steps", 7),
                         JOB.replace("steps: 250", "steps: 7"))
        self.assertEqual(bench_parts.set_key(JOB, "name", "x"),
                         JOB.replace("name: small  # A comment.", "name: x"))

    def test_replaces_a_whole_section(self):
        self.assertEqual(bench_parts.set_key(JOB, "layout", "{data: 4}"),
                         JOB.replace("layout:\n  pipeline: 2", "layout: {data: 4}"))
        self.assertEqual(bench_parts.set_key(JOB, "data.text", "[c]"),
                         JOB.replace("  text:\n  - a\n  - b", "  text: [c]"))

    def test_adds_what_is_missing(self):
        self.assertEqual(
            bench_parts.set_key(JOB, "training.optimizer.warmup_steps", 3),
            JOB.replace("  optimizer:\n", "  optimizer:\n    warmup_steps: 3\n"))
        self.assertTrue(bench_parts.set_key(JOB, "fault.max_restarts", 1).startswith(
            "fault:\n  max_restarts: 1\nname: small"))

    def test_refuses_a_section_on_one_line(self):
        with self.assertRaisesRegex(ValueError, "training is '{steps: 2}'"):
            bench_parts.set_key("training: {steps: 2}  # Few.\n", "training.steps", 1)

    def test_pins_the_quickstart(self):
        text = (ROOT / "configs/quickstart.yaml").read_text()
        layout = bench_truth.parse_layout("pipeline=2 data=2 micro_batch=8", 4)
        lines = bench_truth.pin_job(text, layout, 7, "out put").splitlines()
        for line in ["layout: {pipeline: 2, data: 2, tensor: 1, micro_batch: 8, zero: 0}",
                     "  steps: 7", "  validation_interval_steps: 0", "    warmup_steps: 7",
                     "checkpoint: {interval_steps: 0, at_end: false, resume: none}",
                     'output: {directory: "out put"}', "  hidden: 256           "
                     "# Width of the residual stream."]:
            self.assertEqual(lines.count(line), 1, line)

    def test_refuses_other_layouts(self):
        for layout in bench_truth.LAYOUTS:
            bench_truth.parse_layout(layout, 4)
        self.assertEqual(bench_truth.parse_layout("data=2 recompute=full", 2)["recompute"], "full")
        self.assertNotIn("recompute", bench_truth.parse_layout("data=2", 2))
        with self.assertRaisesRegex(ValueError, "has 2 ranks"):
            bench_truth.parse_layout("data=2", 4)
        with self.assertRaisesRegex(ValueError, "'dta=4' is not one of pipeline"):
            bench_truth.parse_layout("dta=4", 4)


if __name__ == "__main__":
    unittest.main()
