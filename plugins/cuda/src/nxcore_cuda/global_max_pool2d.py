"""global_max_pool2d: threads lie as for a sum over the same axes, but that no two blocks share an output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Reduction, TensorMeta
from nxcore_cuda import sum as sums
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, steps
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher
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
    """Return the launch for one problem: ``run(x, out, offsets)``, the latter None if not requested."""
    x, by_one = problem["x"], walk_of(problem)
    itemsize = x.element_size()

    def launch(walk: Walk, chosen: Tile) -> Launcher:
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


def plan(problem: Problem, tile: Tile | None = None) -> Callable[[Tensor], Any]:
    """Return the launch for one problem: ``call(x)``."""
    outputs = problem.outputs
    if isinstance(outputs, TensorMeta):
        run = plan_both(problem, tile, offsets=False)

        def call(x: Tensor) -> Tensor:
            largest = outputs.empty()
            run(x, largest, None)
            return largest

        return call
    (out, offsets), run = outputs, plan_both(problem, tile, offsets=True)

    def call_for_both(x: Tensor) -> tuple[Tensor, Tensor]:
        results = out.empty(), offsets.empty()
        run(x, *results)
        return results

    return call_for_both


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing: the chosen one, and those of sums whose blocks share nothing."""
    itemsize = problem["x"].element_size()
    walk = walk_of(problem).widest(itemsize)
    others = (replace(tile, parts=1) for tile in sums.candidates(walk, itemsize))
    yield from dict.fromkeys((choose(walk, itemsize), *others))


def usual(*, offsets: bool) -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        for step in {1, VECTOR // dtype.itemsize}:
            inner = Tile(1, unroll=UNROLL, resident=3 if step > 4 else 4)
            yield _instance(True, TYPES[dtype], step, offsets, inner)
            yield _instance(False, TYPES[dtype], step, offsets, Tile(1, unroll=UNROLL))


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from usual(offsets=False)
    yield from usual(offsets=True)
    yield from _instances_backward()


THREADS = 256
ALONG = 32  # threads along channels: a warp writes what lies side by side
RESIDENT = 2048 * 132  # threads that a large GPU holds
WORTHWHILE = 8  # pixels that pay for reading what a channel won
MOST_BACKWARD = 65535  # blocks of a grid along y


@dataclass(frozen=True)
class Spread:
    """How much is written at once.

    Attributes
    ----------
    vector : int
        Elements of a store.
    parts : int
        Blocks that share a channel's pixels, at most; 0 where pixels lie closest.
    """

    vector: int
    parts: int = 0


def choose_backward(problem: Problem) -> Spread:
    """Return the tile for a problem."""
    out = problem.outputs
    widest = VECTOR // out.element_size()
    if out.is_contiguous():
        return Spread(widest)
    channels, pixels = out.shape[-3], math.prod(out.shape[-2:])
    vector = next(width for width in (widest, widest // 2, 1) if channels % width == 0)
    columns = out.numel() // pixels // vector
    lanes = THREADS // ALONG
    parts = min(-(-RESIDENT // (columns * lanes)), pixels // (lanes * WORTHWHILE), MOST_BACKWARD)
    return Spread(vector, max(parts, 1))


def _instance_backward(name: str, tile: Spread) -> Instance:
    return Instance(
        "global_max_pixels" if tile.parts else "global_max_planes",
        (name, tile.vector),
        "global_max_pool2d_backward",
        "global_max_pool2d_backward_args",
        threads=THREADS,
    )


def plan_backward(problem: Problem, tile: Spread | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(grad, offsets, size, memory_format)``."""
    out, chosen = problem.outputs, tile or choose_backward(problem)
    channels, pixels = out.shape[-3], math.prod(out.shape[-2:])
    images = out.numel() // (channels * pixels)
    grads, taps = ((0, *problem[name].strides)[-4:-2] for name in ("grad", "offsets"))
    sizes: tuple[int, ...]
    strides: list[tuple[int, ...]]
    if chosen.parts:
        width, lanes = chosen.vector, THREADS // ALONG
        count, sizes = images * channels // width, (images, channels // width)
        blocks, span = -(-count // ALONG), -(-pixels // chosen.parts)
        grid = (blocks, -(-pixels // span))
        strides = [(grads[0], grads[1] * width), (taps[0], taps[1] * width), (channels * pixels, width)]
    else:
        count, sizes, lanes, span = out.numel(), (images, channels, pixels), 1, pixels
        grid = (-(-count // (THREADS * chosen.vector)), 1)
        strides = [(*grads, 0), (*taps, 0), (0, 0, 1)]
    launch = Launch(
        _instance_backward(TYPES[out.dtype], chosen),
        out.device,
        grid,
        THREADS,
        pointers=3,
        layout=f"6q{DIMS}{3 * STRIDES}i",
        values=(
            *(count, pixels, channels, grads[1], taps[1], span),
            *(*dims(sizes), *(step for of in strides for step in steps(of)), lanes),
        ),
    )

    def call(grad: Tensor, offsets: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        launch(grad, offsets, result)
        return result

    return call


def sweep_backward(problem: Problem) -> Iterator[Spread]:
    """Yield the tiles worth timing."""
    first = choose_backward(problem)
    yield first
    if first.parts:
        pixels = math.prod(problem.outputs.shape[-2:])
        for parts in (first.parts * 2, first.parts // 2, first.parts * 4):
            if 1 <= parts <= min(pixels, MOST_BACKWARD):
                yield replace(first, parts=parts)
    if first.vector > 1:
        yield replace(first, vector=first.vector // 2)


def _instances_backward() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        yield _instance_backward(TYPES[dtype], Spread(VECTOR // dtype.itemsize))
        for vector in {VECTOR // dtype.itemsize, 1}:
            yield _instance_backward(TYPES[dtype], Spread(vector, 1))
