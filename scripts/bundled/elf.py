"""The answers of readelf and the dynamic linker about a program or library."""

import collections
import pathlib
import re
import subprocess

LINKER = "/lib64/ld-linux-x86-64.so.2"

Dynamic = collections.namedtuple("Dynamic", "needed has_path")
Versions = collections.namedtuple("Versions", "needed defined")  # (library, version); version.


class ElfError(Exception):
    pass


def run(command, environment):
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
    except FileNotFoundError:
        raise ElfError(f"{command[0]} is missing; install binutils (scripts/dependencies build "
                       f"does), on an x86-64 Linux with glibc") from None
    return result


def readelf(option, path):
    result = run(["readelf", "--wide", option, str(path)], {"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    if result.returncode != 0 or "Error:" in result.stderr:
        raise ElfError(f"readelf cannot read {path}: {result.stderr.strip()}; build it again")
    return result.stdout


def dynamic(path):
    text = readelf("--dynamic", path)
    return Dynamic(re.findall(r"\(NEEDED\).*\[(.+)\]", text),
                   re.search(r"\((RPATH|RUNPATH)\)", text) is not None)


def loaded(path, environment=None):
    """{name: path or None if not found} of all libraries that would be loaded, without
    the cache of the machine's own libraries and with no other environment."""
    # Unlike --list, this goes on after a library that is not found.
    traced = {**(environment or {}), "LD_TRACE_LOADED_OBJECTS": "1"}
    result = run([LINKER, "--inhibit-cache", str(path)], traced)
    libraries = parse_loaded(result.stdout)
    if not libraries:
        raise ElfError(f"the dynamic linker cannot list the libraries of {path}: "
                       f"{(result.stdout + result.stderr).strip()}; build it again")
    return libraries


def parse_loaded(text):
    libraries = {}
    for name, found in re.findall(r"^\s*(\S+) => (not found|/.*?)(?: \(0x[0-9a-f]+\))?$", text, re.M):
        libraries[name] = None if found == "not found" else pathlib.Path(found)
    return libraries


def versions(path):
    return parse_versions(readelf("--version-info", path))


def parse_versions(text):
    needed, defined, library = [], set(), None
    for line in text.splitlines():
        if match := re.search(r"Version: \d+\s+File: (\S+)", line):
            library = match.group(1)
        elif match := re.search(r"Name: (\S+)\s+Flags: .*Version: \d+", line):
            needed.append((library, match.group(1)))
        elif match := re.search(r"Index: \d+\s+Cnt: \d+\s+Name: (\S+)", line):
            defined.add(match.group(1))
    return Versions(needed, defined)


def glibc_has(version, newest):
    """Whether glibc `newest`, such as (2, 36), gives this symbol version. Versions of
    other libraries that stay outside, such as those of CUDA, are not glibc's to have."""
    if version == "GLIBC_ABI_DT_RELR":
        return newest >= (2, 36)
    if not version.startswith("GLIBC_"):
        return True
    match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
    # GLIBC_PRIVATE ties a file to one build of glibc.
    return match is not None and (int(match.group(1)), int(match.group(2))) <= newest
