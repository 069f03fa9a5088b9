"""Numba kernels for nxcore: parallel on the CPU, CUDA on the GPU.

Importing this module imports no numba: listing backends reads it on machines that have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from nxcore.plugin import FLOATS, YES, Backend, Check, Kernel, Need, Verdict, hookimpl, kernels, no, simulated
from nxcore_numba import accepts


def _found(distribution: str) -> str:
    """Return the installed version, or the empty string."""
    try:
        return version(distribution)  # not find_spec: any folder of that name would satisfy it
    except PackageNotFoundError:
        return ""


def probe() -> Verdict:
    """Answer for the machine: whether a fitting numba is installed."""
    if not (found := _found("numba")):
        return no("numba is not installed", hint="pip install 'numba>=0.61'")
    if tuple(int(n) for n in found.split(".")[:2]) < (0, 61):
        return no(f"needs numba >= 0.61, found {found}", hint="pip install -U numba")
    return YES


def probe_cuda() -> Verdict:
    """Answer for the machine: whether it has a CUDA device, and what Numba needs to compile for it."""
    if accepts.simulator():
        return simulated("NUMBA_ENABLE_CUDASIM=1: Numba's CUDA simulator runs it on the CPU")
    if not torch.cuda.is_available():
        return no("torch sees no CUDA device", hint="NUMBA_ENABLE_CUDASIM=1 runs it on the CPU, slowly")
    if not _found("numba-cuda"):
        return no("numba-cuda is not installed", hint="pip install 'numba-cuda>=0.20'")
    return YES


def _rows(needs: Mapping[str, Need], targets: Mapping[str, str]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for family, need in needs.items():
        for op in accepts.FAMILIES[family]:
            target = {"target": targets[op]} if op in targets else {}
            rows[op] = {"accepts": need, "in_place_safe": op == "add", **target}
            if family == "losses":  # a replay wouldn't see that targets are out of bounds
                rows[op]["replay"] = ""
    return rows


ON_CPU: dict[str, Any] = {
    "dtypes": FLOATS,
    "deterministic": True,
    "replay": "nxcore_numba.threads:replay",
    "announces": True,
}

KERNELS: tuple[Kernel, ...] = (
    *kernels("nxcore_numba", _rows(accepts.CPU, accepts.TARGETS), **ON_CPU),
    *kernels(
        "nxcore_numba.gpu",
        _rows(accepts.CUDA, accepts.CUDA_TARGETS),
        probe=probe_cuda,
        variant="cuda",
        dtypes=accepts.CUDA_FLOATS,
        deterministic=True,
    ),
)


PRINTERS = kernels(
    "nxcore_numba",
    {"pointwise": {"accepts": accepts.expressions, "in_place_safe": True, "uses": accepts.GENERATED}},
    **ON_CPU,
)


@hookimpl
def nxcore_backend() -> Backend:
    """Return this backend."""
    return Backend("numba", probe, KERNELS, api=1, runtime=("nxcore_numba.cache",), printers=PRINTERS)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Return what Numba runs on."""
    verdict = probe()
    checks = [Check("numba", verdict.ok, _found("numba") or verdict.reason, verdict.hint)]
    if verdict:
        checks.append(_threads())
    cuda = probe_cuda()
    found = _found("numba-cuda")
    detail = cuda.reason or f"numba-cuda {found} on {torch.cuda.get_device_name()}"
    checks.append(Check("numba CUDA", True, detail, cuda.hint))
    return checks


def _threads() -> Check:
    layer = os.environ.get("NUMBA_THREADING_LAYER", "Numba's choice")  # numba itself is too slow to ask
    return Check("numba threads", True, f"as many as torch uses, {torch.get_num_threads()}; layer: {layer}")
