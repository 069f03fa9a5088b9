"""What every kernel here asks of the machine and of its tensors. Imports no toolkit."""

from __future__ import annotations

import functools

import torch

from nxcore.plugin import FLOATS, YES, Problem, Verdict, no, simulated
from nxcore_cuda import host, load, toolkit
from nxcore_cuda.compile import shipped

TOOLKIT = "pip install 'nxcore-cuda[nvcc]', or install the CUDA toolkit and set CUDA_HOME"


def capable(index: int) -> Verdict:
    """Answer whether a device and its driver are recent enough."""
    try:
        capability = load.capability(index)
    except (OSError, load.DriverError) as error:
        return no(f"the CUDA driver can't be used: {error}", hint="install a driver for CUDA 12 or later")
    spelt = ".".join(map(str, capability))
    if capability < toolkit.LEAST_CAPABILITY:
        least = ".".join(map(str, toolkit.LEAST_CAPABILITY))
        return no(f"needs a device of capability {least} or later, got {spelt}")
    return YES


@functools.cache
def device(index: int) -> Verdict:
    """Answer whether kernels run on a device: its capability, and something to have images from."""
    if not (found := capable(index)):
        return found
    capability = load.capability(index)
    if any(toolkit.runs_on(image["archs"], capability) for image in shipped().values()):
        return YES
    if toolkit.nvcc():
        return YES
    spelt = ".".join(map(str, capability))
    return no(f"the wheel has no image for capability {spelt}, and no nvcc is {toolkit.PLACES}", hint=TOOLKIT)


def probe() -> Verdict:
    """Answer whether this machine runs the kernels."""
    if toolkit.EMULATED:
        if toolkit.host_compiler() is None:
            return no("NXCORE_CUDA_EMULATOR needs a C++ compiler, and neither g++ nor c++ is on PATH")
        return simulated("NXCORE_CUDA_EMULATOR: g++ compiles the kernels, and the CPU runs them")
    if torch.version.hip is not None:
        return no("torch was built for ROCm, and these kernels are CUDA")
    if not torch.cuda.is_available():
        return no(
            "torch sees no CUDA device",
            hint="install a torch built for CUDA, or set NXCORE_CUDA_EMULATOR=1 to run on the CPU, slowly",
        )
    found = [device(index) for index in range(torch.cuda.device_count())]
    return next((verdict for verdict in found if verdict), found[0])


def tensors(problem: Problem) -> Verdict:
    """Refuse tensors that lie elsewhere or are of other dtypes."""
    other = host.current()
    emulated = toolkit.EMULATED and other is None
    place, kind = ("CPU", "cpu") if emulated else ("CUDA", "cuda")
    for meta in problem.tensors:
        if meta.device.type != kind:
            condition = " under NXCORE_CUDA_EMULATOR" if emulated else ""
            return no(f"needs {place} tensors{condition}, got {meta.device}")
        if meta.dtype not in FLOATS:
            return no(f"needs float32, float16 or bfloat16, got {str(meta.dtype).removeprefix('torch.')}")
    devices = {meta.device for meta in problem.tensors if meta.ndim or kind == "cpu"}
    if len(devices) > 1:
        return no(f"needs tensors of one device, got {', '.join(sorted(map(str, devices)))}")
    if emulated:
        return YES
    return (device if other is None else other.device)(problem.device.index or 0)
