"""CuPy for nxcore: the kernels of nxcore-cuda, compiled by NVRTC where there is no CUDA toolkit.

Importing this module imports no CuPy; planning a call does.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import nxcore_cuda
import torch
from nxcore_cuda.accepts import capable
from nxcore_cuda.machine.host import Host

from nxcore.plugin import YES, Backend, Check, Kernel, Problem, Verdict, hookimpl, hosted, no

API = 1
CUPY = 14  # takes a stream of another library through the stream protocol
PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "cupy")  # of one name where they are imported
NEEDED = {
    "12": "'cupy-cuda12x>=14' nvidia-cuda-nvrtc-cu12",
    "13": "'cupy-cuda13x>=14' 'nvidia-cuda-nvrtc==13.*'",
}
"""CuPy and NVRTC for each release of CUDA, as the extras name them."""


def _installed() -> tuple[str, str] | None:
    """Return the name and the version of the first of CuPy's packages that is installed."""
    for name in PACKAGES:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return None


def _cupy() -> Verdict:
    hint = f"pip install {NEEDED['12' if (torch.version.cuda or '').startswith('12.') else '13']}"
    found = _installed()
    if found is None:
        return no(f"none of {', '.join(PACKAGES)} is installed", hint=hint)
    name, release = found
    major = release.partition(".")[0]
    if not major.isdigit() or int(major) < CUPY:
        return no(f"needs {name} >= {CUPY}, found {release}", hint=hint)
    return YES


def probe() -> Verdict:
    """Return whether CuPy can run on this machine."""
    if not (toolkit := _cupy()):
        return toolkit
    if torch.version.hip is not None:
        return no("torch was built for ROCm, and these kernels are CUDA")
    if not torch.cuda.is_available():
        return no("torch sees no CUDA device", hint="install a torch built for CUDA")
    found = [capable(index) for index in range(torch.cuda.device_count())]
    return next((verdict for verdict in found if verdict), found[0])


def _handle(*args: Any) -> Any:
    from nxcore_cupy.launch import Handle

    return Handle(*args)


HOST = Host(capable, _handle)  # NVRTC compiles for every device that nxcore-cuda takes


PLANNERS: dict[str, Kernel] = {}
"""nxcore-cuda's kernels by operator."""


def _row(kernel: Kernel) -> Kernel:
    """Return nxcore-cuda's row of an operator, with CuPy to run it."""
    accepts: Callable[[Problem], Verdict] = kernel.accepts

    @functools.wraps(accepts)
    def accepts_here(problem: Problem) -> Verdict:
        with hosted(HOST):
            return accepts(problem)

    uses = (kernel.target, f"{kernel.target.partition(':')[0]}:{kernel.op}.cu", "nxcore_cupy.compile:OPTIONS")
    PLANNERS[kernel.op] = dataclasses.replace(kernel, replay="")
    return dataclasses.replace(
        kernel,
        target="nxcore_cupy.launch:plan",
        accepts=accepts_here,
        uses=uses,
        replay="nxcore_cupy.launch:again",
    )


KERNELS = tuple(map(_row, nxcore_cuda.KERNELS))
PRINTERS = tuple(
    dataclasses.replace(
        _row(printer),
        target="nxcore_cupy.pointwise:plan",
        uses=("nxcore_cupy.compile:OPTIONS", printer.target),
    )
    for printer in nxcore_cuda.PRINTERS
)
RUNTIME = ("nxcore_cupy.compile", "nxcore_cupy.launch", *nxcore_cuda.RUNTIME)


@hookimpl
def nxcore_backend() -> Backend:
    """Return this backend."""
    return Backend("cupy", probe, KERNELS, api=API, runtime=RUNTIME, printers=PRINTERS, ahead=_ahead)


def _ahead(kernel: Kernel, problem: Problem, capability: tuple[int, int]) -> None:
    from nxcore_cupy.launch import ahead

    ahead(kernel, problem, capability)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Return checks of the installed CuPy, and of the device."""
    toolkit, machine = _cupy(), probe()
    needed = torch.cuda.is_available()  # what is for a device that isn't here is no fault
    yield Check("cupy", toolkit.ok or not needed, " ".join(_installed() or ("not installed",)), toolkit.hint)
    if toolkit:
        name = torch.cuda.get_device_name() if machine else machine.reason
        yield Check("cupy device", True, name, machine.hint)  # to have none is no fault
