"""Build the wheels of the core and of every plugin.

    python plugins/wheels.py [NAME ...] [--output dist]

A name is ``core`` or a plugin's folder; all by default. Those of cuda and triton hold compiled kernels, for
which this environment needs torch, nxcore, nvcc and Triton, and no GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 50_000_000
"""The most bytes of a wheel."""

WHOLE = {"NXCORE_CUDA_BUILD": "1", "NXCORE_TRITON_BUILD": "1"}
"""A wheel without its compiled kernels is an error; 0 in the environment means that it is wanted so."""


def projects() -> dict[str, Path]:
    """Return name -> folder of everything that is released."""
    return {"core": ROOT} | {
        path.parent.name: path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))
    }


def built(folder: Path, output: Path) -> Path:
    """Build the wheel of a folder, in this environment, in place of an older one; return it.

    Raises
    ------
    SystemExit
        If it can't be built.
    """
    with tempfile.TemporaryDirectory() as made:
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            made,
            folder,
        ]
        done = subprocess.run(
            command,
            env=WHOLE | os.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{folder} has no wheel:\n{done.stdout[-4000:]}")
        (wheel,) = Path(made).glob("*.whl")
        output.mkdir(parents=True, exist_ok=True)
        for older in output.glob(f"{wheel.name.partition('-')[0]}-*.whl"):
            older.unlink()
        (output / wheel.name).write_bytes(wheel.read_bytes())
    return output / wheel.name


def main() -> int:
    """Build them; print their sizes. Exit status 1 if one is too large."""
    known = projects()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[*known], metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    if unknown := set(given.names) - set(known):
        parser.error(f"nothing is named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    wheels = []
    for at, name in enumerate(given.names, 1):
        print(f"[{at}/{len(given.names)}] {name}", end=" ", flush=True)
        began = time.monotonic()
        wheels.append(built(known[name], given.output))
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    for wheel in wheels:
        size = wheel.stat().st_size
        print(
            f"{size / 1e6:8.2f} MB  {wheel.name}"
            + (f": more than {MOST / 1e6:.0f} MB" if size > MOST else "")
        )
    return int(any(wheel.stat().st_size > MOST for wheel in wheels))


if __name__ == "__main__":
    raise SystemExit(main())
