"""Where each file of a bundle came from: its MANIFEST, Debian's packages, licences."""

import errno
import hashlib
import pathlib
import re
import subprocess

TITLE = "# Files of a Millrace bundle"
COLUMNS = "# name\tsha256\tpackage\tversion"
DOCS = pathlib.Path("/usr/share/doc")
COMMON = pathlib.Path("/usr/share/common-licenses")


class Manifest:
    """One line a file: name, SHA-256, package, version, with tabs between."""

    def __init__(self, folder, version):
        self.folder = folder
        self.version = version
        self.lines = []

    @staticmethod
    def is_in(folder):
        path = folder / "MANIFEST"
        return path.is_file() and path.read_bytes().startswith(TITLE.encode() + b"\n")

    def add(self, path, package):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        name = path.relative_to(self.folder).as_posix()
        self.lines.append("\t".join([name, digest, *package]))

    def write(self):
        text = "\n".join([TITLE, COLUMNS, *sorted(self.lines), ""])
        (self.folder / "MANIFEST").write_text(text)


def packages_of(paths):
    """{path: (Debian package, version) that installed the file, or None}."""
    # Debian's database has some files under /lib, which is a link to /usr/lib.
    names = {path: [str(path.resolve()), str(path.resolve()).removeprefix("/usr")] for path in paths}
    owners = {}
    for line in dpkg("--search", *sorted(sum(names.values(), []))):
        owner, name = line.split(": ", 1)
        owners[name] = owner.split(", ")[0]
    versions = dict(line.split("\t") for line in dpkg(
        "--show", "--showformat=${binary:Package}\\t${Version}\\n", *sorted(set(owners.values()))))
    # With and without the architecture: only some packages are named with it.
    versions.update({name.split(":")[0]: version for name, version in versions.items()})
    result = {}
    for path, (name, short) in names.items():
        owner = (owners.get(name) or owners.get(short) or "").split(":")[0]
        result[path] = (owner, versions[owner]) if owner else None
    return result


def dpkg(*arguments):
    """Lines about what dpkg knows. Its complaints about the rest are not passed on."""
    try:
        result = subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise OSError(errno.ENOENT, "bundles are made on Debian 12, which has it",
                      "dpkg-query") from None
    return result.stdout.splitlines()


def license_files(packages):
    """(file, name under licenses/, (package, version)) of what the packages' licences
    are in, and of the full texts that these refer to."""
    texts = set()
    for package in sorted(packages):
        path = DOCS / package[0] / "copyright"
        texts.update(re.findall(rf"{COMMON}/([\w.-]*\w)", path.read_text(errors="replace")))
        yield path, f"{package[0]}.txt", package
    # GPL is a link to the newest GPL, and so on.
    files = [COMMON / name for name in sorted(texts) if (COMMON / name).is_file()]
    for path, package in packages_of(files).items():
        yield path, f"common/{path.name}", package
