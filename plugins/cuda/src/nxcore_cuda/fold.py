"""amax, amin, max, min, argmax, argmin, any, all: threads lie as for a sum, and keep the best that they meet.

Where outputs are few, several blocks share one, and the last of them compares what they found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Reduction, TensorMeta
from nxcore_cuda import sum as sums
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, steps
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher, ticket
from nxcore_cuda.sum import KINDS, Tile, Walk, grid

LARGEST, SMALLEST, SOME, EVERY = range(4)
"""The kinds of elements to find, as in fold.cu."""

LOOKS = {
    **dict.fromkeys(("amax", "max", "argmax"), LARGEST),
    **dict.fromkeys(("amin", "min", "argmin"), SMALLEST),
    "any": SOME,
    "all": EVERY,
}

NUMBERED = ("max", "min", "argmax", "argmin")

KEYS = {False: torch.float32, True: torch.int64}
"""The dtype of what is compared of an element, without and with its number, as in fold.cu."""


def walk_of(problem: Problem) -> Walk:
    """Return the walk by single elements: where terms are numbered, through them in torch's order."""
    (reduction,) = Reduction.of_call(problem)
    walk = Walk.of(reduction)
    if problem.op not in NUMBERED:
        return walk
    sizes, strides = zip(*reduction.reduced, strict=True) if reduction.reduced else ((), ())
    return replace(walk, reduced=sizes, x_reduced=strides)


def choose(walk: Walk, itemsize: int, *, places: bool) -> Tile:
    """Return the tile for a walk: that of a sum.

    Of a large input with outputs for neighbours it has half the parts: more would leave more shares, of 64
    bits with places, and be a second wave of blocks.
    """
    tile = sums.choose(walk, itemsize)
    parts = tile.parts
    if not walk.inner and walk.columns * walk.terms * walk.width * itemsize >= sums.LARGE:
        parts = max(parts // 2, 1)
    return replace(tile, parts=parts, unroll=_unroll(walk.width, places=places))


def _unroll(width: int, *, places: bool) -> int:
    """Return the loads in flight of a thread: the best of each element and its number take registers."""
    return 4 if places and width > 4 else 8


def _instance(
    inner: bool, name: str, width: int, kind: int, look: int, tile: Tile, *, places: bool
) -> Instance:
    return Instance(
        "fold_inner" if inner else "fold_outer",
        (name, width, tile.unroll, look, places, f"(Walk){kind}"),
        "fold",
        "fold_args",
        threads=tile.threads,
        blocks=tile.resident,
    )


def _launch(x: TensorMeta, walk: Walk, look: int, tile: Tile, *, places: bool) -> tuple[Launcher, int, int]:
    """Return a launch, and how many blocks there are along x and y."""
    span, tiles, parts = grid(walk, tile)
    launch = Launch(
        _instance(walk.inner, TYPES[x.dtype], walk.width, walk.kind, look, tile, places=places),
        x.device,
        (tiles, parts),
        tile.threads,
        shared=KEYS[places].itemsize * tile.threads * (1 if walk.inner else walk.width),
        pointers=5,
        layout=f"5q{DIMS}{2 * STRIDES}{DIMS}{STRIDES}i",
        values=(
            *(walk.columns, walk.terms, span, walk.rest, walk.out_step),
            *(*dims(walk.kept), *steps(walk.x_kept), *steps(walk.out_kept)),
            *(*dims(walk.reduced), *steps(walk.x_reduced)),
            tile.lanes,
        ),
    )
    return launch, tiles, parts


def plan_both(problem: Problem, tile: Tile | None) -> Callable[..., None]:
    """Return the launch for one problem: ``run(x, out, indices)``, None for what isn't requested."""
    x, by_one, look = problem["x"], walk_of(problem), LOOKS[problem.op]
    itemsize, places, device = x.element_size(), problem.op in NUMBERED, x.device
    first = choose(by_one, itemsize, places=places)
    scalar, tiles, parts = _launch(x, by_one, look, first, places=places)
    vector, walk = None, by_one.widest(itemsize)
    if walk is not by_one:
        chosen = tile or choose(walk, itemsize, places=places)
        vector, more_tiles, more_parts = _launch(x, walk, look, chosen, places=places)
        tiles, parts = max(tiles, more_tiles), max(parts, more_parts)
    guarded = Guarded(vector, scalar)
    if parts == 1:
        return lambda x, out, indices: guarded(x, out, indices, None, None)
    outputs, words = walk.columns * (1 if walk.inner else walk.width), tiles
    if walk.inner:
        words *= parts * (1 + places)  # slots of 32 bits, or of 64
    found = TensorMeta((parts, outputs), (outputs, 1), KEYS[places], device)

    def run(x: Tensor, out: Tensor | None, indices: Tensor | None) -> None:
        guarded(x, out, indices, None if walk.inner else found.empty(), ticket(device, words))

    return run


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Any]:
    """Return the launch for one problem: ``call(x, ...)``, with the operator's arguments."""
    outputs, run = problem.outputs, plan_both(problem, tile)
    if isinstance(outputs, tuple):
        values_of, indices_of = outputs

        def call_for_both(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
            results = values_of.empty(), indices_of.empty()
            run(x, *results)
            return results

        return call_for_both
    indices = problem.op in NUMBERED

    def call(x: Tensor, *_: Any) -> Tensor:
        result: Tensor = outputs.empty()
        run(x, None if indices else result, result if indices else None)
        return result

    return call


def branch(problem: Problem) -> bool:
    """Return whether blocks share outputs."""
    x, by_one, places = problem["x"], walk_of(problem), problem.op in NUMBERED
    walks = (by_one, by_one.widest(x.element_size()))
    return any(grid(walk, choose(walk, x.element_size(), places=places))[2] > 1 for walk in walks)


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing, one block an output or several."""
    itemsize, places = problem["x"].element_size(), problem.op in NUMBERED
    walk = walk_of(problem).widest(itemsize)
    yield from dict.fromkeys((choose(walk, itemsize, places=places), *sums.candidates(walk, itemsize)))


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    forms = [(look, False) for look in range(4)] + [(LARGEST, True), (SMALLEST, True)]
    for dtype in FLOATS:
        for step in {1, VECTOR // dtype.itemsize}:
            for (look, places), kind, inner in product(forms, KINDS, (True, False)):
                unroll = _unroll(step, places=places)
                tile = Tile(1, unroll=unroll, resident=3 if step > 4 else 4)
                yield _instance(inner, TYPES[dtype], step, kind, look, tile, places=places)
