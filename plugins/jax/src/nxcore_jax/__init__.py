"""JAX kernels for nxcore, for comparison: what XLA makes of each operator.

Importing this module doesn't import jax; each kernel's own file does, on first use.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from nxcore.plugin import (
    FLOATS,
    YES,
    Backend,
    Check,
    Kernel,
    Problem,
    TensorMeta,
    Verdict,
    hookimpl,
    no,
)
from nxcore_jax.layout import Packed, repeats
from nxcore_jax.reductions import summed_gradients

API = 1
JAX = (0, 10)
ON_REQUEST = "JAX is a runtime of its own beside torch's, and compiling a problem takes a tenth of a second"
ON_CUDA = ("jax-cuda13-plugin", "jax-cuda12-plugin")
SINGLE = (torch.float32,)
OTHERS = (torch.uint8, torch.int32)  # of the offsets of a pool


def _installed(name: str) -> str | None:
    try:
        return version(name)  # not find_spec: any folder of that name would satisfy it
    except PackageNotFoundError:
        return None


def probe() -> Verdict:
    """Answer whether JAX is installed; it can always compute on the CPU."""
    found, needed = _installed("jax"), ".".join(map(str, JAX))
    if found is None:
        return no("jax is not installed", hint=f"pip install 'jax>={needed}'")
    release = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if release < JAX:
        return no(f"needs jax >= {needed}, found {found}", hint=f"pip install 'jax>={needed}'")
    return YES


def cuda() -> Verdict:
    """Answer whether JAX has what it needs for CUDA, without asking it: that would take the device."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return no(f"JAX_PLATFORMS={platforms} leaves CUDA out", hint="unset JAX_PLATFORMS")
    if not any(_installed(name) for name in ON_CUDA):
        names = " nor ".join(ON_CUDA)
        return no(
            f"needs JAX's plugin for CUDA, and neither {names} is installed", hint="pip install 'jax[cuda13]'"
        )
    return YES


@functools.cache
def _for_cuda() -> Verdict:
    return cuda()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _metas(outputs: Any) -> Iterator[TensorMeta]:
    if isinstance(outputs, TensorMeta):
        yield outputs
    elif isinstance(outputs, tuple):
        for item in outputs:
            yield from _metas(item)


def accepts(problem: Problem) -> Verdict:
    """Take floating tensors whose memory DLPack can hand over."""
    for meta in problem.tensors:
        if meta.device != problem.device:
            return no(f"needs tensors on one device, got {problem.device} and {meta.device}")
        if meta.dtype not in FLOATS + OTHERS:
            return no(f"needs float32, float16 or bfloat16, got {_name(meta.dtype)}")
        if Packed.of(meta) is None:
            return no(f"needs elements that fill their memory, or repeat, got strides {meta.strides}")
    if problem.device.type == "cuda" and not (found := _for_cuda()):
        return found
    if problem.device.type not in ("cpu", "cuda"):
        return no(f"needs CPU or CUDA tensors, got {problem.device}")
    if problem.writes:
        return no("returns a tensor of its own, and out was given")
    outputs = list(_metas(summed_gradients(problem) if problem.op == "add_backward" else problem.outputs))
    for meta in outputs:
        if repeats(meta) or Packed.of(meta) is None:
            return no(f"needs an output without gaps, got strides {meta.strides}")
    return YES


def accepts_add(problem: Problem) -> Verdict:
    """Take two tensors, or a tensor and a real number."""
    x, y = problem["x"], problem["y"]
    if y is complex:
        return no("needs a tensor or a real number for y, got a number (complex)")
    if isinstance(y, TensorMeta) and x.dtype != y.dtype and 0 in (x.ndim, y.ndim):
        return no(f"needs a 0-d operand of the other's dtype, got {_name(x.dtype)} and {_name(y.dtype)}")
    return accepts(problem)


def accepts_max_pool2d(problem: Problem) -> Verdict:
    """Take images; indices, where asked for, are computed in int32."""
    x = problem["x"]
    if problem["return_indices"] and x.shape[-1] * x.shape[-2] >= 1 << 31:
        return no(f"needs planes of fewer than 2^31 elements for their indices, got shape {x.shape}")
    return accepts(problem)


def accepts_gumbel_softmax_backward(problem: Problem) -> Verdict:
    """Take calls that ask for the gradient of the logits alone."""
    if any((problem["output_mask"] or ())[1:]):
        return no("computes the gradient of the logits alone, and output_mask asks for more")
    return accepts(problem)


def _kernel(
    op: str,
    accept: Any = accepts,
    *,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
    deterministic: bool = True,
) -> Kernel:
    return Kernel(op, f"nxcore_jax.{op}:plan", accept, dtypes=dtypes, deterministic=deterministic)


# Not graph_safe: JAX launches on streams of its own.
KERNELS = (
    _kernel("softmax_sum"),
    _kernel("softmax_sum_backward"),
    _kernel("weighted_sum"),
    _kernel("weighted_sum_backward"),
    _kernel("add", accepts_add),
    _kernel("add_backward"),
    _kernel("sum"),
    _kernel("sum_to_size"),
    _kernel("max_pool2d", accepts_max_pool2d),
    _kernel("max_pool2d_with_offsets"),
    _kernel("max_pool2d_backward"),
    _kernel("avg_pool2d"),
    _kernel("avg_pool2d_backward"),
    _kernel("global_avg_pool2d"),
    _kernel("global_max_pool2d"),
    _kernel("global_max_pool2d_with_offsets"),
    _kernel("global_max_pool2d_backward"),
    _kernel("batch_norm"),
    _kernel("batch_norm_backward"),
    _kernel("depthwise_conv2d"),
    _kernel("depthwise_conv2d_backward", deterministic=False),  # cuDNN may add up by atomics
    _kernel("sep_conv2d"),
    _kernel("sep_conv2d_backward", deterministic=False),  # likewise
    _kernel("sep_conv2d_with_stats", dtypes=SINGLE),
    _kernel("sep_conv2d_batch_norm", dtypes=SINGLE),
    _kernel("sep_conv2d_batch_norm_backward", dtypes=SINGLE, deterministic=False),  # likewise
    _kernel("entropy"),
    _kernel("entropy_backward"),
    _kernel("gumbel_softmax"),
    _kernel("gumbel_softmax_backward", accepts_gumbel_softmax_backward),
)


@hookimpl
def nxcore_backend() -> Backend:
    """Hand over this backend."""
    return Backend("jax", probe, KERNELS, api=API, on_request=ON_REQUEST)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Show JAX's version, and whether it can use CUDA."""
    toolkit = probe()
    yield Check("jax", toolkit.ok, _installed("jax") or "not installed", toolkit.hint)
    if toolkit and torch.cuda.is_available():
        found = cuda()
        plugin = next((f"{name} {_installed(name)}" for name in ON_CUDA if _installed(name)), "")
        yield Check(
            "jax CUDA", True, plugin if found else found.reason, found.hint
        )  # to have none is no fault
