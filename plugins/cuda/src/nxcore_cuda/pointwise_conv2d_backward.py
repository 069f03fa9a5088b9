"""pointwise_conv2d_backward: the image's gradient as forward; the filters' as sums of what blocks leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, sums_of
from nxcore_cuda import points, pointwise_conv2d
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.depthwise import FILL, STEPS, Image, ceil_div
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher
from nxcore_cuda.points import FOUR, THREADS, Points, Sizes

SOURCE = "pointwise_conv2d_backward"
CHUNK, PITCH = 64, 68  # pixels that a block has at once, and floats from one channel's to the next one's
COLUMNS = 16  # of a block that adds up shares


@dataclass(frozen=True)
class Sums:
    """Channels out and in of a block, those of a thread, and the blocks that a multiprocessor is to hold."""

    outs: int
    ins: int
    own_outs: int
    own_ins: int
    blocks: int = 2

    @property
    def bytes(self) -> int:
        """Bytes of shared memory of a block."""
        half = THREADS // 2 * self.own_outs * self.own_ins
        return 4 * max((self.outs + self.ins) * PITCH, half)


SUMS = (
    Sums(16, 64, 8, 4),
    Sums(32, 64, 8, 4),
    Sums(16, 48, 4, 6),
    Sums(16, 32, 4, 4),
    Sums(32, 32, 8, 4),
    Sums(16, 16, 4, 4),
)
"""The sums that ``choose`` has: the ones that waste the fewest products, and of these the largest."""


@dataclass(frozen=True)
class Tiles:
    """The tile of the image's gradient, and the sums of the filters'; None: as the shapes say."""

    image: points.Tile | None = None
    filters: Sums | None = None


@dataclass(frozen=True)
class Grid:
    """The blocks of the sums; see ``pointwise_conv2d_filters_args``."""

    tiles: int
    tiles_of_weight: int
    across: int
    chunks: int
    parts: int

    @classmethod
    def of(cls, problem: Problem, sums: Sums) -> Grid:
        """Divide the chunks evenly among as many blocks as keep a large GPU busy."""
        grad, _, weight, shifted, *_ = problem.args
        own, more = (0 if w is None else ceil_div(w.shape[0], sums.outs) for w in (weight, shifted))
        across = ceil_div(weight.shape[1], sums.ins)
        chunks = ceil_div(grad.numel() // grad.shape[1], CHUNK)
        each = ceil_div(chunks, max(sums.blocks * FILL // ((own + more) * across), 1))
        return cls(own + more, own, across, chunks, ceil_div(chunks, each))

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return self.tiles * self.across * self.parts


def choose(problem: Problem) -> Sums:
    """Return the sums that waste the fewest products; the largest of those."""
    _, _, weight, shifted, *_ = problem.args

    def wasted(sums: Sums) -> tuple[int, int]:
        outs = sum(ceil_div(w.shape[0], sums.outs) * sums.outs for w in (weight, shifted) if w is not None)
        return outs * ceil_div(weight.shape[1], sums.ins) * sums.ins, -sums.outs * sums.ins

    return min(SUMS, key=wasted)


def instance(dtype: torch.dtype, stride: int, sums: Sums) -> Instance:
    """Return the kernel of the filters' shares."""
    arguments = (TYPES[dtype], stride, sums.outs, sums.ins, sums.own_outs, sums.own_ins)
    return Instance("pointwise_conv2d_filters", arguments, source=SOURCE, blocks=sums.blocks)


def totals(dtype: torch.dtype) -> Instance:
    """Return the kernel that adds up shares."""
    return Instance("pointwise_conv2d_totals", (TYPES[dtype],), source=SOURCE)


def plan(problem: Problem, tiles: Tiles | None = None) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem: ``call(grad, x, weight, shifted, stride, relu, output_mask)``."""
    image_fresh, *filters_fresh = problem.outputs
    relu, chosen = problem["relu"], tiles or Tiles()
    image = None
    if image_fresh is not None:
        image = pointwise_conv2d.bind(problem, Points.turned_of(problem), chosen.image)
    count = 1 if problem["shifted"] is None else 2
    wanted = [out is not None for out in filters_fresh[:count]]
    sums = _bind_sums(problem, chosen.filters or choose(problem)) if any(wanted) else None
    whole = all(wanted)

    def call(
        grad: Tensor, x: Tensor, weight: Tensor, shifted: Tensor | None = None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        weights = (weight,) if shifted is None else (weight, shifted)
        kept = sums_of(*weights) if whole else None
        x_grad = None
        if image is not None:
            x_grad = image_fresh.empty()
            image(grad, weight, shifted, x if relu else None, x_grad)
        if sums is None:
            return x_grad, None, None
        shares, finish = sums(grad, x)
        if kept is None:
            return x_grad, *finish()
        made: tuple[Tensor | None, ...] = kept.leave(shares, weights, lambda: finish()[:count])
        return x_grad, *(*made, None)[:2]

    return call


def _bind_sums(problem: Problem, sums: Sums) -> Callable[..., tuple[Tensor, Callable[[], Any]]]:
    """Return the launch of shares, which returns them and what adds them up: both filters' gradients."""
    grad, x, weight, shifted, stride, relu, _ = problem.args
    grid, device, (_, *filters_fresh) = Grid.of(problem, sums), problem.device, problem.outputs
    width = weight.numel() + (0 if shifted is None else shifted.numel())
    pixels = grad.shape[2] * grad.shape[3]

    def launch(stride: int) -> Launcher:
        return Launch(
            instance(problem.dtype, stride, sums),
            device,
            grid.blocks,
            THREADS,
            sums.bytes,
            pointers=3,
            layout=f"{2 * STEPS}13i4x",
            values=(
                *(*Image.of(grad).steps, *Image.of(x).steps, weight.shape[1], weight.shape[0]),
                *(0 if shifted is None else shifted.shape[0], grad.shape[3], pixels, pixels * grad.shape[0]),
                *(problem["stride"], int(relu), grid.tiles, grid.tiles_of_weight, grid.across),
                *(grid.chunks, grid.parts),
            ),
        )

    sizes_of = Sizes.of(x, grad, stride)
    quads = FOUR in sizes_of.whole(Image.of(grad), Image.of(x))
    shared = Guarded(launch(stride), launch(0)) if quads else launch(0)
    add_up = Launch(
        totals(problem.dtype),
        device,
        ceil_div(width, COLUMNS),
        THREADS,
        pointers=3,
        layout="3i4x",
        values=(grid.parts, width, weight.numel()),
    )

    def call(grad: Tensor, x: Tensor) -> tuple[Tensor, Callable[[], Any]]:
        shares = torch.empty((grid.parts, width), dtype=torch.float32, device=device)
        shared(grad, x, shares)

        def finish() -> tuple[Tensor | None, Tensor | None]:
            own, more = (None if out is None else out.empty() for out in filters_fresh)
            add_up(shares, own, more)
            return own, more

        return shares, finish

    return call


def sweep(problem: Problem) -> Iterator[Tiles]:
    """Yield the tiles worth timing, of one gradient at a time."""
    yield Tiles()
    if problem.outputs[0] is not None:
        yield from (Tiles(image=tile) for tile in points.candidates(Points.turned_of(problem)))
    if problem.outputs[1] is not None or problem.outputs[2] is not None:
        outs, ins = problem["weight"].shape[:2]
        fitting = (s for s in SUMS if s.outs < 2 * outs and s.ins < 2 * ins)
        yield from (Tiles(filters=replace(s, blocks=n)) for s in fitting for n in (2, 3))


def instances() -> Iterator[Instance]:
    """Yield the kernels that ``choose`` takes, to compile ahead of time."""
    yield from pointwise_conv2d.products("pointwise_conv2d_image", ((1, 4), (2, 2), (0, 1)))
    for dtype in FLOATS:
        yield totals(dtype)
        for stride, sums in product((1, 2, 0), SUMS):
            yield instance(dtype, stride, sums)
