"""sum, mean, sum_to_size, global_avg_pool2d: threads lie as memory does, several or one for each output.

Where outputs are few, several blocks share one, and the last of them to arrive adds up what they found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Reduction, TensorMeta
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.layout import DIMS, NARROW, STRIDES, VECTOR, dims, divides, in_vectors, single, steps, widths
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher, ticket

THREADS = 256
WARP = 32

FILL = 264
"""Blocks that fill a large GPU: two for each of 132 multiprocessors.

A constant, not the device's own count, so that a sum has the same bits on every device.
"""

WAVE = FILL * 9 // 10  # blocks that are nearly as many
LARGE = 1 << 26  # bytes from which more blocks than that are worth their shares
CACHED = 1 << 24  # bytes up to which a sum is a matter of latency
WIDE = 512  # threads of a block that has all terms of its outputs
MOST = 65535  # blocks of a grid along y
KINDS = range(3)  # of a walk, as in terms.cuh


@dataclass(frozen=True)
class Tile:
    """How the threads of a reduction lie.

    Attributes
    ----------
    lanes : int
        Threads that share an output, or a vector of outputs: a power of two, up to 32 or ``threads``
        where neighbours in memory are terms of one output.
    parts : int
        Blocks that share an output, at most.
    threads : int
        Of a block.
    unroll : int
        Loads in flight of one thread.
    resident : int
        Blocks that a multiprocessor is to hold, for the compiler.
    """

    lanes: int
    parts: int = 1
    threads: int = THREADS
    unroll: int = 8
    resident: int = 4


@dataclass(frozen=True)
class Walk:
    """A reduction as a kernel walks through it, in vectors of ``width`` elements.

    Attributes
    ----------
    inner : bool
        Neighbours in memory are terms of one output.
    width : int
        Of a vector: of terms if ``inner``, else of outputs.
    columns : int
        Outputs, or vectors of them.
    terms : int
        Of one output: vectors, or single ones.
    rest : int
        Terms that follow the last whole vector.
    out_step : int
        From one element of a vector of outputs to the next.
    kept, x_kept, out_kept : tuple of int
        Sizes, and strides in the input and in the output, of the dimensions that stay, outermost first.
    reduced, x_reduced : tuple of int
        Sizes and strides of the others.
    """

    inner: bool
    width: int
    columns: int
    terms: int
    rest: int
    out_step: int
    kept: tuple[int, ...]
    x_kept: tuple[int, ...]
    out_kept: tuple[int, ...]
    reduced: tuple[int, ...]
    x_reduced: tuple[int, ...]

    @property
    def kind(self) -> int:
        """How numbers become places: of terms in one dimension, of terms in more, or in 64 bits."""
        if max(self.columns, self.terms) >= NARROW:
            return 2
        return int(len(self.reduced) > 1)

    @classmethod
    def of(cls, reduction: Reduction) -> Walk:
        """Describe a walk by single elements, what is repeated outermost."""
        kept = sorted(reduction.kept, key=lambda d: -d[1] if d[1] else -(2**63))
        reduced = sorted(reduction.reduced, key=lambda d: -d[1] if d[1] else -(2**63))
        inside = [d[1] for d in kept if d[1]]
        summed = [d[1] for d in reduced if d[1]]
        return cls(
            inner=bool(summed) and (not inside or summed[-1] < inside[-1]),
            width=1,
            columns=reduction.outputs,
            terms=reduction.terms,
            rest=0,
            out_step=0,
            kept=tuple(d[0] for d in kept),
            x_kept=tuple(d[1] for d in kept),
            out_kept=tuple(d[2] for d in kept),
            reduced=tuple(d[0] for d in reduced),
            x_reduced=tuple(d[1] for d in reduced),
        )

    def widest(self, itemsize: int) -> Walk:
        """Return the walk by the widest vectors that are whole and aligned, if any are."""
        return next(filter(None, map(self.by_vectors, widths(itemsize))), self)

    def by_vectors(self, width: int) -> Walk | None:
        """Return the walk by vectors of so many elements, None where they wouldn't be whole and aligned."""
        along, steps_along, steps_across = self.kept, self.x_kept, self.x_reduced
        if self.inner:
            along, steps_along, steps_across = self.reduced, self.x_reduced, self.x_kept
        if any(step % width for step in steps_across) or not along:
            return None
        if self.inner and len(along) == 1 and steps_along == (1,) and along[0] >= width:
            terms, rest = divmod(along[0], width)
            return replace(self, width=width, terms=terms, rest=rest, reduced=(terms,), x_reduced=(width,))
        if not divides(width, along, (steps_along,)):
            return None
        counted, (scaled,) = in_vectors(width, along, (steps_along,))
        if self.inner:
            terms = self.terms // width
            return replace(self, width=width, terms=terms, reduced=counted, x_reduced=scaled)
        _, (out_scaled,) = in_vectors(width, along, (self.out_kept,))
        return replace(
            self,
            width=width,
            columns=self.columns // width,
            out_step=self.out_kept[-1],
            kept=counted,
            x_kept=scaled,
            out_kept=out_scaled,
        )


def _power_below(n: int) -> int:
    """Return the greatest power of two that isn't above ``n``, 1 at least."""
    return 1 << max(n.bit_length() - 1, 0)


def _power_above(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def choose(walk: Walk, itemsize: int) -> Tile:
    """Return the tile for a reduction of elements of so many bytes."""
    threads, unroll = THREADS, 8
    nbytes = walk.columns * walk.terms * walk.width * itemsize
    resident = 3 if walk.width > 4 else 4  # unpacked, vectors of half types take more registers
    if walk.inner:
        lanes = min(_power_below(max(walk.terms // 4, 1)), WARP)
        while lanes < min(WARP, walk.terms) and walk.columns * lanes < FILL * threads:
            lanes *= 2
        few = walk.columns * WARP < FILL * threads
        if lanes == WARP and walk.terms >= (threads if few else 2 * unroll * WARP):
            lanes = threads
        tiles = -(-walk.columns * lanes // threads)
        parts = (FILL if nbytes < LARGE else 16 * FILL) // tiles if lanes == threads else 1
        parts = min(parts, walk.terms // (threads * 4))
        return Tile(lanes, max(parts, 1), resident=resident)
    # What fits the cache is waited for, not streamed: a block that sums all terms of its outputs, eight a
    # thread, is done before blocks could have shared them. Two vectors of outputs are a sector of memory.
    lanes = _power_above(-(-walk.terms // unroll))
    columns = WIDE // lanes
    if nbytes <= CACHED and lanes > WARP and columns > 1 and walk.columns >= FILL // 5 * columns:
        return Tile(lanes, threads=WIDE, resident=resident // 2)
    lanes = min(_power_below(max(walk.terms // unroll, 1)), 8)
    while threads // lanes > WARP and walk.columns * lanes < FILL * threads and lanes < walk.terms:
        lanes *= 2
    lanes = max(lanes, threads // _power_above(min(walk.columns, threads)))
    tiles = -(-walk.columns * lanes // threads)
    parts = min((FILL if nbytes < LARGE else 4 * FILL) // tiles, walk.terms // (lanes * unroll))
    # Blocks of twice the threads leave no shares, if they are a wave of their own.
    if parts > 1 and nbytes >= LARGE and walk.columns >= WAVE * WIDE // WARP:
        return Tile(WARP, threads=WIDE, resident=resident // 2)
    return Tile(lanes, max(parts, 1), resident=resident)


def candidates(walk: Walk, itemsize: int) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    first = choose(walk, itemsize)
    whole = walk.inner and first.lanes == first.threads  # a block for each output
    found = [first]
    if whole or not walk.inner:
        found += [
            replace(first, parts=max(parts, 1))
            for parts in (first.parts // 2, first.parts * 2, first.parts * 4)
        ]
    found += [
        replace(first, unroll=4),
        replace(first, unroll=4, parts=first.parts * (1 + (whole or not walk.inner))),
    ]
    for threads, resident in ((512, first.resident // 2), (128, first.resident * 2)):
        if whole:
            found.append(replace(first, lanes=threads, threads=threads, resident=resident))
        elif not walk.inner:
            lanes = max(first.lanes * threads // THREADS, 1)
            found.append(replace(first, lanes=lanes, threads=threads, resident=resident))
    if walk.inner and not whole:
        found.append(replace(first, lanes=first.threads))
    if not whole:
        most = WARP if walk.inner else THREADS
        found += [
            replace(first, lanes=lanes) for lanes in (first.lanes // 2, first.lanes * 2) if 1 <= lanes <= most
        ]
    if not walk.inner and walk.columns * walk.terms * walk.width * itemsize >= LARGE:
        wide = ((WIDE, 2), (WIDE, 1), (2 * WIDE, 1))
        found += [
            Tile(lanes, threads=threads, resident=resident)
            for (threads, resident), lanes in product(wide, (16, 32, 64))
        ]
        found += [Tile(lanes, parts) for lanes, parts in ((8, 4), (8, 8), (16, 2), (16, 4))]
    yield from dict.fromkeys(found)


def _instance(inner: bool, name: str, width: int, kind: int, tile: Tile) -> Instance:
    return Instance(
        "sum_inner" if inner else "sum_outer",
        (name, width, tile.unroll, f"(Walk){kind}"),
        "sum",
        "sum_args",
        threads=tile.threads,
        blocks=tile.resident,
    )


def arrivals(walk: Walk, device: torch.device, tiles: int, parts: int) -> Tensor:
    """Return the tickets of a launch, and behind them the slots of blocks that share an output."""
    return ticket(device, tiles * (1 + parts) if walk.inner else tiles)


Run = Callable[[Tensor, Tensor, float], None]


def plan_reduction(x: TensorMeta, reduction: Reduction, tile: Tile | None = None, usual: float = 1.0) -> Run:
    """Return the launch that sums as ``reduction`` says.

    Parameters
    ----------
    x : TensorMeta
        The input.
    reduction : Reduction
        At least one output and one term.
    tile : Tile, optional
        The one to use in place of the chosen one, for data that can be read in vectors.
    usual : float
        The scale of calls that are to take no time over it.

    Returns
    -------
    callable
        ``run(x, out, scale)`` writes the sums times ``scale``.
    """
    device, by_one = x.device, Walk.of(reduction)
    scalar, scalar_values, (tiles, parts) = _launch(x, by_one, None, usual)
    vector, vector_values = None, ()
    walk = by_one.widest(x.element_size())
    if walk is not by_one:
        vector, vector_values, (vector_tiles, vector_parts) = _launch(x, walk, tile, usual)
        tiles, parts = max(tiles, vector_tiles), max(parts, vector_parts)
    guarded = Guarded(vector, scalar)
    found = TensorMeta((parts, reduction.outputs), (reduction.outputs, 1), torch.float32, device)

    def run(x: Tensor, out: Tensor, scale: float) -> None:
        work = found.empty() if parts > 1 and not walk.inner else None
        arrived = arrivals(walk, device, tiles, parts) if parts > 1 else None
        if scale == usual:
            guarded(x, out, work, arrived)
        elif vector is None or x.data_ptr() % VECTOR:
            scalar(x, out, work, arrived, tail=(*scalar_values, single(scale)))
        else:
            vector(x, out, work, arrived, tail=(*vector_values, single(scale)))

    return run


def shares(x: TensorMeta, reduction: Reduction) -> bool:
    """Return whether blocks share outputs: then a call also finds room for their shares, and a ticket."""
    by_one = Walk.of(reduction)
    walks = (by_one, by_one.widest(x.element_size()))
    return any(grid(walk, choose(walk, x.element_size()))[2] > 1 for walk in walks)


def grid(walk: Walk, tile: Tile) -> tuple[int, int, int]:
    """Return how many terms a block sums at most, and how many blocks there are along x and y."""
    span = -(-walk.terms // min(tile.parts, MOST))
    span = -(-span // tile.lanes) * tile.lanes if tile.parts > 1 else walk.terms
    return span, -(-walk.columns * tile.lanes // tile.threads), -(-walk.terms // span)


def _launch(
    x: TensorMeta, walk: Walk, tile: Tile | None, scale: float
) -> tuple[Launcher, tuple[Any, ...], tuple[int, int]]:
    chosen = tile or choose(walk, x.element_size())
    span, tiles, parts = grid(walk, chosen)
    values = (
        *(walk.columns, walk.terms, span, walk.rest, walk.out_step),
        *(*dims(walk.kept), *steps(walk.x_kept), *steps(walk.out_kept)),
        *(*dims(walk.reduced), *steps(walk.x_reduced)),
        chosen.lanes,
    )
    launch = Launch(
        _instance(walk.inner, TYPES[x.dtype], walk.width, walk.kind, chosen),
        x.device,
        (tiles, parts),
        chosen.threads,
        shared=4 * chosen.threads * (1 if walk.inner else walk.width),
        pointers=4,
        layout=f"5q{DIMS}{2 * STRIDES}{DIMS}{STRIDES}if",
        values=(*values, single(scale)),
    )
    return launch, values, (tiles, parts)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(x, ...)``, with the operator's arguments."""
    out, (reduction, factor) = problem.outputs, Reduction.scaled(problem)
    run = plan_reduction(problem["x"], reduction, tile, usual=factor)

    def call(x: Tensor, *_: Any) -> Tensor:
        total = out.empty()
        run(x, total, factor)
        return total

    return call


def branch(problem: Problem) -> bool:
    """Return whether blocks share outputs."""
    return any(shares(problem["x"], reduction) for reduction in Reduction.of_call(problem))


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing, by the largest reduction."""
    x = problem.tensors[0]
    if found := Reduction.of_call(problem):
        walk = Walk.of(max(found, key=lambda reduction: reduction.outputs))
        yield from candidates(walk.widest(x.element_size()), x.element_size())


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        for step in {1, 4, VECTOR // dtype.itemsize}:
            tile = Tile(1, resident=3 if step > 4 else 4)
            for kind in KINDS:
                yield _instance(True, TYPES[dtype], step, kind, tile)
                yield _instance(False, TYPES[dtype], step, kind, tile)
