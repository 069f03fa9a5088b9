"""sep_conv2d_batch_norm: the kernels of sep_conv2d, then those of batch_norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nxcore.ops.sep_conv2d_batch_norm import planned
from nxcore.plugin import Problem
from nxcore_cuda import batch_norm, sep_conv2d
from nxcore_cuda.instance import Instance


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launches for one problem."""
    return planned(problem, sep_conv2d.plan, batch_norm.plan)


def instances() -> Iterator[Instance]:
    """Yield none: the operators that it is made of yield theirs."""
    yield from ()
