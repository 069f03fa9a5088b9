"""batch_norm_sum: statistics of all tensors in one launch, then one pass; four gradients a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta
from nxcore_cuda.candidates import FEW, KINDS, SOME, TYPES
from nxcore_cuda.channel import CHANNELS, Channels, Tile
from nxcore_cuda.layout import STRIDES, VECTOR
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher

GROUP = 4  # as in batch_norm_sum_backward.cu
UNROLL = 2  # vectors in flight of one thread and one tensor: registers hold those of four tensors
ENTRIES = ("batch_norm_sum_moments", "batch_norm_sum_apply")
ENTRIES_BACKWARD = ("batch_norm_sum_backward_sums", "batch_norm_sum_backward_apply")


def _instance(entry: str, source: str, dtype: torch.dtype, room: int, width: int, tile: Tile) -> Instance:
    most = max(tile.threads, 256)
    unroll = 1 if tile.span <= tile.threads else UNROLL
    return Instance(
        entry, (TYPES[dtype], room, width, unroll), source, f"{source}_args<{room}>", threads=most
    )


def _launches(
    problem: Problem,
    found: Channels,
    tile: Tile,
    source: str,
    grids: dict[str, tuple[int, int, int]],
    pointers: int,
    head: tuple[str, tuple[Any, ...]],
) -> list[Launcher]:
    """Return each launch, for aligned data and for any; ``head`` is what precedes the channels."""
    room = _room(problem)
    dtype = problem["xs"][0].dtype

    def launch(entry: str, grid: tuple[int, int, int], width: int) -> Launcher:
        scaled = Tile(tile.span * found.width // width, tile.threads)
        return Launch(
            _instance(entry, source, dtype, room, width, scaled),
            problem.device,
            grid,
            tile.threads,
            pointers=pointers,
            layout=f"{head[0]}{CHANNELS}{len(found.between) * STRIDES}",
            values=(*head[1], *found.values(width, tile, problem["eps"])),
        )

    return [
        Guarded(launch(entry, grid, found.width) if found.width > 1 else None, launch(entry, grid, 1))
        for entry, grid in grids.items()
    ]


def _room(problem: Problem) -> int:
    return FEW if len(problem["xs"]) <= FEW else SOME


def _rows(problem: Problem) -> list[int]:
    """Return the row of each tensor's statistics; -1 for one that isn't normalised."""
    numbers, normed = count(), problem["normed"]
    flags = (True,) * len(problem["xs"]) if normed is None else normed
    return [next(numbers) if norm else -1 for norm in flags]


def _padded(numbers: list[int], room: int) -> tuple[int, ...]:
    return (*numbers, *(0,) * (room - len(numbers)))


def _shares(rows: int, channels: int, splits: int, device: torch.device) -> TensorMeta:
    return TensorMeta.row_major((rows, channels, splits, 2), torch.float32, device)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return the launches for one problem.

    Returns
    -------
    callable
        ``call(xs, weights, normed, eps)``, which returns ``(out, means, vars)``.
    """
    xs, weights, (out, statistic, _) = problem["xs"], problem["weights"], problem.outputs
    found, rows, room = Channels.of(xs[0], out), _rows(problem), _room(problem)
    chosen = tile or found.choose()
    splits, which = found.splits(chosen), [i for i, row in enumerate(rows) if row >= 0]
    numbers = (KINDS[weights.dtype], len(xs), *_padded(rows, room), *_padded(which, room))
    moments, apply = _launches(
        problem,
        found,
        chosen,
        "batch_norm_sum",
        {ENTRIES[0]: (splits, found.channels, len(which)), ENTRIES[1]: (splits, found.channels, 1)},
        room + 5,
        (f"3q{len(numbers)}i", (*found.between, weights.strides[0], *numbers)),
    )
    shares = _shares(len(which), found.channels, splits, problem.device)
    spare = (None,) * (room - len(xs))

    def call(xs: Any, weights: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        total, means, variances, left = out.empty(), statistic.empty(), statistic.empty(), shares.empty()
        moments(*xs, *spare, None, None, None, None, left)
        apply(*xs, *spare, weights, total, means, variances, left)
        return total, means, variances

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from Channels.of(problem["xs"][0], problem.outputs[0]).tiles()


def _channels(problem: Problem) -> Channels:
    first = problem["xs"][0]
    out = next((meta for meta in problem.outputs[0] if meta is not None), first)
    return Channels.of(first, problem["grad"], out)


def plan_backward(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Any, Any]]:
    """Return the launches for one problem.

    Returns
    -------
    callable
        ``call(grad, xs, weights, means, vars, normed, eps, output_mask)``, which returns
        ``(xs_grad, weights_grad)``.
    """
    xs, weights, (outs, last) = problem["xs"], problem["weights"], problem.outputs
    found, rows, room = _channels(problem), _rows(problem), _room(problem)
    chosen = tile or found.choose()
    splits = found.splits(chosen)
    grid = (splits, found.channels, -(-len(xs) // GROUP))
    numbers = (KINDS[weights.dtype], len(xs), *_padded(rows, room))
    sums, apply = _launches(
        problem,
        found,
        chosen,
        "batch_norm_sum_backward",
        dict.fromkeys(ENTRIES_BACKWARD, grid),
        2 * room + 6,
        (f"4q{len(numbers)}i", (*found.between, weights.strides[0], *numbers)),
    )
    shares = _shares(len(xs), found.channels, splits, problem.device)
    spare, none = (None,) * (room - len(xs)), (None,) * room

    def call(
        grad: Tensor, xs: Any, weights: Tensor, means: Tensor, variances: Tensor, *_: Any
    ) -> tuple[Any, Any]:
        results = tuple(None if meta is None else meta.empty() for meta in outs)
        dots, left = None if last is None else last.empty(), shares.empty()
        sums(*xs, *spare, *none, grad, None, means, None, None, left)
        apply(*xs, *spare, *results, *spare, grad, weights, means, variances, dots, left)
        return results, dots

    return call


def sweep_backward(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from _channels(problem).tiles()


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    sources = (("batch_norm_sum", ENTRIES), ("batch_norm_sum_backward", ENTRIES_BACKWARD))
    for (source, entries), room in product(sources, (FEW, SOME)):
        for width in (1, VECTOR // torch.float32.itemsize):
            for span in (256, 512) if width > 1 else (512,):
                for entry in entries:
                    yield _instance(entry, source, torch.float32, room, width, Tile(span))
