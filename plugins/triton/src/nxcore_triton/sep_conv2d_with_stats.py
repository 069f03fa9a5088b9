"""sep_conv2d_with_stats: the kernel of sep_conv2d, and torch's mean and variance of what it made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nxcore.ops.sep_conv2d_with_stats import planned
from nxcore.plugin import Problem
from nxcore_triton import sep_conv2d


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launches for one problem."""
    return planned(problem, sep_conv2d.plan)
