"""foreach_sep_conv2d_batch_norm_backward: each step of the gradients in one launch for all convolutions.

The norms' sums, the norms' gradients, the convolutions' gradients, and the totals of what their blocks
leave of the weights' gradients, unless those of all weights of a captured call are added up together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta, sums_of
from nxcore_cuda import foreach, planes, separable
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.channel import CHANNELS, Channels
from nxcore_cuda.channel import Tile as Span
from nxcore_cuda.channel import instance as channel_instance
from nxcore_cuda.depthwise import ceil_div
from nxcore_cuda.foreach import ROOM, Group, Work, padded
from nxcore_cuda.foreach_sep_conv2d_batch_norm import norms
from nxcore_cuda.layout import STRIDES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher
from nxcore_cuda.sep_conv2d_backward import COLUMNS, MOST_BLOCKS, PLANNERS

SOURCE, TOTALS = "foreach_sep_conv2d_backward", "foreach_sep_conv2d_totals"
NORM = "foreach_batch_norm_backward"
NORMS = (f"{NORM}_sums", f"{NORM}_apply")
IMAGE, FILTERS, POINTS = 1, 2, 4  # as in sep_conv2d_backward.cu

Made = list[Tensor | None]


def instance(windows: tuple[int, ...], threads: int) -> Instance:
    """Return the kernel of the windows that a launch has, as ``foreach.code`` spells them."""
    return Instance(
        SOURCE, (TYPES[torch.float32], *windows), threads=threads, blocks=foreach.resident(windows, threads)
    )


def totals() -> Instance:
    """Return the kernel that adds up shares."""
    return Instance(TOTALS, (TYPES[torch.float32],), source=SOURCE)


def tiles(problem: Problem, group: Group) -> list[separable.Tile]:
    """Return the tile of each convolution."""
    return foreach.tiles(separable.layers(problem), problem.device, group, back=True)


def columns(layer: separable.Layer) -> int:
    """Return how many elements a convolution's filters and points have."""
    return layer.x.channels * (layer.size**2 + layer.y.channels)


def plan(problem: Problem, group: Group | None = None) -> Callable[..., tuple[Any, ...]]:
    """Return the launches for one problem.

    It is called as ``call(grads, xs, dw_weights, pw_weights, ys, strides, paddings, dilations, mean, var,
    ...)``, which returns ``(xs_grad, dw_grads, pw_grads)``.
    """
    chosen, device, fresh = group or choose(problem), problem.device, problem.outputs
    wanted = [
        sum(1 << k for k, out in enumerate(outs) if out is not None) for outs in zip(*fresh, strict=True)
    ]
    layers = separable.layers(problem)
    known: dict[int, Any] = {
        i: planner
        for i, layer in enumerate(layers)
        if chosen.planes is not None and wanted[i] == IMAGE | FILTERS | POINTS
        for planner in PLANNERS
        if planner.fits(layer, device, relu=problem["relu"])
    }
    some = [i for i, which in enumerate(wanted) if which and i not in known]
    works = []
    for layer, tile, which in zip(layers, tiles(problem, chosen), wanted, strict=True):
        floats = separable.backward(layer, tile)
        band = separable.values(layer, tile, floats, relu=problem["relu"], wanted=which)
        blocks = min(layer.x.images * layer.bands(tile.band), MOST_BLOCKS)
        chunks = ceil_div(layer.x.channels, tile.chunk)
        works.append(Work((layer.size, layer.stride, layer.dilation), band, blocks, chunks, floats.bytes))
    convolve = foreach.launches(
        [works[i] for i in some], chosen, device, 6, lambda found: instance(found, chosen.threads)
    )
    rows = [work.rows for work in works]
    of_planes: foreach.Launches = []
    for planner in PLANNERS:
        own = [i for i in known if known[i] is planner]
        for batch, launch, tile in planner.launches(layers, own, chosen.planes or (), device):
            of_planes.append((batch, launch))
            for i in batch:
                rows[i] = planner.rows(layers[i], tile)
    shares = [
        TensorMeta.row_major((count, columns(layer)), torch.float32, device)
        for count, layer in zip(rows, layers, strict=True)
    ]
    normed = [i for i, norm in enumerate(separable.flags(problem)) if norm]
    normalise = _norms(problem, normed) if normed else None
    weighed = [i for i, which in enumerate(wanted) if which & (FILTERS | POINTS)]
    whole = all(wanted[i] & FILTERS and wanted[i] & POINTS for i in weighed)
    add_up = _totals(weighed, layers, shares, wanted, device)
    alone = {i: _totals([i], layers, shares, wanted, device) for i in weighed} if whole else {}

    def call(
        grads: Any,
        xs: Any,
        dw_weights: Any,
        pw_weights: Any,
        ys: Any,
        _strides: Any,
        _paddings: Any,
        _dilations: Any,
        mean: Tensor | None,
        var: Tensor | None,
        *_: Any,
    ) -> tuple[Any, ...]:
        inner = list(grads)
        if normalise is not None:
            for i, made in zip(normed, normalise(grads, ys, mean, var), strict=True):
                inner[i] = made
        sums = [sums_of(dw_weights[i], pw_weights[i]) for i in weighed] if whole else []
        leaves = bool(sums) and all(found is not None for found in sums)
        x_grads, dw_grads, pw_grads = (
            [None if out is None or (leaves and k) else out.empty() for out in outs]
            for k, outs in enumerate(fresh)
        )
        left = [
            meta.empty() if which & (FILTERS | POINTS) else None
            for meta, which in zip(shares, wanted, strict=True)
        ]
        lists = (inner, xs, dw_weights, pw_weights, x_grads, left)
        foreach.run(convolve, *([values[i] for i in some] for values in lists))
        foreach.run(of_planes, *lists)
        if leaves:
            for i, found in zip(weighed, sums, strict=True):
                finish = _finish(alone[i], i, left, fresh)
                weights = (dw_weights[i], pw_weights[i])
                dw_grads[i], pw_grads[i] = found.leave(left[i], weights, finish)  # type: ignore[union-attr, arg-type]  # none is None
        else:
            add_up(left, dw_grads, pw_grads)
        return tuple(x_grads), tuple(dw_grads), tuple(pw_grads)

    return call


def _finish(add_up: Callable[..., None], i: int, left: Made, fresh: Any) -> Callable[[], tuple[Tensor, ...]]:
    """Return what adds up the shares of one convolution."""

    def finish() -> tuple[Tensor, ...]:
        dw_grads: Made = [None] * len(left)
        pw_grads: Made = [None] * len(left)
        dw_grad, pw_grad = dw_grads[i], pw_grads[i] = fresh[1][i].empty(), fresh[2][i].empty()
        add_up(left, dw_grads, pw_grads)
        return dw_grad, pw_grad

    return finish


def _norms(problem: Problem, normed: list[int]) -> Callable[..., list[Tensor]]:
    """Return what makes the gradients of the norms' inputs: ``call(grads, ys, mean, var)``."""
    ys, grads = problem["ys"], problem["grads"]
    fresh = ys[0]
    found = Channels.of(ys[0], grads[normed[0]], fresh)
    tile = found.choose()
    splits = found.splits(tile)

    def launch(entry: str, count: int, width: int) -> Launcher:
        scaled = Span(tile.span * found.width // width, tile.threads)
        return Launch(
            channel_instance(entry, NORM, torch.float32, width, scaled),
            problem.device,
            (splits, found.channels, count),
            tile.threads,
            pointers=3 * ROOM + 3,
            layout=f"3q{CHANNELS}{3 * STRIDES}",
            values=(*found.between, *found.values(width, tile, problem["eps"])),
        )

    def both(begin: int, end: int) -> tuple[int, int, list[Launcher]]:
        count = end - begin
        made = [
            Guarded(launch(entry, count, found.width) if found.width > 1 else None, launch(entry, count, 1))
            for entry in NORMS
        ]
        return begin, end, made

    launches = [both(begin, min(begin + ROOM, len(ys))) for begin in range(0, len(ys), ROOM)]
    shares = TensorMeta.row_major(
        (min(len(ys), ROOM), found.channels, splits, 2), torch.float32, problem.device
    )

    def call(grads: Sequence[Tensor], ys: Sequence[Tensor], mean: Tensor, var: Tensor) -> list[Tensor]:
        made = [fresh.empty() for _ in ys]
        for begin, end, (sums, gradients) in launches:
            spare, left = (None,) * (ROOM - (end - begin)), shares.empty()
            given = (*(grads[i] for i in normed[begin:end]), *spare, *ys[begin:end], *spare)
            statistics = mean[begin:], var[begin:], left
            sums(*given, *(None,) * ROOM, *statistics)
            gradients(*given, *made[begin:end], *spare, *statistics)
        return made

    return call


def _totals(
    which: list[int], layers: Any, shares: Any, wanted: list[int], device: torch.device
) -> Callable[[Made, Made, Made], None]:
    """Return what adds up the shares of some convolutions: ``call(shares, dw_grads, pw_grads)``."""

    def launch(some: list[int]) -> Launcher:
        rows, wholes = zip(*(shares[i].shape for i in some), strict=True)
        splits = [layers[i].x.channels * layers[i].size ** 2 for i in some]
        begins = [0 if wanted[i] & FILTERS else split for i, split in zip(some, splits, strict=True)]
        ends = [
            whole if wanted[i] & POINTS else split
            for i, split, whole in zip(some, splits, wholes, strict=True)
        ]
        firsts = [
            0,
            *accumulate(ceil_div(end - begin, COLUMNS) for begin, end in zip(begins, ends, strict=True)),
        ]
        sizes, channels = zip(*((layers[i].size, layers[i].x.channels) for i in some), strict=True)
        arrays = (rows, wholes, sizes, channels, begins, ends, firsts[:-1])
        return Launch(
            totals(),
            device,
            firsts[-1],
            256,
            4 * 256,
            pointers=3 * ROOM,
            layout=f"{7 * ROOM + 1}i",
            values=(*(n for array in arrays for n in padded(array)), len(some)),
        )

    launches = [
        (some, launch(some)) for at in range(0, len(which), ROOM) for some in (which[at : at + ROOM],)
    ]

    def call(left: Made, dw_grads: Made, pw_grads: Made) -> None:
        foreach.run(launches, left, dw_grads, pw_grads)

    return call


def choose(problem: Problem) -> Group:
    """Return the group for a call."""
    layers = separable.layers(problem)
    group = foreach.choose(layers, problem.device, back=True)
    known = any(p.fits(layer, problem.device, relu=problem["relu"]) for layer in layers for p in PLANNERS)
    return replace(group, planes=()) if known else group


def sweep(problem: Problem) -> Iterator[Group]:
    """Yield the groups worth timing, the chosen one first."""
    first = choose(problem)
    found = foreach.sweep(separable.layers(problem), problem.device, back=True)
    extra = [replace(first, planes=numbers) for numbers in planes.numbers()] if first.planes == () else []
    yield from dict.fromkeys([first, *found, *extra])


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for windows in foreach.APART:
        yield instance(windows, 256)
    yield totals()
    for planner in PLANNERS:
        yield from planner.instances(f"foreach_{planner.BACKWARD}")
    yield from norms(NORM, NORMS)
