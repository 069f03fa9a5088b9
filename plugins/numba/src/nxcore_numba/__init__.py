"""Numba kernels for nxcore: parallel on the CPU, CUDA on the GPU.

Importing this module imports no numba: listing backends reads it on machines that have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from nxcore.plugin import (
    FLOATS,
    YES,
    Backend,
    Check,
    Kernel,
    Verdict,
    hookimpl,
    no,
    simulated,
)
from nxcore_numba import accepts

IMAGES = (
    "max_pool2d",
    "max_pool2d_with_offsets",
    "max_pool2d_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "global_avg_pool2d",
    "global_max_pool2d",
    "global_max_pool2d_with_offsets",
    "global_max_pool2d_backward",
    "depthwise_conv2d",
    "depthwise_conv2d_backward",
    "sep_conv2d",
    "sep_conv2d_backward",
)
"""The operators on images."""

ROWS = ("entropy", "entropy_backward", "gumbel_softmax", "gumbel_softmax_backward")
"""The operators on short rows."""
NORMS = ("batch_norm", "batch_norm_backward")
BLOCKS = {
    "sep_conv2d_with_stats": accepts.accepts_with_stats,
    "sep_conv2d_batch_norm": accepts.accepts_block,
    "sep_conv2d_batch_norm_backward": accepts.accepts_block_backward,
}
"""What is made of the kernels of two operators: who answers for a call, from what answers for these."""
SINGLE = (torch.float32,)


def _found(distribution: str) -> str:
    """Return the installed version, or the empty string."""
    try:
        return version(distribution)  # not find_spec: any folder of that name would satisfy it
    except PackageNotFoundError:
        return ""


def probe() -> Verdict:
    """Answer for the machine: whether a fitting numba is installed."""
    if not (found := _found("numba")):
        return no("numba is not installed", hint="pip install nxcore-numba")
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
        return no("numba-cuda is not installed", hint="pip install 'nxcore-numba[cuda]'")
    return YES


Types = tuple[torch.dtype, ...]


def _cpu(op: str, verdict: Any, *, dtypes: Types = FLOATS, in_place_safe: bool = False) -> Kernel:
    target = f"nxcore_numba.{op}:plan"
    return Kernel(op, target, verdict, dtypes=dtypes, deterministic=True, in_place_safe=in_place_safe)


def _cuda(
    op: str, verdict: Any, *, dtypes: Types = accepts.CUDA_FLOATS, in_place_safe: bool = False
) -> Kernel:
    return Kernel(
        op,
        f"nxcore_numba.gpu.{op}:plan",
        verdict,
        probe_cuda,
        "cuda",
        dtypes,
        deterministic=True,
        in_place_safe=in_place_safe,
    )


KERNELS = (  # the gradients of sums and of global_avg_pool2d are views, and need none
    _cpu("softmax_sum", accepts.accepts_softmax_sum),
    _cpu("softmax_sum_backward", accepts.accepts_softmax_sum),
    _cpu("weighted_sum", accepts.accepts_softmax_sum),
    _cpu("weighted_sum_backward", accepts.accepts_softmax_sum),
    _cpu("add", accepts.accepts_add, in_place_safe=True),
    _cpu("add_backward", accepts.accepts_sum),
    _cpu("sum", accepts.accepts_sum),
    _cpu("sum_to_size", accepts.accepts_sum),
    *(_cpu(op, accepts.accepts_images) for op in IMAGES),
    *(_cpu(op, accepts.accepts_rows) for op in ROWS),
    *(_cpu(op, accepts.accepts_norm) for op in NORMS),
    *(
        _cpu(op, partial(block, accepts.accepts_images, accepts.accepts_norm), dtypes=SINGLE)
        for op, block in BLOCKS.items()
    ),
    _cuda("softmax_sum", accepts.accepts_softmax_sum_cuda),
    _cuda("softmax_sum_backward", accepts.accepts_softmax_sum_cuda),
    _cuda("weighted_sum", accepts.accepts_softmax_sum_cuda),
    _cuda("weighted_sum_backward", accepts.accepts_softmax_sum_cuda),
    _cuda("add", accepts.accepts_add_cuda, in_place_safe=True),
    _cuda("add_backward", accepts.accepts_sum_cuda),
    _cuda("sum", accepts.accepts_sum_cuda),
    _cuda("sum_to_size", accepts.accepts_sum_cuda),
    *(_cuda(op, accepts.accepts_images_cuda) for op in IMAGES),
    *(_cuda(op, accepts.accepts_rows_cuda) for op in ROWS),
    *(_cuda(op, accepts.accepts_norm_cuda) for op in NORMS),
    *(
        _cuda(op, partial(block, accepts.accepts_images_cuda, accepts.accepts_norm_cuda), dtypes=SINGLE)
        for op, block in BLOCKS.items()
    ),
)


@hookimpl
def nxcore_backend() -> Backend:
    """Hand over this backend."""
    return Backend("numba", probe, KERNELS, api=1)


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
