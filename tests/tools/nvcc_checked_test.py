"""Goal: scripts/cmake/nvcc_checked fails a build whose kernels came out badly, says why,
removes the object file, and lets all others through with their exit status. Method: a
stand-in for nvcc that prints what ptxas prints and writes its output file."""

import pathlib
import stat
import subprocess
import tempfile
import unittest

CHECKED = pathlib.Path("scripts/cmake/nvcc_checked").resolve()
SERIALISED = ("ptxas info    : (C{code}) Potential Performance Loss: wgmma.mma_async instructions "
              "are serialized due to insufficient register resources for the wgmma pipeline in "
              "the function 'kernel'")


def spill(num_bytes):
    return ("ptxas info    : Compiling entry function 'kernel' for 'sm_90a'\n"
            "ptxas info    : Function properties for kernel\n"
            f"    {num_bytes} bytes stack frame, {num_bytes} bytes spill stores, "
            f"{num_bytes} bytes spill loads\n"
            "ptxas info    : Used 168 registers")


class NvccCheckedTest(unittest.TestCase):
    def run_checked(self, log, *options, status=0):
        """(exit status, what is said, whether the object file is there)."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "log").write_text(log + "\n")
            nvcc = folder / "nvcc"
            nvcc.write_text(f"#!/bin/sh\ncat {folder}/log >&2\ntouch {folder}/a.o\n"
                            f"exit {status}\n")
            nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
            done = subprocess.run([CHECKED, nvcc, *options, "-c", "a.cu", "-o", folder / "a.o"],
                                  capture_output=True, text=True)
            return done.returncode, done.stderr, (folder / "a.o").exists()

    def test_refuses_serialised_products(self):
        for code in (*range(7504, 7516), 7520):
            status, said, exists = self.run_checked(SERIALISED.format(code=code))
            self.assertEqual(status, 1, code)
            self.assertIn("wgmma is serialised", said)
            self.assertIn(f"C{code}", said)
            self.assertFalse(exists)

    def test_takes_what_only_informs(self):
        for code in (7503, 7516, 7519):
            status, _, exists = self.run_checked(SERIALISED.format(code=code))
            self.assertEqual((status, exists), (0, True), code)

    def test_refuses_spills_beyond_the_allowance(self):
        allowed = "-DMILLRACE_SPILL_ALLOWANCE=16"
        for num_bytes, options, good in ((0, [], True), (4, [], False), (16, [allowed], True),
                                         (20, [allowed], False)):
            status, said, exists = self.run_checked(spill(num_bytes), *options)
            self.assertEqual(exists, good)
            self.assertEqual(status, 0 if good else 1)
            self.assertEqual(f"{num_bytes} bytes in kernel" in said, not good)

    def test_passes_on_what_nvcc_says(self):
        status, said, _ = self.run_checked("a.cu(3): error: expected a ;", status=2)
        self.assertEqual(status, 2)
        self.assertIn("expected a ;", said)


if __name__ == "__main__":
    unittest.main()
