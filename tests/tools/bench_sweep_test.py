"""Goal: scripts/bench_sweep tries what a person would, goes on behind a layout that fails,
and tells order and regret rightly. Method: its pure functions on cases worked by hand; its
loop over processes with a stand-in for cuda_step_bench that writes made-up rows and fails
when told.
"""

import argparse
import importlib.machinery
import importlib.util
import io
import contextlib
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).parents[2]
sys.dont_write_bytecode = True  # Beside a script without .py, it would litter scripts/.
sys.path.insert(0, str(ROOT / "scripts"))
LOADER = importlib.machinery.SourceFileLoader("bench_sweep", str(ROOT / "scripts/bench_sweep"))
bench_sweep = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_sweep", LOADER))
LOADER.exec_module(bench_sweep)

JOB = "name: small\ntraining:\n  global_batch: 4\nlayout: {data: 9}\n"

# Takes as many milliseconds as the micro-batch says; on 3 rank 1 fails and the others hang.
STAND_IN = """#!/usr/bin/env python3
import json, re, sys, time
jobs = [word for word in sys.argv[1:] if "=" not in word]
settings = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
for job in jobs:
    micro_batch = int(re.search(r"micro_batch: (\\d+)", open(job).read())[1])
    if micro_batch == 3:
        if settings["rank"] == "1":
            sys.exit("cuda_step_bench: no memory")
        time.sleep(100)
    if "json" in settings:
        with open(settings["json"], "a") as file:
            print(json.dumps({"step_time_s": micro_batch / 1000, "memory_bytes": 2 ** 30,
                              "made_s": 1, "first_step_s": 1, "measured_step_time_s": 2,
                              "breakdown": {"compute": 1.9, "exposed_tensor_comm": 0.02,
                                            "exposed_data_comm": 0.01, "bubble": 0.04,
                                            "data": 0, "other": 0.03}}), file=file)
"""


def row(micro_batch, predicted_s, by="hand"):
    return {"by": by, "predicted_s": predicted_s, "predicted_bytes": 2 ** 30,
            "layout": {"pipeline": 1, "data": 2, "tensor": 1, "micro_batch": micro_batch}}


class SweepTest(unittest.TestCase):

    def test_tries_every_mesh(self):
        meshes = list(bench_sweep.candidates(2, 4))
        self.assertEqual([(m[0]["tensor"], m[0]["pipeline"], m[0]["data"]) for m in meshes],
                         [(1, 1, 2), (1, 2, 1), (2, 1, 1)])
        data, pipeline, tensor = meshes
        self.assertEqual(len(data), 2 * 4)  # Micro-batches of 2 and 1, ZeRO 0 to 3.
        self.assertEqual({(l["micro_batch"], l["schedule"]) for l in pipeline},
                         {(2, "1f1b"), (2, "zero_bubble"), (1, "1f1b"), (1, "zero_bubble")})
        self.assertEqual([l["micro_batch"] for l in tensor], [4, 2, 1])

    def test_spreads_what_it_takes(self):
        self.assertEqual(bench_sweep.spread([1, 2, 3], 5), [1, 2, 3])
        self.assertEqual(bench_sweep.spread([1, 2, 3, 4, 5], 3), [1, 3, 5])
        self.assertEqual(bench_sweep.spread([1, 2, 3], 1), [1])

    def test_keeps_what_moves_tensors(self):
        for resources in ["resources: {backend: cuda, transport: copy_engines}\n",
                          "resources:\n  backend: cuda\n  transport: copy_engines\n"]:
            pinned = bench_sweep.pin(JOB + resources, 2, {"data": 2}, None, "9 GiB")
            self.assertIn("layout: {data: 2}\n", pinned)
            self.assertIn("resources: {backend: cuda, devices_per_agent: 2, transport: "
                          "copy_engines, memory_per_device: 9 GiB}\n", pinned)
        self.assertNotIn("transport", bench_sweep.pin(JOB, 2, None, None, None))
        self.assertNotIn("transport", bench_sweep.pin(
            JOB + "# transport: nccl\n", 2, None, None, None).split("#")[0])

    def test_predicts_anew_only_by_a_profile_that_is_named(self):
        planned = {"predicted": {"step_time_s": 7.0, "memory_bytes_per_device": 1},
                   "layout": dict.fromkeys(bench_sweep.KEYS, 1)}
        with unittest.mock.patch.object(bench_sweep, "plan", return_value=planned):
            for profile, expected in [(None, [3.0, 7.0]), ("other.yaml", [7.0, 7.0])]:
                sweep = {"job": JOB, "devices": 2,
                         "rows": [row(1, 3.0), {"by": "hand", "layout": {"data": 2}}]}
                bench_sweep.predict(argparse.Namespace(profile=profile), sweep)
                self.assertEqual([r["predicted_s"] for r in sweep["rows"]], expected)

    def test_goes_on_behind_a_layout_that_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            bench = pathlib.Path(folder) / "bench"
            bench.write_text(STAND_IN)
            bench.chmod(0o755)
            arguments = argparse.Namespace(bench=bench, steps=1, warmup=0, patience=60,
                                           profile=None, memory=None, log=None, save=None)
            sweep = {"name": "small", "job": JOB, "devices": 2, "rows": [
                row(5, 0.0051), row(3, 0.003), row(4, 0.0042, "planner"), row(8, 0.0088)]}
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                bench_sweep.measure(arguments, sweep)
        self.assertEqual([r.get("measured_s") for r in sweep["rows"]], [0.005, None, 0.004, 0.008])
        self.assertEqual(sweep["rows"][1]["error"], "cuda_step_bench: no memory")
        self.assertIn("data=2 micro_batch=3: cuda_step_bench: no memory", errors.getvalue())
        table = io.StringIO()
        with contextlib.redirect_stdout(table):
            bench_sweep.print_table(sweep)
        text = table.getvalue()
        self.assertIn("FAILED: cuda_step_bench: no memory", text)
        self.assertIn("1.00 %  0.50 %  2.00 %  1.50 %", text)  # Shares of the step of 2 s.
        self.assertIn("2 by hand: rank correlation 1.000", text)
        self.assertIn("the planner's choice takes -20.0 % of the best by hand", text)


if __name__ == "__main__":
    unittest.main()
