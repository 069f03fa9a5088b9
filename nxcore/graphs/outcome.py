"""Outcome: the result of a call, its gradients and its time, compared with those of another way to run it."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nxcore.errors import CaptureError
from nxcore.graphs.recorder import Recorder
from nxcore.interop.internals import gradients

AGREES = 1e-2
"""The allowed relative difference, since runs may add in another order."""

ROUGH = 0.1
"""The allowed difference from torch's own result: by default its convolutions may have factors of 11 bits."""

ROUNDS = 7
"""The number of pairs of a run and a replay, by which the speed is compared."""

CLEAR = {1: 4.0, 2: 1.5}
"""Number of pairs -> the ratio of speeds that is clear if each of so many shows it."""

Outcome = tuple[Tensor, Sequence[Tensor | None]]
"""A result and its gradients."""


def differentiated(out: Tensor, held: Sequence[Tensor], grad: Tensor) -> Outcome:
    """Return a result and its gradients."""
    wanted = [t for t in held if t.requires_grad]
    return out.detach(), gradients([out], wanted, [grad])


def wave(out: Tensor) -> Tensor:
    """Return a gradient for ``out``: neither constant, as that of a norm would be 0, nor random."""
    values = torch.arange(1, out.numel() + 1, device=out.device).mul(0.7).sin().to(out.dtype)
    return torch.empty_like(out, requires_grad=False).copy_(values.view(out.shape))


def check(what: str, found: Outcome, ran: Outcome, most: float = AGREES) -> None:
    """Raise if an outcome's relative difference from a run with the same values is larger than ``most``."""
    apart = [off([found[0]], [ran[0]]), off(found[1], ran[1])]
    if not max(apart) <= most:
        each = f"{apart[0]:.2g} of the result and {apart[1]:.2g} of the gradients"
        raise CaptureError(f"{what} differs from the first, by {each}")


def off(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> float:
    """Return the relative norm of all differences; nan if a tensor is missing."""
    if [f is None for f in found] != [w is None for w in wanted]:
        return math.nan
    pairs = [
        (f.double(), w.double())
        for f, w in zip(found, wanted, strict=True)
        if f is not None and w is not None
    ]
    if not pairs:
        return 0.0
    norms = torch._foreach_norm([*(f - w for f, w in pairs), *(w for _, w in pairs)])
    apart, size = torch.stack(norms).view(2, -1).norm(dim=1).tolist()  # the host waits once
    return float(apart / (size or 1.0))


def compared(recorder: Recorder, *works: Callable[[], object]) -> list[float]:
    """Return the median times of two works in turns, in ms; few turns are enough where they are far apart."""
    times: list[list[float]] = []
    while len(times) < ROUNDS:
        times.append([recorder.seconds(functools.partial(recorder.aside, once)) for once in works])
        clear = CLEAR.get(len(times), math.inf)
        if all(first > clear * second for first, second in times):
            break
    return [1e3 * statistics.median(t) for t in zip(*times, strict=True)]
