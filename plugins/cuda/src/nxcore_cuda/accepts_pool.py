"""Which calls of the pools the kernels take. Imports no toolkit."""

from __future__ import annotations

import dataclasses
import math

import torch

from nxcore.plugin import YES, Problem, TensorMeta, Verdict, no
from nxcore_cuda.accepts import tensors
from nxcore_cuda.layout import NARROW


def _images(*metas: TensorMeta) -> Verdict:
    """Refuse images whose elements 31 bits can't number."""
    for meta in metas:
        size = math.prod(meta.shape[-3:])
        if size >= NARROW:
            return no(f"takes images of fewer than 2^31 elements, got {size} in {meta.shape}")
    return YES


def accepts_max_pool2d(problem: Problem) -> Verdict:
    """Take any window on images of any layout."""
    if not (found := tensors(problem)):
        return found
    out = problem.outputs
    return _images(problem["x"], *(out if isinstance(out, tuple) else (out,)))


def accepts_global_pool2d(problem: Problem) -> Verdict:
    """Take images of any layout and size."""
    return tensors(problem)


accepts_max_pool2d_with_offsets = accepts_avg_pool2d = accepts_max_pool2d


def accepts_avg_pool2d_backward(problem: Problem) -> Verdict:
    """Take any window and a gradient of any layout."""
    if not (found := tensors(problem)):
        return found
    return _images(problem["grad"], problem.outputs)


def accepts_max_pool2d_backward(problem: Problem) -> Verdict:
    """Take any window, and a gradient and offsets of any layouts."""
    taps = problem["offsets"]
    if taps.dtype not in (torch.uint8, torch.int32):
        return no(f"needs uint8 or int32 offsets, got {str(taps.dtype).removeprefix('torch.')}")
    floating = tuple(None if arg is taps else arg for arg in problem.args)
    if not (found := tensors(dataclasses.replace(problem, args=floating))):
        return found
    if taps.device != problem.device:
        return no(f"needs offsets on the device of grad, {problem.device}, got {taps.device}")
    return _images(problem["grad"], problem.outputs)
