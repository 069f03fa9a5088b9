"""The candidates of softmax_sum and weighted_sum as their kernels see them.

The answers of ``accepts`` are made of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta
from nxcore_cuda.layout import VECTOR

FEW = 16  # candidates whose weights fit in registers, each count with a kernel of its own
SOME = 64  # pointers of the kernels for any count and any layouts
MANY = 224  # the same, for one layout: kernels take 4 KiB of arguments on every driver
STACKED = 1024  # candidates behind one pointer: their weights and sums lie in shared memory

TYPES = {torch.float32: "float", torch.float16: "float16", torch.bfloat16: "bfloat16"}
KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # as in softmax.cuh
GIVEN = 4  # likewise: the numbers are the weights themselves


@dataclass(frozen=True)
class Candidates:
    """The candidates ``xs``: a list of tensors, or one stack.

    Attributes
    ----------
    each : tuple of TensorMeta
        The candidates, or one of them if ``xs`` is stacked.
    step : int
        From one candidate to the next in a stack, else 0.
    """

    each: tuple[TensorMeta, ...]
    count: int
    step: int

    @classmethod
    def of(cls, xs: TensorMeta | tuple[TensorMeta, ...]) -> Candidates:
        """Describe the argument ``xs``."""
        if isinstance(xs, TensorMeta):
            return cls((part(xs),), xs.shape[0], xs.strides[0])
        return cls(xs, len(xs), 0)

    @property
    def stacked(self) -> bool:
        """Whether one pointer leads to all."""
        return len(self.each) < self.count

    @property
    def layouts(self) -> tuple[TensorMeta, ...]:
        """One candidate of each layout there is: one, or all in order where they differ."""
        first = self.each[0]
        same = all(x.strides_of_extent == first.strides_of_extent for x in self.each)
        return (first,) if same else self.each

    @property
    def room(self) -> tuple[int, int]:
        """How many pointers and how many layouts the arguments of its kernels have room for."""
        layouts = len(self.layouts)
        if self.count <= FEW:
            return FEW, 1 if layouts == 1 else FEW
        if self.stacked:
            return 1, 1
        return (MANY, 1) if layouts == 1 else (SOME, SOME)


def factors(problem: Problem) -> tuple[TensorMeta, int]:
    """Return the logits or the weights, and their kind."""
    if problem.op.startswith("weighted_sum"):
        weights = problem["weights"]
        return weights, KINDS[weights.dtype] + GIVEN
    logits = problem["logits"]
    return logits, KINDS[logits.dtype]


def part(stacked: TensorMeta) -> TensorMeta:
    """Return one tensor of a stack."""
    return TensorMeta(stacked.shape[1:], stacked.strides[1:], stacked.dtype, stacked.device)


def wanted(problem: Problem) -> tuple[bool, bool]:
    """Return whether any candidate's gradient is requested, and whether the logits' is."""
    mask = problem["output_mask"]
    return (True, True) if mask is None else (any(mask[:-1]), bool(mask[-1]))


def gradient(problem: Problem) -> tuple[TensorMeta, int]:
    """Return the gradient of one candidate, and the step from one to the next if stacked.

    If no candidate's is requested, return a dense tensor of its shape, which gives the order of memory.
    """
    xs_grad, _ = problem.outputs
    if isinstance(xs_grad, TensorMeta):
        return part(xs_grad), xs_grad.strides[0]
    for meta in xs_grad or ():
        if meta is not None:
            return meta, 0
    one = Candidates.of(problem["xs"]).each[0]
    for meta in (problem["grad"], one):
        if meta.is_dense():
            return meta, 0
    return TensorMeta.row_major(one.shape, one.dtype, one.device), 0


def by_alignment(guarded: Any, vector: Any, scalar: Any) -> Callable[..., None]:
    """Return ``launch(logits, *tensors)``, which picks a kernel by where all tensors but the logits lie.

    The logits are read one by one, and often are a row of a matrix of odd width.
    """

    def launch(logits: Tensor, *tensors: Tensor | None) -> None:
        if vector is None or logits.data_ptr() % VECTOR == 0:
            guarded(*tensors)
        elif any(t is not None and t is not logits and t.data_ptr() % VECTOR for t in tensors):
            scalar(*tensors)
        else:
            vector(*tensors)

    return launch
