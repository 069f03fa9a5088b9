"""The compilers of this machine, and the devices that an image runs on. Imports no toolkit."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

NO = ("", "0", "false", "no", "off")

EMULATED = os.environ.get("NXCORE_CUDA_EMULATOR", "").strip().lower() not in NO
"""g++ stands in for nvcc, and kernels run on the CPU, on CPU tensors."""

JIT = os.environ.get("NXCORE_NO_JIT", "").strip().lower() in NO
"""Whether the launcher may be built."""

LEAST_CAPABILITY = (7, 5)


PLACES = "on PATH, in CUDA_HOME, in /usr/local/cuda or among this Python's packages"


def nvcc() -> str | None:
    """Return the path of nvcc: on PATH, in CUDA_HOME, where it is installed by default, or from pip."""
    if found := shutil.which("nvcc"):
        return found
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", *_pip_homes()]
    return next(
        (found for home in homes if home and (found := shutil.which("nvcc", path=f"{home}/bin"))), None
    )


def _pip_homes() -> list[str]:
    """Return where the packages nvidia-cuda-nvcc of CUDA 13 and later put their files."""
    nvidia = importlib.util.find_spec("nvidia")  # a namespace: finding it imports nothing
    folders = nvidia.submodule_search_locations if nvidia else None
    return sorted(
        (str(home) for folder in folders or () for home in Path(folder).glob("cu[0-9]*")), reverse=True
    )


def host_compiler() -> str | None:
    """Return the path of a C++ compiler."""
    return shutil.which("g++") or shutil.which("c++")


@functools.cache
def version(compiler: str) -> str:
    """Return what a compiler says of itself."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


@functools.cache
def architectures(compiler: str) -> tuple[tuple[int, int], ...]:
    """Return the capabilities that this nvcc compiles for, in ascending order."""
    done = subprocess.run([compiler, "--list-gpu-arch"], capture_output=True, text=True, check=False)
    found = re.findall(r"compute_(\d+)(\d)\b", done.stdout)
    return tuple(sorted((int(major), int(minor)) for major, minor in found))


def knows(compiler: str, option: str) -> bool:
    """Return whether an option, such as ``--compress-mode=size``, is among those that nvcc explains."""
    done = subprocess.run([compiler, "--help"], capture_output=True, text=True, check=False)
    return option.partition("=")[0] in done.stdout


def name(capability: tuple[int, int]) -> str:
    """Return a capability as compilers write it, without its prefix: ``90`` for (9, 0)."""
    return f"{capability[0]}{capability[1]}"


def target(compiler: str, capability: tuple[int, int]) -> tuple[str, str]:
    """Return nvcc's ``-arch`` for a device, and the kind of image: PTX where nvcc is the older."""
    known = architectures(compiler)
    if capability in known or not known:
        return f"sm_{name(capability)}", "cubin"
    older = [k for k in known if k <= capability]
    if not older:
        least = ".".join(map(str, known[0]))
        wanted = ".".join(map(str, capability))
        raise RuntimeError(f"{compiler} compiles for capability {least} and later, the device has {wanted}")
    return f"compute_{name(older[-1])}", "ptx"


def runs_on(images: Iterable[str], capability: tuple[int, int]) -> bool:
    """Return whether one of an image's parts, such as ``sm_80`` or ``compute_100``, runs on a device."""
    for image in images:
        kind, _, digits = image.partition("_")
        made_for = int(digits[:-1]), int(digits[-1])
        if made_for <= capability and (kind == "compute" or made_for[0] == capability[0]):
            return True
    return False


def cache_folder() -> Path:
    """Return where compiled kernels are kept: ``NXCORE_CUDA_CACHE``, or a folder of the user's cache."""
    if given := os.environ.get("NXCORE_CUDA_CACHE"):
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "nxcore" / "cuda"
