"""foreach_sep_conv2d_batch_norm: one launch of all convolutions, then one of all norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem
from nxcore_cuda import foreach, parts_forward, planes_forward, separable, strided_planes_forward
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.channel import CHANNELS, FINISHED, Channels
from nxcore_cuda.channel import Tile as Span
from nxcore_cuda.channel import instance as channel_instance
from nxcore_cuda.foreach import ROOM, Group, Work, padded
from nxcore_cuda.layout import STRIDES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher
from nxcore_cuda.moments import shares_of

SOURCE, NORM = "foreach_sep_conv2d", "foreach_batch_norm"
FINISH = "foreach_batch_norm_finish"


def instance(windows: tuple[int, ...], threads: int, *, moments: bool) -> Instance:
    """Return the kernel of the windows that a launch has, as ``foreach.code`` spells them."""
    return Instance(
        SOURCE,
        (TYPES[torch.float32], moments, *windows),
        threads=threads,
        blocks=foreach.resident(windows, threads),
    )


def tiles(problem: Problem, group: Group) -> list[separable.Tile]:
    """Return the tile of each convolution."""
    return foreach.tiles(separable.layers(problem), problem.device, group, back=False)


def plan(problem: Problem, group: Group | None = None) -> Callable[..., tuple[Any, ...]]:
    """Return the launches for one problem.

    It is called as ``call(xs, dw_weights, pw_weights, ...)``, which returns ``(outs, ys, mean, var)``.
    """
    chosen, device = group or choose(problem), problem.device
    outs, ys, statistic, _ = problem.outputs
    layers, normed = separable.layers(problem), separable.flags(problem)
    known = [
        i
        for i, layer in enumerate(layers)
        if chosen.planes is not None and planes_forward.fits(layer, device)
    ]
    others: list[Any] = [parts_forward, strided_planes_forward]
    of_others = {
        i: planner
        for i, layer in enumerate(layers)
        for planner in others
        if chosen.planes is not None and planner.fits(layer, device, relu=problem["relu"])
    }
    some = [i for i in range(len(layers)) if i not in (*known, *of_others)]
    works = []
    for layer, tile in zip(layers, tiles(problem, chosen), strict=True):
        floats = separable.forward(layer, tile)
        band = separable.values(layer, tile, floats, relu=problem["relu"])
        rows = layer.x.images * layer.bands(tile.band)
        works.append(Work((layer.size, layer.stride, layer.dilation), band, rows, 1, floats.bytes))
    convolve = foreach.launches(
        [works[i] for i in some],
        chosen,
        device,
        5,
        lambda found: instance(found, chosen.threads, moments=any(normed)),
    )
    blocks = [work.rows for work in works]
    by_planes = planes_forward.launches(layers, known, chosen.planes or (), device, relu=problem["relu"])
    for batch, _, own in by_planes:
        for i in batch:
            blocks[i] = planes_forward.blocks(layers[i], own)
    of_planes = [(batch, launch) for batch, launch, _ in by_planes]
    for planner in others:
        which = [i for i in of_others if of_others[i] is planner]
        for batch, launch, own in planner.launches(layers, which, chosen.planes or (), device):
            of_planes.append((batch, launch))
            for i in batch:
                blocks[i] = planner.blocks(layers[i], own)
    leaves = [norm or (any(normed) and i in some) for i, norm in enumerate(normed)]
    left = [
        shares_of(out.shape[1], count, device) if moments else None
        for out, count, moments in zip(outs, blocks, leaves, strict=True)
    ]
    which = [i for i, norm in enumerate(normed) if norm]
    finish = _finish(problem, [blocks[i] for i in which]) if which else []

    def call(xs: Any, dw_weights: Any, pw_weights: Any, *_: Any) -> tuple[Any, ...]:
        results = tuple(out.empty() for out in outs)
        between = tuple(y.empty() for y in ys)
        shares = [None if meta is None else meta.empty() for meta in left]
        mean, var = (None, None) if statistic is None else (statistic.empty(), statistic.empty())
        made: list[Tensor] = list(results)
        for i, y in zip(which, between, strict=True):
            made[i] = y
        lists = (xs, dw_weights, pw_weights, made, shares)
        foreach.run(convolve, *([values[i] for i in some] for values in lists))
        foreach.run(of_planes, *lists)
        for begin, end, launch in finish:
            these = which[begin:end]
            spare = (None,) * (ROOM - len(these))
            launch(
                *(*between[begin:end], *spare),
                *(*(results[i] for i in these), *spare),
                *(*(shares[i] for i in these), *spare),
                *(mean[begin:], var[begin:]),  # type: ignore[index]  # there are norms
            )
        return results, between, mean, var

    return call


def _finish(problem: Problem, shares: list[int]) -> list[tuple[int, int, Launcher]]:
    """Return the launches of the norms by what blocks of the convolutions left, and the norms of each."""
    outs, ys, *_ = problem.outputs
    found = Channels.of(ys[0], outs[separable.flags(problem).index(True)])
    tile = found.choose(FINISHED)

    def launch(begin: int, end: int, width: int) -> Launcher:
        scaled = Span(tile.span * found.width // width, tile.threads)
        return Launch(
            channel_instance(FINISH, NORM, torch.float32, width, scaled),
            problem.device,
            (found.splits(tile), found.channels, end - begin),
            tile.threads,
            pointers=3 * ROOM + 2,
            layout=f"2q{ROOM}i{CHANNELS}{2 * STRIDES}",
            values=(
                *(*found.between, *padded(shares[begin:end])),
                *found.values(width, tile, problem["eps"]),
            ),
        )

    return [
        (
            begin,
            end,
            Guarded(launch(begin, end, found.width) if found.width > 1 else None, launch(begin, end, 1)),
        )
        for begin in range(0, len(ys), ROOM)
        for end in (min(begin + ROOM, len(ys)),)
    ]


def choose(problem: Problem) -> Group:
    """Return the group for a call."""
    layers = separable.layers(problem)
    group = foreach.choose(layers, problem.device, back=False)
    known = any(
        planes_forward.fits(layer, problem.device)
        or parts_forward.fits(layer, problem.device, relu=problem["relu"])
        or strided_planes_forward.fits(layer, problem.device, relu=problem["relu"])
        for layer in layers
    )
    return replace(group, planes=()) if known else group


def sweep(problem: Problem) -> Iterator[Group]:
    """Yield the groups worth timing, the chosen one first."""
    first = choose(problem)
    found = foreach.sweep(separable.layers(problem), problem.device, back=False)
    numbers = planes_forward.numbers() if first.planes == () else ()
    yield from dict.fromkeys([first, *found, *(replace(first, planes=each) for each in numbers)])


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for windows in (*foreach.WINDOWS, *foreach.APART):
        for moments in (False, True):
            yield instance(windows, 256, moments=moments)
    yield from planes_forward.instances(planes_forward.FOREACH)
    yield from parts_forward.instances("foreach_")
    yield from strided_planes_forward.instances(strided_planes_forward.FOREACH)
    yield from norms(NORM, (FINISH,))


def norms(source: str, entries: tuple[str, ...]) -> Iterator[Instance]:
    """Yield the kernels of the norms of common calls."""
    for entry, (width, span) in product(entries, ((4, 256), (4, 512), (4, 1024), (1, 1024))):
        yield channel_instance(entry, source, torch.float32, width, Span(span))
