"""sep_conv2d_with_stats: the kernel of sep_conv2d, and torch's mean and variance of what it made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nxcore.ops.sep_conv2d_with_stats import planned
from nxcore.plugin import Problem
from nxcore_cuda import sep_conv2d
from nxcore_cuda.instance import Instance


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launches for one problem."""
    return planned(problem, sep_conv2d.plan)


def instances() -> Iterator[Instance]:
    """Yield none: the operators that it is made of yield theirs."""
    yield from ()
