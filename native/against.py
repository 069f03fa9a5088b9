"""Build the libraries for minor versions of torch, into the package's folder.

    python native/against.py 2.10 2.11 2.12 2.13

Of a torch that isn't installed only the headers are needed, and pip downloads its wheel for them (0.9 GB).
The library is linked with the installed torch, and finds the functions of the other one where it is loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
INCLUDE = "torch/include/"


def minor_of(version: str) -> str:
    """Return the minor version, such as ``2.13`` of ``2.13.0+cpu``."""
    return ".".join(version.split(".")[:2])


def headers(minor: str, folder: Path) -> Path:
    """Download a torch of a minor version and unpack its headers into ``folder``; return their folder."""
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:")
    subprocess.run((*pip, "-d", folder, f"torch=={minor}.*"), check=True)
    (wheel,) = folder.glob("torch-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder, [name for name in file.namelist() if name.startswith(INCLUDE)])
    wheel.unlink()
    return folder / INCLUDE


def build(minor: str) -> None:
    """Build the library for a minor version of torch."""
    with tempfile.TemporaryDirectory() as made:
        env = os.environ | {"NXCORE_NATIVE_TORCH": minor}
        if minor != minor_of(torch.__version__):
            env["NXCORE_NATIVE_HEADERS"] = str(headers(minor, Path(made)))
        command = (sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--build-temp", made)
        subprocess.run(command, cwd=HERE, env=env, check=True)


if __name__ == "__main__":
    for version in sys.argv[1:]:
        build(version)
