"""global_max_pool2d: threads lie as for a sum over the same axes, but that no two blocks share an output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Reduction
from nxcore_cuda import sum as sums
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.instance import Instance
from nxcore_cuda.launch import Guarded, Launch
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, steps
from nxcore_cuda.sum import WARP, Tile, Walk

BEST = 8  # bytes of a value and its number
MOST = 1024  # threads of a block
UNROLL = 4  # a best for each element of a vector, and its number, take more registers than its sum


def walk_of(problem: Problem) -> Walk:
    """Return the walk by single elements: through pixels in their own order, by which they are numbered."""
    reduction = Reduction.of_planes(problem)
    sizes, strides = zip(*reduction.reduced, strict=True) if reduction.reduced else ((), ())
    return replace(Walk.of(reduction), reduced=sizes, x_reduced=strides)


def choose(walk: Walk, itemsize: int) -> Tile:
    """Return the tile for a walk: where a sum has blocks share an output, larger blocks."""
    tile = sums.choose(walk, itemsize)
    times = min(MOST // tile.threads, 1 << (tile.parts.bit_length() - 1))
    return replace(
        tile,
        lanes=tile.lanes * times,
        parts=1,
        threads=tile.threads * times,
        unroll=UNROLL,
        resident=max(tile.resident // times, 1),
    )


def _instance(inner: bool, name: str, width: int, offsets: bool, tile: Tile) -> Instance:
    return Instance(
        "global_max_inner" if inner else "global_max_outer",
        (name, width, tile.unroll, offsets),
        "global_max_pool2d",
        "global_max_pool2d_args",
        threads=tile.threads,
        blocks=tile.resident,
    )


def plan_both(problem: Problem, tile: Tile | None, *, offsets: bool) -> Callable[..., None]:
    """Return the launch for one problem: ``run(x, out, offsets)``, the latter None if not asked for."""
    x, by_one = problem["x"], walk_of(problem)
    itemsize = x.element_size()

    def launch(walk: Walk, chosen: Tile) -> Launch:
        shared = chosen.threads // WARP if walk.inner else chosen.threads // 2 * walk.width
        return Launch(
            _instance(walk.inner, TYPES[x.dtype], walk.width, offsets, chosen),
            x.device,
            -(-walk.columns * chosen.lanes // chosen.threads),
            chosen.threads,
            shared=BEST * shared,
            pointers=3,
            layout=f"4q{DIMS}{2 * STRIDES}{DIMS}{STRIDES}i",
            values=(
                *(walk.columns, walk.terms, walk.rest, walk.out_step),
                *(*dims(walk.kept), *steps(walk.x_kept), *steps(walk.out_kept)),
                *(*dims(walk.reduced), *steps(walk.x_reduced)),
                chosen.lanes,
            ),
        )

    walk = by_one.widest(itemsize)
    vector = None if walk is by_one else launch(walk, tile or choose(walk, itemsize))
    run: Callable[..., None] = Guarded(vector, launch(by_one, choose(by_one, itemsize)))
    return run


def plan(problem: Problem, tile: Tile | None = None) -> Callable[[Tensor], Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(x)``.
    """
    out, run = problem.outputs, plan_both(problem, tile, offsets=False)

    def call(x: Tensor) -> Tensor:
        largest = out.empty()
        run(x, largest, None)
        return largest

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing: the chosen one, and those of sums whose blocks share nothing."""
    itemsize = problem["x"].element_size()
    walk = walk_of(problem).widest(itemsize)
    others = (replace(tile, parts=1) for tile in sums.candidates(walk, itemsize))
    yield from dict.fromkeys((choose(walk, itemsize), *others))


def usual(*, offsets: bool) -> Iterator[Instance]:
    """Yield what ordinary calls want."""
    for dtype in FLOATS:
        for step in {1, VECTOR // dtype.itemsize}:
            inner = Tile(1, unroll=UNROLL, resident=3 if step > 4 else 4)
            yield _instance(True, TYPES[dtype], step, offsets, inner)
            yield _instance(False, TYPES[dtype], step, offsets, Tile(1, unroll=UNROLL))


def instances() -> Iterator[Instance]:
    """Yield what ordinary calls want."""
    yield from usual(offsets=False)
