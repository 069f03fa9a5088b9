"""Build the wheels of the core, of every plugin and of the compiled call path.

    python plugins/wheels.py [NAME ...] [--output dist]

A name is ``core``, ``native`` or a plugin's folder; all by default. Those of cuda and triton hold compiled
kernels, for which this environment needs torch, nxcore, nvcc and Triton, and no GPU. The one of native holds
a library for each minor version of torch that is tested, for which it needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from nxcore.spec.device import TESTED_TORCH

ROOT = Path(__file__).parents[1]
MOST = 50_000_000
"""The most bytes of a wheel."""

WHOLE = {"NXCORE_CUDA_BUILD": "1", "NXCORE_TRITON_BUILD": "1", "NXCORE_NATIVE_BUILD": "1"}
"""A wheel without its compiled kernels is an error; 0 in the environment means that it is wanted so. That of
native then has the library for the installed torch alone."""


def projects() -> dict[str, Path]:
    """Return name -> folder of everything that is released."""
    plugins = {path.parent.name: path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))}
    return {"core": ROOT, **plugins, "native": ROOT / "native"}


def others() -> list[str]:
    """Return the minor versions of torch that are tested and aren't installed."""
    (major, first), (_, last) = ([int(part) for part in version.split(".")] for version in TESTED_TORCH)
    known = [f"{major}.{minor}" for minor in range(first, last + 1)]
    return [version for version in known if not torch.__version__.startswith(f"{version}.")]


def built(folder: Path, output: Path) -> Path:
    """Build the wheel of a folder, in this environment, in place of an older one; return it.

    Raises
    ------
    SystemExit
        If it can't be built.
    """
    if folder.name == "native" and (WHOLE | os.environ)["NXCORE_NATIVE_BUILD"] == "1":
        subprocess.run([sys.executable, folder / "against.py", *others()], check=True)
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


def main(words: list[str] | None = None) -> int:
    """Build them; print their sizes. Exit status 1 if one is too large."""
    known = projects()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[*known], metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args(words)
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
