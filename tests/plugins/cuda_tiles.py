"""Kernels of CUDA C++ with a tile of the test's: planned, and compared with float64."""

import importlib
from typing import Any

import torch

import nxcore.ops
from nxcore.spec.problem import Problem
from nxcore.trust.truth import agreement

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}


def planner(op: str) -> Any:
    """Return the module of an operator's planner."""
    return importlib.import_module(f"nxcore_cuda.{op}")


def tiles_of(op: str, args: tuple[Any, ...], kind: type) -> list[Any]:
    """Return the tiles of one kind for a call; none where their kernels don't take it."""
    return [tile for tile in planner(op).sweep(Problem.of(SPECS[op], args)) if isinstance(tile, kind)]


def judge(op: str, args: tuple[Any, ...], tile: Any = None) -> None:
    """Run an operator and compare it with float64."""
    found = agreement(planner(op).plan(Problem.of(SPECS[op], args), tile), SPECS[op], args)
    assert found.ok, (tile, found.reason)


def begun_elsewhere(args: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return the arguments with the first ``count``, tensors, at addresses that no vector begins at."""
    moved = (torch.empty(x.numel() + 1, device=DEVICE)[1:].view(x.shape).copy_(x) for x in args[:count])
    return (*moved, *args[count:])
