"""Rows: a few of the independent results of a large call, with the parts of its arguments that they are of.

A spec's ways say along which dimensions results are independent. The last row is always among them, those
next to 2^31 bytes and elements of any tensor are, where 32-bit offsets wrap, and a few random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.problem import leaves
from nxcore.spec.spec import OpSpec, Way
from nxcore.trust.memory import each
from nxcore.trust.truth import widened

EDGE = 1 << 31
"""Bytes, and elements, beyond which an offset has more than 31 bits."""

DEPENDENCE = 1 << 24
"""The most bytes of the arguments that one row may depend on, and that all rows together have on a GPU."""

PART = 1000
"""On a CPU rows are one in so many bytes of a call: float64 takes ten times as long as the call."""

RANDOM = 3
"""Random rows besides, or one where the others are a larger part of the call."""

Chunks = tuple[tuple[int, int], ...]
"""Start and length of each part of a dimension."""


@dataclass(frozen=True)
class Rows:
    """Which results of a call are taken.

    Attributes
    ----------
    cuts : tuple of (Way, tuple of (int, int))
        The ways by which the call is divided, and the parts that are taken along each.
    shapes : tuple of (tuple of int)
        Those of the results. An argument that names one names the parts' own in their reference.
    """

    cuts: tuple[tuple[Way, Chunks], ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def some(self) -> bool:
        """Whether a result is left out, which is a sum over all parts."""
        return any(None in _dims(way, len(self.shapes)) for way, _ in self.cuts)

    def of(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return copies of the parts of the arguments; what each row takes whole isn't copied."""
        sizes = [list(shape) for shape in self.shapes]
        for way, chunks in self.cuts:
            for size, dim in zip(sizes, _dims(way, len(sizes)), strict=True):
                if dim is not None:
                    size[dim] = sum(n for _, n in chunks)
        own = dict(zip(self.shapes, map(tuple, sizes), strict=True))
        return tuple(own.get(tuple(arg), arg) if _is_size(arg) else arg for arg in cut(args, self.cuts))

    def right(self, spec: OpSpec, parts: tuple[Any, ...], result: Any) -> tuple[Tensor, ...]:
        """Return the reference's results on parts, in float64 and rounded as ``result`` is."""
        found = leaves(spec.reference(*(parts if spec.exact else widened(parts))))
        return tuple(t.to(y.dtype) for t, y in zip(found, leaves(result), strict=True))

    def results(self, result: Any, right: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return copies of the parts of the results; ``right`` for one that is a sum over all parts."""
        along = zip(*(_dims(way, len(right)) for way, _ in self.cuts), strict=True)
        chunks = [of_way for _, of_way in self.cuts]
        return tuple(
            t if None in dims else _taken(y, [*zip(dims, chunks, strict=True)])
            for y, t, dims in zip(leaves(result), right, along, strict=True)
        )


def cut(args: tuple[Any, ...], cuts: Sequence[tuple[Way, Chunks]]) -> tuple[Any, ...]:
    """Return copies of parts of the arguments; what each part takes whole isn't copied."""
    number = iter(range(len(list(leaves(args)))))

    def taken(tensor: Tensor) -> Tensor:
        at = next(number)
        of_it = [(d, chunks) for way, chunks in cuts if (d := way.tensors[at]) is not None]
        return _taken(tensor, of_it) if of_it else tensor

    parts: tuple[Any, ...] = each(args, taken)
    return parts


def _is_size(argument: Any) -> bool:
    return isinstance(argument, tuple | list) and set(map(type, argument)) == {int}


def _dims(way: Way, count: int) -> tuple[int | None, ...]:
    """Return the dimension along which each of so many results is divided."""
    return way.results or (way.result,) * count


def _taken(tensor: Tensor, cuts: Sequence[tuple[int, Chunks]]) -> Tensor:
    if not cuts:
        return tensor.detach()
    (dim, chunks), rest = cuts[0], cuts[1:]
    return torch.cat([_taken(tensor.narrow(dim, *chunk), rest) for chunk in chunks], dim)


def rows(
    spec: OpSpec, args: tuple[Any, ...], results: Any, dice: Callable[[int], int], turn: int | None = None
) -> Rows | None:
    """Choose rows of a call; None if one depends on more than 16 MB, as a sum of all elements does.

    Parameters
    ----------
    spec : OpSpec
        The operator.
    args : tuple
        The arguments without an ``out``; tensors of the device ``meta`` will do.
    results : Any
        The results, as ``TensorMeta``.
    dice : callable
        ``dice(n)``: a random number from 0 to n - 1.
    turn : int, optional
        The number of the audit: ways that divide some results alone take turns. Without it there are none.
    """
    tensors, outputs = list(leaves(args)), list(_flat(results))
    groups: dict[Any, list[Way]] = {}  # by the results that they divide: those of several ways are of all
    for way in spec.ways(*args):
        sums = tuple(d is None for d in _dims(way, 1))
        if not all(sums) and (turn is not None or not any(sums)):
            groups.setdefault(sums, []).append(way)
    every = [sorted(of, key=lambda w: -length(w, tensors)) for of in groups.values()]
    found = [rows for ways in every if (rows := _chosen(ways, tensors, outputs, dice))]
    return found[(turn or 0) % len(found)] if found else None


def _chosen(
    left: list[Way], tensors: Sequence[Any], outputs: Sequence[Any], dice: Callable[[int], int]
) -> Rows | None:
    ways: list[Way] = []
    least = sum(t.nbytes for t in tensors)
    on_cpu = all(t.device.type == "cpu" for t in tensors)
    most = min(least // PART if on_cpu else DEPENDENCE, DEPENDENCE)
    while left and (not ways or least * (2 + RANDOM) > most):
        ways.append(left.pop(0))
        least = sum(t.nbytes // _parts(i, ways, tensors) for i, t in enumerate(tensors))
    if least > DEPENDENCE:
        return None
    marks = [list(_edges(way, tensors, outputs)) for way in ways]
    drawn = RANDOM if least * (1 + RANDOM) <= most else 1
    cuts = []
    for way, edges in zip(ways, marks, strict=True):
        size = length(way, tensors)
        places = [*edges, size - 1, *(dice(size) for _ in range(drawn))]
        long = max(1, most // (least * len(places))) if way is ways[0] else 1
        starts = sorted({max(0, min(place - long // 2, size - long)) for place in places})
        cuts.append((way, tuple(_apart(starts, min(long, size)))))
    return Rows(tuple(cuts), tuple(tuple(y.shape) for y in outputs))


def _flat(results: Any) -> Iterator[Any]:
    if isinstance(results, tuple | list):
        for result in results:
            yield from _flat(result)
    elif results is not None:
        yield results


def length(way: Way, tensors: Sequence[Any]) -> int:
    """Return the size of the dimension along which a way divides."""
    return next(int(t.shape[d]) for t, d in zip(tensors, way.tensors, strict=True) if d is not None)


def _parts(index: int, ways: Sequence[Way], tensors: Sequence[Any]) -> int:
    found = 1
    for way in ways:
        found *= 1 if way.tensors[index] is None else length(way, tensors)
    return found


def _edges(way: Way, tensors: Sequence[Any], outputs: Sequence[Any]) -> Iterator[int]:
    """Yield the places along a way before and after an offset of 2^31 bytes or elements of any tensor."""
    along = _dims(way, len(outputs))
    dims = [*zip(tensors, way.tensors, strict=True), *zip(outputs, along, strict=True)]
    for tensor, dim in dims:
        for offset in {EDGE, EDGE // tensor.dtype.itemsize} if dim is not None else ():
            for at in (offset - 1, offset):
                if (place := _place(tensor, dim, at)) is not None:
                    yield place


def _place(tensor: Any, dim: int | None, offset: int) -> int | None:
    """Return the index along a dimension of the element at an offset; None if the tensor ends before."""
    for d in sorted(range(len(tensor.shape)), key=lambda d: (-tensor.stride()[d], d)):
        if not (stride := tensor.stride()[d]):
            continue
        place, offset = divmod(offset, stride)
        if place >= tensor.shape[d]:
            return None
        if d == dim:
            return int(place)
    return None


def _apart(starts: Sequence[int], long: int) -> Iterator[tuple[int, int]]:
    """Yield parts of one length that don't overlap."""
    end = 0
    for start in starts:
        if start + long > end:
            first = max(start, end)
            end = start + long
            yield first, end - first
