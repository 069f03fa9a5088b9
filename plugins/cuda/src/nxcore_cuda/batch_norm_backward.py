"""batch_norm_backward: one kernel for a channel's two sums and one for the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta
from nxcore_cuda.candidates import KINDS
from nxcore_cuda.channel import Channels, Tile, pair, usual
from nxcore_cuda.instance import Instance

ENTRIES = ("batch_norm_backward_sums", "batch_norm_backward_apply")


def _channels(problem: Problem) -> Channels:
    x = problem["x"]
    return Channels.of(x, problem["grad"], problem.outputs[0] or x)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor | None, ...]]:
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
        entries=ENTRIES,
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


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from _channels(problem).tiles()


def instances() -> Iterator[Instance]:
    """Yield what ordinary calls want."""
    yield from usual("batch_norm_backward", ENTRIES)
