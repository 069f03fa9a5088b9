"""sep_conv2d_batch_norm_backward: the kernels of batch_norm_backward, then those of sep_conv2d_backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nxcore.ops.sep_conv2d_batch_norm_backward import planned
from nxcore.plugin import Problem
from nxcore_triton import batch_norm_backward, sep_conv2d_backward


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launches for one problem."""
    return planned(problem, batch_norm_backward.plan, sep_conv2d_backward.plan)
