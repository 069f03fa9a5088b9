"""sep_conv2d_with_stats: sep_conv2d, whose blocks leave moments of what they make; a launch joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.sep_conv2d_with_stats import part
from nxcore.plugin import Problem
from nxcore_cuda import sep_conv2d, separable
from nxcore_cuda.instance import Instance
from nxcore_cuda.launch import Launch
from nxcore_cuda.moments import shares_of

STATISTICS = Instance("sep_conv2d_statistics", source=sep_conv2d.SOURCE)


def plan(problem: Problem, tile: separable.Tile | None = None) -> Callable[..., tuple[Tensor, ...]]:
    """Return the launches for one problem.

    Returns
    -------
    callable
        ``call(x, dw_weight, pw_weight, stride, padding, dilation, relu)``, which returns ``(y, mean, var)``.
    """
    made, statistic, _ = problem.outputs
    channels, device = made.shape[1], problem.device
    convolve, blocks = sep_conv2d.launched(part(problem), tile, moments=True)
    left = shares_of(channels, blocks, device)
    put_together = Launch(
        STATISTICS,
        device,
        channels,
        pointers=3,
        layout="qi",
        values=(made.numel() // channels, blocks),
    )

    def call(x: Tensor, dw_weight: Tensor, pw_weight: Tensor, *_: Any) -> tuple[Tensor, ...]:
        y, shares, mean, var = made.empty(), left.empty(), statistic.empty(), statistic.empty()
        convolve(x, dw_weight, pw_weight, y, shares)
        put_together(shares, mean, var)
        return y, mean, var

    return call


def sweep(problem: Problem) -> Iterator[separable.Tile]:
    """Yield the tiles worth timing."""
    yield from sep_conv2d.sweep(part(problem))


def instances() -> Iterator[Instance]:
    """Yield what ordinary calls want."""
    yield STATISTICS
    for window in sep_conv2d.WINDOWS:
        yield sep_conv2d.instance(torch.float32, window, moments=True)
