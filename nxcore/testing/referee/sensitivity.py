"""The truth of a plain function: its float64 result, and how far a right result may be from it.

A spec says how large the terms of its sums are; a plain function doesn't. So the scale S of an output is
measured: S = sum of |dy/dx| |x| over all inputs x, by which much a relative error in every input may move it.
With inputs x (1 + h c), where h is small and c has a Cauchy distribution, (y - y') / h has one too, whose
median is S; the median of a few draws is taken. Steps within the function, as the logarithm of a sum, may be
larger than their results: S is at least what the function loses in float32, the most of each row, and what
float64 may lose of a row's largest result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.spec.problem import leaves
from nxcore.trust.memory import each
from nxcore.trust.truth import ACCUMULATOR, ROUNDOFF, Truth, widened


def truth_of(reference: Callable[..., Any], args: tuple[Any, ...], generator: torch.Generator) -> Truth:
    """Return the truth of ``reference(*args)``.

    Raises
    ------
    InvalidInputError
        If the reference doesn't compute in the dtype of its inputs, so that float64 gives no truth.
    """
    draws_of, step = 31, 2.0**-33  # the moved inputs are near, and their rounding in float64 is far below
    wide, single = widened(args), each(widened(args, half=True), _single)

    def run(given: Any) -> tuple[Tensor, ...]:
        return tuple(leaves(reference(*each(given, torch.clone))))

    with torch.no_grad():
        native, exact, lost = run(args), run(wide), run(single)
    for y, like in zip(exact, native, strict=True):
        if like.dtype.is_floating_point and y.dtype is not torch.float64:
            raise InvalidInputError(
                f"reference must compute in the dtype of its inputs: float64 inputs gave {y.dtype}",
                argument="operator_or_reference",
            )
    draws = [[] for _ in exact]  # type: list[list[Tensor]]
    with torch.no_grad():
        for _ in range(draws_of):
            moved = run(each(wide, lambda t: _moved(t, step, generator)))
            for found, y, was in zip(draws, moved, exact, strict=True):
                found.append((y.double() - was.double()).abs().div_(step))
    scale = []
    for found, y, was in zip(draws, lost, exact, strict=True):
        gone = (y.double() - was.double()).abs().nan_to_num(0, 0, 0) / ACCUMULATOR
        gone += was.double().abs().nan_to_num(0, 0, 0) * (ROUNDOFF[torch.float64] / ACCUMULATOR)
        row = gone.amax(-1, keepdim=True) if gone.ndim > 1 and gone.numel() else gone
        median = torch.stack(found).median(0).values.nan_to_num(0, 0, 0)
        scale.append(torch.maximum(median, row.expand_as(median)))
    return Truth(exact, native, tuple(scale), _terms(reference, wide), bitwise=False)


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _moved(tensor: Tensor, step: float, generator: torch.Generator) -> Tensor:
    """Return x (1 + h c); infinities and NaN stay."""
    if not tensor.is_floating_point():
        return tensor
    c = torch.empty(tensor.shape, dtype=torch.float64).cauchy_(generator=generator).to(tensor.device)
    return torch.where(tensor.isfinite(), tensor * (1 + step * c.clamp(-1 / step, 1 / step)), tensor)


def _terms(reference: Callable[..., Any], wide: tuple[Any, ...]) -> int:
    """Return how many numbers of the inputs an output depends on: the most of its first, middle and last.

    The numbers of the largest input, if the function can't be differentiated.
    """
    copies = each(wide, lambda t: t.detach().clone().requires_grad_(t.is_floating_point()))
    xs = [t for t in leaves(copies) if t.requires_grad]
    found, most = 0, max((t.numel() for t in xs), default=1)
    try:
        with torch.enable_grad():
            results = [y for y in leaves(reference(*copies)) if y.requires_grad and y.numel()]
        for y in results:
            for at in {0, y.numel() // 2, y.numel() - 1}:
                grads = torch.autograd.grad(y.reshape(-1)[at], xs, retain_graph=True, allow_unused=True)
                found = max(found, sum(int(g.count_nonzero()) for g in grads if g is not None))
    except (RuntimeError, NotImplementedError):
        return max(most, 1)
    return max(found if results else most, 1)
