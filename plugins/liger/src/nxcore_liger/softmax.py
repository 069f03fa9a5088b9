"""How the library's softmax is called: by the function that returns the result with how it was launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem
from nxcore_liger import LIBRARY


def _softmax(function: Callable[..., Any], x: Tensor, dim: int, dtype: Any) -> Any:
    return function(x)[0]


def plan(problem: Problem) -> Callable[..., Any]:
    """Plan ``softmax``."""
    return LIBRARY.plan(problem, "liger_kernel.ops.softmax:_softmax_forward", _softmax)
