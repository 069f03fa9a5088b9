"""batch_norm: statistics by one kernel and the rest by another, of several blocks a channel; or a block each.

A block has a channel if it can hold one, and there are enough of these: that is one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta
from nxcore_cuda.candidates import KINDS, TYPES
from nxcore_cuda.channel import FINISHED, UNROLL, Channels, Tile, pair, usual, usual_whole
from nxcore_cuda.machine.instance import Instance

ENTRIES = ("batch_norm_moments", "batch_norm_apply")
FINISH = "batch_norm_finish"
WHOLE, WHOLE_BACKWARD = "batch_norm_whole", "batch_norm_backward_whole"

ENOUGH = 32
"""Channels of which a block each keeps enough multiprocessors busy for one kernel."""


def choose(found: Channels) -> Tile:
    """Return the tile of a call: a block a channel, if there are enough of these, and it can hold one."""
    usual = found.choose()
    if found.channels < ENOUGH:
        return usual
    return min(found.whole(), key=lambda tile: abs(tile.span // tile.threads - UNROLL), default=usual)


def _tiles(found: Channels) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from dict.fromkeys([choose(found), *found.whole(), *found.tiles()])


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return the launches for one problem.

    It is called as ``call(x, weight, bias, eps)``, which returns ``(y, mean, var)``.
    """
    out, statistic, _ = problem.outputs
    found = Channels.of(problem["x"], out)
    chosen, weight = tile or choose(found), problem["weight"]
    splits = found.splits(chosen)
    *moments, apply = pair(
        problem,
        found,
        chosen,
        source="batch_norm",
        entries=(WHOLE,) if chosen.whole else ENTRIES,
        blocks=(1,) if chosen.whole else (splits, splits),
        pointers=7,
        kind=0 if weight is None else KINDS[weight.dtype],
    )
    shape = (found.channels, splits, 2)
    shares = TensorMeta(shape, (2 * splits, 2, 1), torch.float32, problem.device)

    def call(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, var = out.empty(), statistic.empty(), statistic.empty()
        left = shares.empty() if moments else None
        for launch in moments:
            launch(x, None, None, None, None, None, left)
        apply(x, weight, bias, y, mean, var, left)
        return y, mean, var

    return call


def finish(problem: Problem, shares: int) -> Any:
    """Return the launch that normalises x by the moments that so many blocks left of each channel.

    It takes ``(x, weight, bias, y, mean, var, shares)``.
    """
    found, weight = Channels.of(problem["x"], problem.outputs[0]), problem["weight"]
    chosen = found.choose(FINISHED)
    (launch,) = pair(
        problem,
        found,
        chosen,
        source="batch_norm",
        entries=(FINISH,),
        blocks=(found.splits(chosen),),
        pointers=7,
        kind=0 if weight is None else KINDS[weight.dtype],
        shares=shares,
    )
    return launch


def finishing() -> Iterator[Instance]:
    """Yield what ordinary calls of sep_conv2d_batch_norm want."""
    yield from (i for i in usual("batch_norm", (FINISH,)) if i.arguments[0] == TYPES[torch.float32])


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from _tiles(Channels.of(problem["x"], problem.outputs[0]))


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from usual("batch_norm", ENTRIES)
    yield from usual_whole("batch_norm", WHOLE)
    yield from _instances_backward()


ENTRIES_BACKWARD = ("batch_norm_backward_sums", "batch_norm_backward_apply")


def _channels(problem: Problem) -> Channels:
    x = problem["x"]
    return Channels.of(x, problem["grad"], problem.outputs[0] or x)


def plan_backward(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem.

    It is called as ``call(grad, x, mean, var, weight, eps, output_mask)``, which returns ``(x_grad,
    weight_grad, bias_grad)``.
    """
    outs, weight = problem.outputs, problem["weight"]
    found = _channels(problem)
    chosen = tile or choose(found)
    splits = found.splits(chosen)
    both = (splits, 1 if outs[0] is None else splits)
    *sums, apply = pair(
        problem,
        found,
        chosen,
        source="batch_norm_backward",
        entries=(WHOLE_BACKWARD,) if chosen.whole else ENTRIES_BACKWARD,
        blocks=(1,) if chosen.whole else both,
        pointers=9,
        kind=0 if weight is None else KINDS[weight.dtype],
    )
    shape = (found.channels, splits, 2)
    shares = TensorMeta(shape, (2 * splits, 2, 1), torch.float32, problem.device)

    def call(
        grad: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        results = tuple(None if out is None else out.empty() for out in outs)
        left = shares.empty() if sums else None
        for launch in sums:
            launch(grad, x, mean, None, None, None, None, None, left)
        apply(grad, x, mean, var, weight, *results, left)
        return results

    return call


def sweep_backward(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from _tiles(_channels(problem))


def _instances_backward() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from usual("batch_norm_backward", ENTRIES_BACKWARD)
    yield from usual_whole("batch_norm_backward", WHOLE_BACKWARD)
