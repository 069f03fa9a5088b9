"""JAX kernels for nxcore, for comparison: sums, blends, pools and expressions, compiled by XLA.

Importing this module doesn't import jax; each kernel's own file does, on first use.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from nxcore.plugin import (
    FLOATS,
    YES,
    Backend,
    Check,
    Code,
    Problem,
    TensorMeta,
    Verdict,
    at_most,
    fits,
    hookimpl,
    kernels,
    needs,
    no,
)
from nxcore_jax.layout import Packed, repeats
from nxcore_jax.reductions import summed_gradients

API = 1
JAX = (0, 10)
ON_REQUEST = "JAX has a runtime of its own, and compiling a problem takes a tenth of a second"
ON_CUDA = ("jax-cuda13-plugin", "jax-cuda12-plugin")


def _installed(name: str) -> str | None:
    try:
        return version(name)  # not find_spec: any folder of that name would satisfy it
    except PackageNotFoundError:
        return None


def probe() -> Verdict:
    """Return whether JAX is installed; it can always compute on the CPU."""
    found, needed = _installed("jax"), ".".join(map(str, JAX))
    if found is None:
        return no("jax is not installed", hint=f"pip install 'jax>={needed}'")
    release = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if release < JAX:
        return no(f"needs jax >= {needed}, found {found}", hint=f"pip install 'jax>={needed}'")
    return YES


def cuda() -> Verdict:
    """Return whether JAX can use CUDA, without initialising JAX, which would reserve the device."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return no(f"JAX_PLATFORMS={platforms} excludes CUDA", hint="unset JAX_PLATFORMS")
    if not any(_installed(name) for name in ON_CUDA):
        names = " nor ".join(ON_CUDA)
        return no(
            f"needs JAX's CUDA plugin, but neither {names} is installed", hint="pip install 'jax[cuda13]'"
        )
    return YES


@functools.cache
def _for_cuda() -> Verdict:
    return cuda()


def _place(problem: Problem) -> Verdict:
    """Take tensors of one device that JAX has a runtime for."""
    for meta in problem.tensors:
        if meta.device != problem.device:
            why = f"needs tensors on one device, got {problem.device} and {meta.device}"
            return no(why, code=Code.DEVICE)
    if problem.device.type not in ("cpu", "cuda"):
        return no(f"needs CPU or CUDA tensors, got {problem.device}", code=Code.DEVICE)
    return YES if problem.device.type == "cpu" else replace(_for_cuda(), code=Code.MACHINE)


def _packed(problem: Problem) -> Verdict:
    """Take tensors whose memory DLPack can hand over, and results that XLA can lay out."""
    for meta in problem.tensors:
        if Packed.of(meta) is None:
            why = f"needs dense memory or repeated elements, got strides {meta.strides}"
            return no(why, code=Code.LAYOUT)
    if problem.writes:
        return no("can't write into out: returns a new tensor", code=Code.ARGUMENT)
    for meta in _metas(summed_gradients(problem) if problem.op == "add_backward" else problem.outputs):
        if repeats(meta) or Packed.of(meta) is None:
            return no(f"needs an output without gaps, got strides {meta.strides}", code=Code.LAYOUT)
    return YES


def _metas(outputs: Any) -> Iterator[TensorMeta]:
    if isinstance(outputs, TensorMeta):
        yield outputs
    elif isinstance(outputs, tuple):
        for item in outputs:
            yield from _metas(item)


def _real(problem: Problem) -> Verdict:
    if problem["y"] is complex:
        why = "needs a tensor or a real number for y, got a number (complex)"
        return no(why, code=Code.ARGUMENT)
    return YES


def _indices(problem: Problem) -> int:
    """Return the elements of a plane whose indices, computed in int32, are requested."""
    x = problem["x"]
    return x.shape[-1] * x.shape[-2] if problem["return_indices"] else 0


accepts = needs(_place, _packed, integers=("offsets",))
add = needs(_place, _real, _packed, alike_numbers=True)
pool = needs(at_most(2**31 - 1, "elements of a plane for their indices", _indices), _place, _packed)

TARGETS = {
    "add_backward": "add:plan_backward",
    "sum_to_size": "sum:plan",
    "mean": "sum:plan",
    "global_avg_pool2d": "sum:plan",
    "weighted_sum": "softmax_sum:plan_weighted",
    "weighted_sum_backward": "softmax_sum:plan_weighted_backward",
    "softmax_sum_backward": "softmax_sum:plan_backward",
    "avg_pool2d_backward": "avg_pool2d:plan_backward",
    "max_pool2d_backward": "max_pool2d:plan_backward",
    "global_max_pool2d_backward": "global_max_pool2d:plan_backward",
    "max_pool2d_with_offsets": "max_pool2d:plan_with_offsets",
    "global_max_pool2d_with_offsets": "global_max_pool2d:plan_with_offsets",
}
"""Where the planner is, of operators that have no file of their own."""

# Not graph_safe: JAX launches on streams of its own.
KERNELS = kernels(
    "nxcore_jax",
    {
        **dict.fromkeys(("softmax_sum", "sum", "avg_pool2d", "global_max_pool2d"), accepts),
        **{op: {"accepts": accepts, "target": target} for op, target in TARGETS.items()},
        "add": add,
        "max_pool2d": pool,
    },
    dtypes=FLOATS,
    deterministic=True,
)


PRINTERS = kernels(
    "nxcore_jax",
    {"pointwise": needs(_place, fits(FLOATS, 64), _packed, dtypes=(*FLOATS, torch.bool))},
    dtypes=FLOATS,
    deterministic=True,
)


@hookimpl
def nxcore_backend() -> Backend:
    """Return this backend."""
    return Backend("jax", probe, KERNELS, api=API, on_request=ON_REQUEST, printers=PRINTERS)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Return a check of JAX: its version, and whether it can use CUDA."""
    toolkit = probe()
    yield Check("jax", toolkit.ok, _installed("jax") or "not installed", toolkit.hint)
    if toolkit and torch.cuda.is_available():
        found = cuda()
        plugin = next((f"{name} {_installed(name)}" for name in ON_CUDA if _installed(name)), "")
        yield Check(
            "jax CUDA", True, plugin if found else found.reason, found.hint
        )  # to have none is no fault
