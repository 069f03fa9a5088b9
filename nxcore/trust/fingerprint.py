"""Versions and devices, which verdicts depend on beside the kernel; hashes of packages, for records."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import re
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import Any

import torch

from nxcore.spec.device import describe

CODE = frozenset({".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".so", ".ptx", ".cubin"})


@functools.cache
def source(module: str) -> str:
    """Return the hash of all source files of the package of ``module``; empty if it has no files."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        return ""
    origin = Path(spec.origin)
    files = [origin]
    if spec.submodule_search_locations:
        files = sorted(p for p in origin.parent.rglob("*") if p.suffix in CODE and p.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(origin.parent).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


@functools.cache
def versions(distribution: str) -> dict[str, str]:
    """Return name -> version of a distribution, torch, and its required and optional packages."""
    try:
        needed = requires(distribution) or []
    except PackageNotFoundError:
        needed = []
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in needed}
    found = {"torch": str(torch.__version__)}
    for name in sorted(names | {distribution}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def toolkits(distribution: str) -> dict[str, str]:
    """Return ``versions`` without nxcore's and its plugins': their sources count, not their releases."""
    own = {"nxcore-kernels", *(name for name, _ in plugins())}
    return {name: found for name, found in versions(distribution).items() if name not in own}


@functools.cache
def plugins() -> tuple[tuple[str, str], ...]:
    """Return the distribution and the module of every installed plugin."""
    return tuple((e.dist.name, e.value) for e in entry_points(group="nxcore") if e.dist)


@functools.cache
def device(kind: str, index: int | None) -> dict[str, Any]:
    """Return the facts of a device that verdicts depend on: model, capability and driver."""
    facts = describe(torch.device(kind, index) if index is not None else kind)
    found: dict[str, Any] = {"type": facts.type, "name": facts.name, "capability": facts.capability}
    if kind == "cuda":
        found["cuda"] = torch.version.cuda
        found["driver"] = _driver()
    return found


def _driver() -> int:
    """Return the CUDA version of the driver, as 13000; 0 if unknown. torch doesn't provide it."""
    found = ctypes.c_int(0)
    try:
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuDriverGetVersion(
            ctypes.byref(found)
        )
    except (OSError, AttributeError):
        return 0
    return found.value
