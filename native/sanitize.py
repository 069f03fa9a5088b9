"""Build the extension with the sanitizers of addresses and undefined behaviour, and test its path.

It is built in a folder of its own, so that the installed one stays. The sanitizers must be loaded before
Python, which leaks on purpose and is not sanitized itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

NOT_OF_MEMORY = (
    "tests/null/call/test_leaks.py::test_calls_leave_no_object_behind",
    "tests/null/choose/learn/test_watch.py::test_the_reference_is_never_convicted",
    "tests/null/interop/test_autograd.py::test_nothing_is_kept_after_backward",
    "tests/null/interop/test_library.py::test_an_operator_is_one_node_and_its_kernel_runs",
)
"""Tests that take long to count Python's objects, to compile with torch, or to add up errors.

The same calls are in others, and the suite runs these without sanitizers.
"""

ELSEWHERE = (
    "tests/conformance/",
    "tests/hostile/",
    "tests/nn/",
    "tests/null/store/",
    "tests/null/trust/test_gate.py",
    "tests/plugins/",
)
"""Where tests of both paths take no line and no branch of the extension that the others don't, by gcov."""


def main() -> int:
    """Return the exit status of the tests."""
    compiler = os.environ.get("CXX", "c++")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        ignored = shutil.ignore_patterns("build", "*.so", "*.egg-info")
        shutil.copytree(ROOT / "native", here / "native", ignore=ignored)
        build = (sys.executable, "setup.py", "-q", "build_ext", "--inplace", "egg_info")
        sanitized = os.environ | {"NXCORE_NATIVE_SANITIZE": "address,undefined"}
        subprocess.run(build, cwd=here / "native", env=sanitized, check=True)
        libraries = [
            subprocess.run(
                (compiler, f"-print-file-name={name}"), capture_output=True, text=True, check=True
            ).stdout.strip()
            for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")
        ]
        paths = (here / "native" / "src", ROOT, *ROOT.glob("plugins/*/src"))
        env = os.environ | {
            "LD_PRELOAD": ":".join(libraries),
            # A test's process that ends itself by a signal is to end by it.
            "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        }
        sys.path.insert(0, str(ROOT))
        from tests.paths import BOTH

        tests = (
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:benchmark",
            "-q",
            "-m",
            "not slow and not gpu",
            *(f"--deselect={test}" for test in NOT_OF_MEMORY),
            *sys.argv[1:],
            *(place for place in BOTH if not place.startswith(ELSEWHERE)),
        )
        return subprocess.run((*tests, "-k", "compiled"), cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
