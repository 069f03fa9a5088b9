"""max_pool2d_with_offsets: the kernels of max_pool2d, which write the largest tap's number too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem
from nxcore_cuda import max_pool2d
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.instance import Instance
from nxcore_cuda.max_pool2d import PLACES, choose, sweep
from nxcore_cuda.pool import Tile

__all__ = ["choose", "instances", "plan", "sweep"]


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(x, kernel_size, stride, padding, dilation, ceil_mode)``.
    """
    run = max_pool2d.launch_of(problem, tile)
    out, offsets = problem.outputs

    def call(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        results = out.empty(), offsets.empty()
        run(x, *results)
        return results

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels that ordinary calls want."""
    yield from max_pool2d.usual(torch.uint8)
    for dtype in FLOATS:
        yield Instance("max_pool2d_window", (TYPES[dtype], PLACES[torch.int32]), source="max_pool2d")
