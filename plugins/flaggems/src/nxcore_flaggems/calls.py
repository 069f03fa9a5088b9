"""Planners: how each of FlagGems' functions is called for an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem
from nxcore_flaggems import LIBRARY

Plan = Callable[..., Any]


def _axes(function: Plan, x: Tensor, dim: int, keepdim: bool) -> Any:
    return function(x, [dim], keepdim)


def _axis(function: Plan, x: Tensor, dim: int, keepdim: bool) -> Any:
    return function(x, dim, keepdim)


def _scan(function: Plan, x: Tensor, dim: int, dtype: Any) -> Any:
    return function(x, dim, dtype=dtype)


def cumsum(problem: Problem) -> Plan:
    """Plan ``cumsum``."""
    return LIBRARY.plan(problem, "flag_gems.ops.cumsum:cumsum", _scan)


def _rows(function: Plan, x: Tensor, dim: int, dtype: Any) -> Any:
    return function(x, dim)


def softmax(problem: Problem) -> Plan:
    """Plan ``softmax``."""
    return LIBRARY.plan(problem, "flag_gems.ops.softmax:softmax", _rows)


def log_softmax(problem: Problem) -> Plan:
    """Plan ``log_softmax``."""
    return LIBRARY.plan(problem, "flag_gems.ops.log_softmax:log_softmax", _rows)


def sum(problem: Problem) -> Plan:
    """Plan ``sum_dim``."""
    return LIBRARY.plan(problem, "flag_gems.ops.sum:sum_dim", _axes)


def mean(problem: Problem) -> Plan:
    """Plan ``mean_dim``."""
    return LIBRARY.plan(problem, "flag_gems.ops.mean:mean_dim", _axes)


def amax(problem: Problem) -> Plan:
    """Plan ``amax``."""
    return LIBRARY.plan(problem, "flag_gems.ops.amax:amax", _axis)


def argmax(problem: Problem) -> Plan:
    """Plan ``argmax``."""
    return LIBRARY.plan(problem, "flag_gems.ops.argmax:argmax", _axis)
