"""Goal: every function that the C headers declare is exported by the library, nothing
else is, and docs/kernels.md names each. Method: compare the declarations with nm.

    c_api_names_test.py LIBRARY
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]


def main():
    headers = sorted((ROOT / "kernels/c_api").glob("*.h"))
    declared = set()
    for header in headers:
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        declared |= set(re.findall(r"MILLRACE_API[^;(]*?\b(millrace_\w+)\s*\(", text))
    lines = subprocess.run(["nm", "-D", "--defined-only", sys.argv[1]], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    exported = {line.split()[2] for line in lines if line.split()[1] in "TW"}
    doc = (ROOT / "docs/kernels.md").read_text()
    umbrella = (ROOT / "kernels/c_api/millrace_kernels.h").read_text()
    problems = [f"declared but not exported: {n}" for n in sorted(declared - exported)]
    problems += [f"exported but not declared: {n}" for n in sorted(exported - declared)]
    problems += [f"docs/kernels.md does not name {n}" for n in sorted(declared)
                 if not re.search(rf"\b{n}\b", doc)]
    problems += [f"millrace_kernels.h lacks {h.name}" for h in headers
                 if h.name not in ("result.h", "millrace_kernels.h", "attention_convert.h")
                 and f'"kernels/c_api/{h.name}"' not in umbrella]
    if len(declared) < 20:
        problems.append(f"only {len(declared)} declarations found: is the pattern right?")
    print("\n".join(problems) or f"{len(declared)} functions, declared, exported and named")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
