"""batch_norm: one kernel for the statistics and one for the rest, each of several blocks a channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta
from nxcore_cuda.candidates import KINDS, TYPES
from nxcore_cuda.channel import Channels, Tile, pair, usual
from nxcore_cuda.machine.instance import Instance

ENTRIES = ("batch_norm_moments", "batch_norm_apply")
FINISH = "batch_norm_finish"


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return the launches for one problem.

    Returns
    -------
    callable
        ``call(x, weight, bias, eps)``, which returns ``(y, mean, var)``.
    """
    out, statistic, _ = problem.outputs
    found = Channels.of(problem["x"], out)
    chosen, weight = tile or found.choose(), problem["weight"]
    splits = found.splits(chosen)
    moments, apply = pair(
        problem,
        found,
        chosen,
        source="batch_norm",
        entries=ENTRIES,
        blocks=(splits, splits),
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
        y, mean, var, left = out.empty(), statistic.empty(), statistic.empty(), shares.empty()
        moments(x, None, None, None, None, None, left)
        apply(x, weight, bias, y, mean, var, left)
        return y, mean, var

    return call


def finish(problem: Problem, shares: int) -> Any:
    """Return the launch that normalises x by the moments that so many blocks left of each channel.

    It takes ``(x, weight, bias, y, mean, var, shares)``.
    """
    found, weight = Channels.of(problem["x"], problem.outputs[0]), problem["weight"]
    chosen = found.choose()
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
    yield from Channels.of(problem["x"], problem.outputs[0]).tiles()


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from usual("batch_norm", ENTRIES)
    yield from _instances_backward()


ENTRIES_BACKWARD = ("batch_norm_backward_sums", "batch_norm_backward_apply")


def _channels(problem: Problem) -> Channels:
    x = problem["x"]
    return Channels.of(x, problem["grad"], problem.outputs[0] or x)


def plan_backward(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem.

    Returns
    -------
    callable
        ``call(grad, x, mean, var, weight, eps, output_mask)``, which returns
        ``(x_grad, weight_grad, bias_grad)``.
    """
    outs, weight = problem.outputs, problem["weight"]
    found = _channels(problem)
    chosen = tile or found.choose()
    splits = found.splits(chosen)
    sums, apply = pair(
        problem,
        found,
        chosen,
        source="batch_norm_backward",
        entries=ENTRIES_BACKWARD,
        blocks=(splits, 1 if outs[0] is None else splits),
        pointers=9,
        kind=0 if weight is None else KINDS[weight.dtype],
    )
    shape = (found.channels, splits, 2)
    shares = TensorMeta(shape, (2 * splits, 2, 1), torch.float32, problem.device)

    def call(
        grad: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        results = tuple(None if out is None else out.empty() for out in outs)
        left = shares.empty()
        sums(grad, x, mean, None, None, None, None, None, left)
        apply(grad, x, mean, var, weight, *results, left)
        return results

    return call


def sweep_backward(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from _channels(problem).tiles()


def _instances_backward() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from usual("batch_norm_backward", ENTRIES_BACKWARD)
