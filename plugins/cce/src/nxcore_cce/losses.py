"""How the library's loss is called for the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem
from nxcore_cce import LIBRARY


def _loss(
    function: Callable[..., Tensor],
    input: Tensor,  # noqa: A002  torch's name
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: None,
    weight: None,
    reduction: str,
    ignore_index: int | None,
    label_smoothing: float,
) -> Tensor:
    ignored = -100 if ignore_index is None else ignore_index
    return function(input, linear_weight, target, ignore_index=ignored, reduction=reduction)


def plan(problem: Problem) -> Callable[..., Any]:
    """Plan ``linear_cross_entropy``."""
    return LIBRARY.plan(problem, "cut_cross_entropy:linear_cross_entropy", _loss)
