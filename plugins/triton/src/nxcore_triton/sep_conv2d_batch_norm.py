"""sep_conv2d_batch_norm: the kernels of sep_conv2d, then those of batch_norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nxcore.ops.sep_conv2d_batch_norm import planned
from nxcore.plugin import Problem
from nxcore_triton import batch_norm, sep_conv2d


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launches for one problem."""
    return planned(problem, sep_conv2d.plan, batch_norm.plan)
