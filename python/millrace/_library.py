"""Finds and opens Millrace's shared libraries."""

import ctypes
import os
import pathlib


class Error(RuntimeError):
    """Millrace refused or failed. `code` is absl's: 3 for input that cannot be,
    5 for something missing, 9 for a state that forbids the call, 14 for a device or a
    peer that is gone."""

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


def _candidates(name, folder):
    """Where the library may lie: named by the user, in a bundle, in a build folder."""
    named = os.environ.get("MILLRACE_LIBRARY_PATH")
    if named:
        return [pathlib.Path(named) / name, pathlib.Path(named) / folder / name]
    root = pathlib.Path(__file__).resolve().parents[2]
    return [root / "lib" / name, root / "build" / folder / name,
            root / "build-test" / folder / name]


def open_library(name, folder=""):
    """Opens a library; `folder` is the one below the build folder."""
    candidates = _candidates(name, folder)
    for path in candidates:
        if path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                raise Error(f"{path} cannot be loaded: {error}; install what is missing or name "
                            "its folder in LD_LIBRARY_PATH", code=14) from error
    looked = ", ".join(str(path) for path in candidates)
    raise Error(f"{name} is not there; looked for {looked}. Build it with scripts/build, or name "
                "its folder in MILLRACE_LIBRARY_PATH", code=5)
