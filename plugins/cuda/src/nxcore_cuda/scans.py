"""cumsum and its gradient: a line is read once; blocks that share one hand over what their parts come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Lines, Problem
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.layout import VECTOR
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher, ticket

WARP, MOST, SMALL = 32, 256, 128
EACH = 4
"""Vectors of a thread in a chunk."""

FILL = 264
"""Blocks that fill a large GPU: lines that are fewer are shared by several."""

LONGEST = 2048
"""The most blocks that share a line: each reads what those before it come to."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The lines of a call, and whether neighbours in memory are entries of one or belong to several.

    Attributes
    ----------
    given, made : torch.dtype
        Of the input and of the result.
    back : bool
        From the end on.
    """

    lines: Lines
    given: torch.dtype
    made: torch.dtype
    back: bool

    @classmethod
    def of(cls, problem: Problem) -> Scan:
        """Describe a call."""
        found = Lines.along(problem)
        assert found is not None  # noqa: S101  accepts looked
        if found.inner == 1:  # one dimension counts lines: the inner one
            steps = tuple((0, outer, entry) for outer, _, entry in found.steps)
            found = Lines(found.count, found.count, found.length, steps)
        back = problem.op.endswith("_backward")
        return cls(found, problem.tensors[0].dtype, problem.outputs.dtype, back)

    @property
    def inner(self) -> bool:
        """Whether threads lie along lines."""
        return self.lines.steps[0][2] == 1 or self.lines.steps[0][1] != 1

    def width(self) -> int:
        """Return the elements of the widest vector that all lie in."""
        wide, found = VECTOR // self.given.itemsize, self.lines
        if self.inner:
            return wide if found.vectors(wide) else 1
        whole = found.inner % wide == 0
        fits = all(inner == 1 and outer % wide == entry % wide == 0 for outer, inner, entry in found.steps)
        return wide if whole and fits else 1

    def parts(self, width: int) -> int:
        """Return the blocks of a line."""
        if not self.inner or self.lines.count >= FILL:
            return 1
        parts = -(-self.lines.length // (width * MOST * EACH))
        return parts if parts <= LONGEST else 1

    def instance(self, width: int) -> Instance:
        """Return the kernel for vectors of so many elements."""
        types = (TYPES[self.given], TYPES[self.made])
        entry = "scans_inner" if self.inner else "scans_outer"
        arguments = (*types, width, EACH, self.back)
        return Instance(entry, arguments, "scans", "scans_args", threads=MOST)

    def launch(self, width: int, device: torch.device) -> Launcher:
        """Return the launch of that kernel."""
        found, parts = self.lines, self.parts(width)
        if self.inner:
            vectors = -(-found.length // (width * EACH))
            lanes = min(1 << max(vectors - 1, 0).bit_length(), MOST)
            threads = lanes if lanes > WARP else SMALL
            blocks, shared = -(-found.count * lanes // threads) * parts, 0
        else:
            lanes, threads = WARP if width == 1 else WARP // 4, MOST
            blocks = -(-found.count // (lanes * width))
            shared = 2 * threads // WARP * lanes * width * torch.float32.itemsize
        order = found.steps[1:] + found.steps[:1]  # the result is last
        return Launch(
            self.instance(width),
            device,
            blocks,
            threads,
            shared=shared,
            pointers=3,
            layout="9q2i",
            values=(
                *(found.count, found.inner, *(step[k] for k in range(3) for step in order), found.length),
                *(lanes, parts),
            ),
        )


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, ...)``."""
    out, scan, device = problem.outputs, Scan.of(problem), problem.device
    width = scan.width()
    vector = scan.launch(width, device) if width > 1 else None
    run, words = Guarded(vector, scan.launch(1, device)), slots(scan)

    def call(x: Tensor, *_: Any) -> Tensor:
        result: Tensor = out.empty()
        run(x, result, ticket(device, words) if words else None)
        return result

    return call


def slots(scan: Scan) -> int:
    """Return how many words the blocks that share lines need; 0 where none does."""
    parts = max(map(scan.parts, {1, scan.width()}))
    return scan.lines.count * (parts + 1) if parts > 1 else 0


def branch(problem: Problem) -> bool:
    """Return whether blocks share lines: then a call also finds a ticket."""
    return slots(Scan.of(problem)) > 0


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    shapes = (Lines(1, 1, 1, ((0, outer, 1 + outer),) * 2) for outer in (0, 1))
    for dtype, lines, back in product(FLOATS, tuple(shapes), (False, True)):
        scan = Scan(lines, dtype, dtype, back)
        yield from map(scan.instance, (1, VECTOR // dtype.itemsize))
