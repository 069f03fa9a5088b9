"""Sums: results that depend on more than 16 MB, which are held against random blocks of the arguments.

A spec's ways say how the results of parts make up the call's. A sum or mean must be near what some blocks
say, an extreme must be none that a block exceeds. A suspect, and the first call, is compared with torch's
own result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.problem import leaves
from nxcore.spec.spec import OpSpec, Way
from nxcore.trust.rows import DEPENDENCE, PART, cut, length
from nxcore.trust.suspicion import CLEAR
from nxcore.trust.truth import ACCUMULATOR, ROUNDOFF, widened

BLOCKS = 8
"""Blocks of which a sum is estimated; with fewer, their spread says too little."""

SPREAD = 12.0
"""Standard errors of an estimate beyond which a sum is suspect: blocks needn't be alike."""


@dataclass(frozen=True)
class Sums:
    """Blocks of a call, of one length (``long``), along a ``way`` whose dimension has a ``size``."""

    way: Way
    size: int
    long: int
    starts: tuple[int, ...]

    def of(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return copies of the blocks of the arguments, side by side."""
        return cut(args, [(self.way, tuple((start, self.long) for start in self.starts))])

    def strays(self, spec: OpSpec, parts: tuple[Any, ...], result: Any, native: Any = None) -> Tensor:
        """Return a tensor of one bool: whether a result is suspect by blocks or ``native``, torch's."""
        wide = widened(parts)
        blocks = [cut(wide, [(self.way, ((i * self.long, self.long),))]) for i in range(BLOCKS)]
        rights, scales = (
            [torch.stack(t).double() for t in zip(*(leaves(of(*block)) for block in blocks), strict=True)]
            for of in (spec.reference, spec.magnitude)
        )
        natives = leaves(native) if native is not None else (None,) * len(rights)
        each = zip(leaves(result), rights, scales, natives, strict=True)
        return torch.stack([self._odd(spec, *of_one) for of_one in each]).any()

    def _odd(self, spec: OpSpec, y: Tensor, t: Tensor, s: Tensor, native: Any) -> Any:
        if native is not None and spec.exact:
            return ((y != native) & ~(y.isnan() & native.isnan())).any()
        if (exceeds := EXCEEDS.get(self.way.joins)) is not None:
            return exceeds(t, y.double()).any()
        times = self.size / self.long if self.way.joins == "sum" else 1.0
        right, scale, spread = times * t.mean(0), times * s.mean(0), t.std(0) * (times * SPREAD / BLOCKS**0.5)
        if native is not None:
            right, spread = native.double(), spread * 0
        near = (y.double() - right).abs() <= spread + CLEAR * _bound(y, right, scale, self.size)
        return (right.isfinite() & ~near).any()


def _bound(y: Tensor, right: Tensor, scale: Tensor, terms: int) -> Any:
    """Return the distance that an audit allows; see ``distance``."""
    info = torch.finfo(y.dtype)
    quantum = info.smallest_normal * info.eps + terms * torch.finfo(torch.float32).smallest_normal
    return 8 * (right.abs() * ROUNDOFF[y.dtype] + scale.abs() * ACCUMULATOR * terms**0.5) + 2 * quantum


EXCEEDS = {"max": torch.gt, "min": torch.lt}


def sums(spec: OpSpec, args: tuple[Any, ...], dice: Callable[[int], int]) -> Sums | None:
    """Choose blocks of a call whose results parts make up; None if there are no such parts."""
    tensors = list(leaves(args))
    ways = [way for way in spec.ways(*args) if way.joins]
    if not ways or not (tensors[0].dtype.is_floating_point or spec.exact):
        return None
    way = max(ways, key=lambda way: length(way, tensors))
    size, nbytes = length(way, tensors), sum(t.nbytes for t in tensors)
    if BLOCKS * sum(t.nbytes for t, d in zip(tensors, way.tensors, strict=True) if d is None) > DEPENDENCE:
        return None  # each block takes these whole
    each = max(1, nbytes // size)
    on_cpu = all(t.device.type == "cpu" for t in tensors)
    long = max(1, min(nbytes // PART if on_cpu else DEPENDENCE, DEPENDENCE) // (BLOCKS * each))
    if size < 2 * BLOCKS * long:
        return None
    starts = (size - long, *(dice(size - long) for _ in range(BLOCKS - 1)))
    return Sums(way, size, long, starts)
