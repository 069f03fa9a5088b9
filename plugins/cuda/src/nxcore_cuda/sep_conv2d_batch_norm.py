"""sep_conv2d_batch_norm: sep_conv2d, whose blocks leave moments, and one kernel of batch_norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem
from nxcore_cuda import batch_norm, sep_conv2d
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.moments import shares_of
from nxcore_cuda.parts_forward import Part
from nxcore_cuda.planes_forward import Outputs
from nxcore_cuda.separable import Tile
from nxcore_cuda.strided_planes_forward import Lines


def plan(
    problem: Problem, tile: Tile | Outputs | Part | Lines | None = None
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the launches for one problem.

    It is called as ``call(x, dw_weight, pw_weight, stride, padding, dilation, relu, weight, bias, eps)``,
    which returns ``(out, y, mean, var)``.
    """
    (first, second), (out, between, statistic, _) = problem.parts, problem.outputs
    assert first is not None  # noqa: S101  both always run
    assert second is not None  # noqa: S101  likewise
    convolve, blocks = sep_conv2d.launched(first, tile, moments=True)
    finish, left = batch_norm.finish(second, blocks), shares_of(between.shape[1], blocks, problem.device)

    def call(
        x: Tensor,
        dw_weight: Tensor,
        pw_weight: Tensor,
        _stride: Any,
        _padding: Any,
        _dilation: Any,
        _relu: Any,
        weight: Tensor | None,
        bias: Tensor | None,
        _eps: float,
    ) -> tuple[Tensor, ...]:
        y, shares, result = between.empty(), left.empty(), out.empty()
        mean, var = statistic.empty(), statistic.empty()
        convolve(x, dw_weight, pw_weight, y, shares)
        finish(y, weight, bias, result, mean, var, shares)
        return result, y, mean, var

    return call


def sweep(problem: Problem) -> Iterator[Tile | Outputs | Part | Lines]:
    """Yield the tiles worth timing."""
    if (first := problem.parts[0]) is not None:
        yield from sep_conv2d.sweep(first)


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for window in sep_conv2d.WINDOWS:
        yield sep_conv2d.instance(torch.float32, window, moments=True)
    yield from batch_norm.finishing()
