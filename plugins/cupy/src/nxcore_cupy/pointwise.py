"""expressions: what nxcore-cuda prints, with launches of CuPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nxcore_cuda import pointwise

from nxcore.plugin import Problem, hosted
from nxcore_cupy import HOST


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launch for one problem."""
    with hosted(HOST):
        return pointwise.plan(problem)


def source(problem: Problem) -> str:
    """Return the code for one problem."""
    return pointwise.source(problem)
