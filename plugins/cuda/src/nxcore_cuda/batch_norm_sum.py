"""batch_norm_sum: statistics of all tensors in one launch, then one pass; four gradients a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta
from nxcore_cuda.candidates import FEW, KINDS, SOME, TYPES
from nxcore_cuda.channel import CACHED, CHANNELS, LAST, MOST, ONCE, UNROLL, Channels
from nxcore_cuda.channel import Tile as Span
from nxcore_cuda.layout import STRIDES, VECTOR
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher

GROUP = 4  # as in batch_norm_sum_backward.cu
ENTRIES = ("batch_norm_sum_moments", "batch_norm_sum_apply")
ENTRIES_BACKWARD = ("batch_norm_sum_backward_sums", "batch_norm_sum_backward_apply")

FULL = 1056
"""Blocks of a first kernel that fill a large GPU: eight for each of 132 multiprocessors.

A constant, not the device's own count, so that a sum has the same bits on every device.
"""


@dataclass(frozen=True)
class Pass:
    """How the blocks of one of the two kernels share a channel.

    Attributes
    ----------
    span : int
        Vectors of a block.
    threads : int
        Of a block.
    unroll : int
        Vectors in flight of one thread and one tensor.
    loads : int
        How images are loaded, as ``channel.cuh`` numbers it.
    """

    span: int
    threads: int
    unroll: int
    loads: int


@dataclass(frozen=True)
class Tile:
    """The passes of both kernels."""

    first: Pass
    second: Pass


def _instance(
    entry: str, source: str, dtype: torch.dtype, room: int, width: int, own: Pass, near: bool
) -> Instance:
    return Instance(
        entry,
        (TYPES[dtype], room, width, own.unroll if near else 1, near, own.loads),
        source,
        f"{source}_args<{room}>",
        threads=max(own.threads, 256),
    )


def _launches(
    problem: Problem,
    found: Channels,
    tile: Tile,
    source: str,
    items: dict[str, int],
    pointers: int,
    between: tuple[int, ...],
    numbers: tuple[int, ...],
) -> list[Launcher]:
    """Return both launches, for aligned data and for any.

    Parameters
    ----------
    items : dict of str to int
        The items of each entry's grid.
    between, numbers : tuple of int
        Of the kernels' arguments.
    """
    room, shares = _room(problem), splits(found, tile.first)

    def launch(entry: str, number: int, own: Pass, width: int, most: int) -> Launcher:
        if width < found.width:  # a thread has as many elements, so more vectors
            own = replace(own, unroll=most)
        return Launch(
            _instance(entry, source, problem["xs"][0].dtype, room, width, own, found.near(width)),
            problem.device,
            (number, splits(found, own), found.channels),
            own.threads,
            pointers=pointers,
            layout=f"{len(between)}q{len(numbers)}i{CHANNELS}{len(found.between) * STRIDES}",
            values=(
                *(*between, *numbers),
                *found.values(width, Span(own.span, own.threads), problem["eps"], shares),
            ),
        )

    def guarded(entry: str, number: int, own: Pass, most: int) -> Launcher:
        vector = launch(entry, number, own, found.width, most) if found.width > 1 else None
        return Guarded(vector, launch(entry, number, own, 1, most))

    (first, many), (second, few) = items.items()
    return [guarded(first, many, tile.first, 4), guarded(second, few, tile.second, 2)]


def splits(found: Channels, own: Pass) -> int:
    """Return how many blocks share a channel."""
    return found.splits(Span(own.span, own.threads))


def _room(problem: Problem) -> int:
    return FEW if len(problem["xs"]) <= FEW else SOME


def _rows(problem: Problem) -> list[int]:
    """Return the row of each tensor's statistics; -1 for one that isn't normalised."""
    numbers, normed = count(), problem["normed"]
    flags = (True,) * len(problem["xs"]) if normed is None else normed
    return [next(numbers) if norm else -1 for norm in flags]


def _padded(numbers: list[int], room: int) -> tuple[int, ...]:
    return (*numbers, *(0,) * (room - len(numbers)))


def _pass(found: Channels, vectors: int, loads: int) -> Pass:
    """Return the pass in which a thread has so many vectors, or as many as a channel has for it."""
    terms, threads = found.count // found.width, found.choose().threads
    least = -(-terms // (MOST * threads))
    vectors = max(min(vectors, -(-terms // threads)), least)
    return Pass(vectors * threads, threads, min(vectors, UNROLL), loads)


def _first(found: Channels, items: int, loads: int) -> Pass:
    """Return the pass of a first kernel: its blocks have much, and are enough to fill the device."""
    blocks = -(-FULL // (items * found.channels))
    vectors = -(-found.count // (found.width * found.choose().threads * blocks))
    whole = 1 << (vectors.bit_length() - 1)  # no block is to have a rest
    return _pass(found, min(max(whole, 2), 8), loads)


def _near(found: Channels, first: Pass, second: Pass) -> Iterator[Tile]:
    """Yield the tiles worth timing beside one."""
    tile = Tile(first, second)
    yield tile
    yield from (replace(tile, first=replace(first, loads=loads)) for loads in (CACHED, ONCE))
    yield from (replace(tile, second=replace(second, loads=loads)) for loads in (CACHED, ONCE, LAST))
    yield from (replace(tile, first=_pass(found, n, first.loads)) for n in (2, 4, 8, 16))
    yield from (replace(tile, second=_pass(found, n, second.loads)) for n in (1, 2, 4))


def _forward(problem: Problem) -> tuple[Channels, Pass, Pass]:
    found = Channels.of(problem["xs"][0], problem.outputs[0])
    norms = sum(row >= 0 for row in _rows(problem))
    usual = found.choose()
    return found, _first(found, norms, CACHED), _pass(found, usual.span // usual.threads, LAST)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return the launches for one problem.

    It is called as ``call(xs, weights, normed, eps)``, which returns ``(out, means, vars)``.
    """
    xs, weights, (out, statistic, _) = problem["xs"], problem["weights"], problem.outputs
    found, first, second = _forward(problem)
    chosen, rows, room = tile or Tile(first, second), _rows(problem), _room(problem)
    which = [i for i, row in enumerate(rows) if row >= 0]
    moments, apply = _launches(
        problem,
        found,
        chosen,
        "batch_norm_sum",
        {ENTRIES[0]: len(which), ENTRIES[1]: 1},
        room + 5,
        (*found.between, weights.strides[0]),
        (KINDS[weights.dtype], len(xs), *_padded(rows, room), *_padded(which, room)),
    )
    shape = (len(which), found.channels, splits(found, chosen.first), 4)
    shares = TensorMeta.row_major(shape, torch.float32, problem.device)
    spare = (None,) * (room - len(xs))

    def call(xs: Any, weights: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        total, means, variances, left = out.empty(), statistic.empty(), statistic.empty(), shares.empty()
        moments(*xs, *spare, None, None, None, None, left)
        apply(*xs, *spare, weights, total, means, variances, left)
        return total, means, variances

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from dict.fromkeys(_near(*_forward(problem)))


def _backward(problem: Problem) -> tuple[Channels, Pass, Pass]:
    first = problem["xs"][0]
    out = next((meta for meta in problem.outputs[0] if meta is not None), first)
    found = Channels.of(first, problem["grad"], out)
    return found, _first(found, -(-len(problem["xs"]) // GROUP), CACHED), _pass(found, 2, CACHED)


def plan_backward(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Any, Any]]:
    """Return the launches for one problem.

    It is called as ``call(grad, xs, weights, means, vars, normed, eps, output_mask)``, which returns
    ``(xs_grad, weights_grad)``.
    """
    xs, weights, (outs, last) = problem["xs"], problem["weights"], problem.outputs
    found, first, second = _backward(problem)
    chosen, room = tile or Tile(first, second), _room(problem)
    sums, apply = _launches(
        problem,
        found,
        chosen,
        "batch_norm_sum_backward",
        dict.fromkeys(ENTRIES_BACKWARD, -(-len(xs) // GROUP)),
        2 * room + 6,
        (*found.between, weights.strides[0]),
        (KINDS[weights.dtype], len(xs), *_padded(_rows(problem), room)),
    )
    shape = (len(xs), found.channels, splits(found, chosen.first), 2)
    shares = TensorMeta.row_major(shape, torch.float32, problem.device)
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
    yield from dict.fromkeys(_near(*_backward(problem)))


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    sources = (("batch_norm_sum", ENTRIES), ("batch_norm_sum_backward", ENTRIES_BACKWARD))
    for (source, (first, second)), room in product(sources, (FEW, SOME)):
        loads = LAST if source == "batch_norm_sum" else CACHED
        for width in (1, VECTOR // torch.float32.itemsize):
            own = Pass(1024, 256, 2 if width > 1 else 4, CACHED)
            yield _instance(first, source, torch.float32, room, width, own, True)
            for unroll in (1, 2) if width > 1 else (2,):
                own = Pass(1024, 256, unroll, loads)
                yield _instance(second, source, torch.float32, room, width, own, True)
