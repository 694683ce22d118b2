"""Goal: a bundle runs where none of its libraries are installed, says truly what is in
it, and scripts/bundle refuses whatever would break that or lose somebody's files.
Method: make one of the build under test, ask the dynamic linker with an empty
environment and without its cache, then damage it piece by piece.

    bundle_test.py BUILD_FOLDER
"""

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/bundle"
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
# With the GPU code where it was built.
CUDA = BUILD / "libmillrace_cuda.so"
KERNELS = BUILD / "kernels/libmillrace_kernels.so.1"
TRAIN = BUILD / "libmillrace_train.so"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
LOADER = importlib.machinery.SourceFileLoader("bundle", str(SCRIPT))
bundle = importlib.util.module_from_spec(importlib.util.spec_from_loader("bundle", LOADER))
LOADER.exec_module(bundle)


def make(*arguments, **options):
    command = [SCRIPT, "--build", BUILD, *arguments]
    if not KERNELS.exists():
        command.append("--without-kernels")
    if not CUDA.exists():
        command.append("--without-cuda")
    return subprocess.run(command, capture_output=True, text=True, **options)


class WholeTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name, "made")
        result = make("--output", cls.folder)
        assert result.returncode == 0, result.stderr

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def setUp(self):
        # Damage is done to a copy, whose files are links: replace, never rewrite them.
        self.copy = pathlib.Path(self.scratch.name, "elsewhere")
        shutil.copytree(self.folder, self.copy, symlinks=True, copy_function=os.link)

    def tearDown(self):
        shutil.rmtree(self.copy)

    def assert_check_fails(self, *words):
        with self.assertRaises(bundle.BundleError) as raised:
            bundle.check(self.copy)
        for word in words:
            self.assertIn(word, str(raised.exception))

    def start(self, *arguments, cwd=None, **environment):
        return subprocess.run([self.copy / "bin/millrace", *arguments], capture_output=True,
                              text=True, env={"PATH": "/usr/bin:/bin", **environment}, cwd=cwd)

    # Asks the linker itself, not through the script's code.
    def test_moved_elsewhere_it_loads_its_own_libraries_and_starts(self):
        result = self.start("--version")
        self.assertEqual(result.returncode, 0, result.stderr)
        listing = subprocess.run(
            ["/lib64/ld-linux-x86-64.so.2", "--inhibit-cache", "--list",
             self.copy / "libexec/millrace"],
            env={"LD_LIBRARY_PATH": f"{self.copy}/lib/gcc:{self.copy}/lib/mpi:{self.copy}/lib"}, capture_output=True,
            text=True)
        outside = [line.split()[0] for line in listing.stdout.splitlines()
                   if " => " in line and f" => {self.copy.resolve()}/" not in line]
        self.assertIn("libc.so.6", outside)
        for name in outside:
            self.assertRegex(name, r"^lib(c|m|mvec|dl|rt|pthread|util|resolv)\.so\.\d$")

    def test_through_a_link_it_starts_too(self):
        link = pathlib.Path(self.scratch.name, "link")
        link.symlink_to(self.copy / "bin/millrace")
        result = subprocess.run([link, "--version"], env={"PATH": "/usr/bin:/bin"},
                                capture_output=True)
        link.unlink()
        self.assertEqual(result.returncode, 0, result.stderr)

    # In a folder without files of rules, and with none below it.
    def test_it_knows_how_other_frameworks_compute(self):
        runs = ROOT / "tests/data/published_runs/published_runs.json"
        shutil.copy(runs, self.scratch.name)
        result = self.start("evaluate", runs.name, cwd=self.scratch.name)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("dense A/A+", result.stdout)
        shutil.rmtree(self.copy / "tests")
        result = self.start("evaluate", runs.name, cwd=self.scratch.name)
        self.assertEqual(result.returncode, 2)
        self.assertIn("looked for frameworks.yaml beside the runs", result.stderr)

    def test_manifest_tells_of_every_file(self):
        lines = (self.copy / "MANIFEST").read_text().splitlines()[2:]
        rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines}
        files = {path.relative_to(self.copy).as_posix() for path in self.copy.rglob("*")
                 if path.is_file() and not path.is_symlink() and path.name != "MANIFEST"}
        self.assertEqual(set(rows), files)
        for name, (digest, package, version) in rows.items():
            self.assertEqual(hashlib.sha256((self.copy / name).read_bytes()).hexdigest(), digest)
            self.assertTrue(version, name)
            if name.startswith("lib/") and name[4:] not in (CUDA.name, KERNELS.name, TRAIN.name):
                self.assertNotEqual(package, "millrace", name)
                self.assertIn(f"licenses/{package}.txt", files)
        self.assertEqual(rows["lib/gcc/libstdc++.so.6"][1], "libstdc++6")

    @unittest.skipUnless(TRAIN.exists(), "this build has no Python package")
    def test_python_package_loads_its_library(self):
        result = subprocess.run(
            [sys.executable, "-c", "import millrace; millrace.Trainer('no-such-job.yaml')"],
            capture_output=True, text=True,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(self.copy / "python")})
        self.assertIn("no-such-job.yaml", result.stderr)
        self.assertIn("millrace._library.Error", result.stderr)

    def test_without_open_mpi_an_agent_is_refused_and_the_rest_works(self):
        # This machine may have libmpi.so.40. None has libmpi.so.99, so let that be it.
        def rename(name):
            path = self.copy / name
            data = path.read_bytes().replace(b"libmpi.so.40", b"libmpi.so.99")
            path.unlink()
            path.write_bytes(data)
            path.chmod(0o755)

        rename("bin/millrace")
        rename("libexec/millrace")
        result = self.start("--version")
        self.assertIn("libmpi.so.99", result.stderr)
        os.link(self.copy / "lib/mpi/libmpi.so.40", self.copy / "lib/mpi/libmpi.so.99")
        result = self.start("--version", LD_LIBRARY_PATH="/mine")
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.start("agent", "job.yaml")
        self.assertEqual(result.returncode, 1)
        self.assertIn("libmpi.so.99 is not found here", result.stderr)

    # The machine's own, which is no older here, unless it lacks what the program needs.
    def test_it_brings_a_c_plus_plus_library_only_where_there_is_none_newer(self):
        def loaded():
            result = self.start("--version", LD_DEBUG="libs")
            return re.findall(r"calling init: (\S*libstdc\+\+\S*)", result.stderr)[-1:]

        self.assertEqual(len(loaded()), 1)
        self.assertNotIn(str(self.copy), loaded()[0])
        path = self.copy / "libexec/millrace"
        data = path.read_bytes().replace(b"libstdc++.so.6", b"libstdc++.so.9")
        path.unlink()
        path.write_bytes(data)
        path.chmod(0o755)
        script = self.copy / "bin/millrace"
        text = script.read_text().replace("libstdc++.so.6", "libstdc++.so.9")
        script.unlink()
        script.write_text(text)
        script.chmod(0o755)
        os.link(self.copy / "lib/gcc/libstdc++.so.6", self.copy / "lib/gcc/libstdc++.so.9")
        result = self.start("--version")
        self.assertEqual(result.returncode, 0, result.stderr)

    # Whatever the machine has: a missing driver is told as such, not as a broken bundle.
    def test_it_finds_its_own_gpu_code(self):
        result = self.start("devices", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        error = json.loads(result.stdout)["cuda"]["error"]
        if CUDA.exists():
            self.assertNotRegex(error or "", "built without CUDA|another build")
            os.remove(self.copy / "lib" / CUDA.name)
        result = self.start("devices", "--json")
        error = json.loads(result.stdout)["cuda"]["error"]
        self.assertIn("this millrace was built without CUDA", error)
        self.assertIn(f"lib/{CUDA.name}", error)

    def test_a_missing_library_is_noticed_even_where_this_machine_has_it(self):
        (self.copy / "lib/libyaml-cpp.so.0.7").unlink()
        self.assert_check_fails("libyaml-cpp.so.0.7")

    def test_a_library_without_the_versions_needed_is_noticed(self):
        (self.copy / "lib/gcc/libstdc++.so.6").unlink()
        shutil.copy(self.copy / "lib/libgomp.so.1", self.copy / "lib/gcc/libstdc++.so.6")
        self.assert_check_fails("GLIBCXX_", "libstdc++.so.6")

    def test_symbols_newer_than_the_oldest_glibc_are_noticed(self):
        newest = bundle.NEWEST_GLIBC
        bundle.NEWEST_GLIBC = (2, 17)
        try:
            self.assert_check_fails("newer than glibc 2.17", "libexec/millrace")
        finally:
            bundle.NEWEST_GLIBC = newest

    def test_an_earlier_bundle_is_replaced_whole(self):
        (self.copy / "stray").touch()
        self.assertEqual(make("--output", self.copy).returncode, 0)
        self.assertFalse((self.copy / "stray").exists())
        self.assertTrue((self.copy / "MANIFEST").exists())


class RefusalTest(unittest.TestCase):

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)

    def assert_refused(self, result, *words):
        self.assertNotEqual(result.returncode, 0)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_somebodys_folder(self):
        (self.folder / "thesis").write_text("years of work")
        self.assert_refused(make("--output", self.folder), "is not empty", str(self.folder))
        self.assertEqual((self.folder / "thesis").read_text(), "years of work")

    def test_a_file_in_place_of_the_folder(self):
        file = self.folder / "file"
        file.touch()
        self.assert_refused(make("--output", file), "is not a folder")

    def test_unknown_option(self):
        self.assert_refused(make("--tarbal"), "--tarbal")

    def test_nothing_built(self):
        self.assert_refused(make("--build", self.folder), "scripts/build", str(self.folder))

    def test_kernels_planned_but_not_built(self):
        shutil.copy(BUILD / "millrace", self.folder)
        (self.folder / "build.ninja").write_text("build kernels/libmillrace_kernels.so.1: link\n")
        result = subprocess.run([SCRIPT, "--build", self.folder], capture_output=True, text=True)
        self.assert_refused(result, "millrace_kernels_shared", "--without-kernels")

    def test_training_on_gpus_planned_but_not_built(self):
        shutil.copy(BUILD / "millrace", self.folder)
        (self.folder / "build.ninja").write_text("build libmillrace_cuda.so: link\n")
        result = subprocess.run([SCRIPT, "--build", self.folder], capture_output=True, text=True)
        self.assert_refused(result, "millrace_cuda", "--without-cuda")

    def test_no_room(self):
        # A limit on the size of a file stands for a full disk.
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        output = self.folder / "out"
        self.assert_refused(make("--output", output, preexec_fn=limit), "cannot write", "room")
        self.assertEqual(list(self.folder.iterdir()), [])


class ReadingTest(unittest.TestCase):

    def test_listing_of_the_linker(self):
        text = ("\tlinux-vdso.so.1 (0x00007ffd)\n\tliba.so.1 => /opt/a b/liba.so.1 (0x00007f)\n"
                "\tlibb.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n")
        self.assertEqual(bundle.elf.parse_loaded(text),
                         {"liba.so.1": pathlib.Path("/opt/a b/liba.so.1"), "libb.so": None})

    def test_versions_of_glibc(self):
        for version, has in [("GLIBC_2.2.5", True), ("GLIBC_2.36", True), ("GLIBC_2.37", False),
                             ("GLIBC_3.0", False), ("GLIBC_PRIVATE", False),
                             ("libcublasLt.so.13", True)]:
            self.assertEqual(bundle.elf.glibc_has(version, (2, 36)), has, version)

    def test_what_stays_outside(self):
        for name in ["libc.so.6", "libm.so.6", "libcublasLt.so.13", "libcuda.so.1", "libnccl.so.2"]:
            self.assertIsNotNone(bundle.OUTSIDE.fullmatch(name), name)
        for name in ["libstdc++.so.6", "libcrypto.so.3", "libmpi.so.40", "libgomp.so.1"]:
            self.assertIsNone(bundle.OUTSIDE.fullmatch(name), name)


if __name__ == "__main__":
    unittest.main()
