"""Pools that several edges share: computed once for each source, with every edge's running statistics.

``BN(pool(x))`` without an affine part has no parameters, so in training it is one tensor for all edges that
leave ``x`` with one stride. Only the running statistics differ: those of every module are updated from the
same batch.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from nxcore.errors import InvalidInputError
from nxcore.graphs.hooks import hooked
from nxcore.graphs.late import late
from nxcore.nn import BatchNorm2d
from nxcore.nn.exchange import awake
from nxcore.nn.modules import batch_norm, track
from nxcore.nn.served import is_compiling

POOLS = (nn.MaxPool2d, nn.AvgPool2d)
NORMS = (nn.BatchNorm2d, BatchNorm2d)

Place = tuple[int, int]
"""The row of an edge, and the index of an operation on it."""


def pooled(x: Tensor, candidates: Iterable[tuple[Place, nn.Module]]) -> dict[int, dict[int, Tensor]]:
    """Return the outputs of the pools that can be shared, by edge and operation.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W): the state that all candidates read.
    candidates : iterable of ((int, int), Module)
        Operations that read ``x`` in this step, of any kind. Shared are those that are a ``Sequential`` of a
        pool and a ``BatchNorm2d`` in training, without an affine part and hooks, that tracks its statistics
        with a momentum. The values of running statistics do not matter: training only updates them.

    Returns
    -------
    dict of int to dict of int to Tensor
        The shared outputs; the edge computes the others.
    """
    groups: defaultdict[Any, list[tuple[Place, Any]]] = defaultdict(list)
    for place, module in candidates:
        if (key := _key(module)) is not None:
            groups[key].append((place, module))
    outputs: defaultdict[int, dict[int, Tensor]] = defaultdict(dict)
    for members in groups.values():
        pool = members[0][1][0]
        out = _normalised(pool(x), [bn for _, (_, bn) in members])
        for (row, i), _ in members:
            outputs[row][i] = out
    return outputs


def _key(module: Any) -> Any:
    """Return a key that is equal for candidates with the same output; None for one that cannot be shared."""
    if type(module) is not nn.Sequential or len(module) != 2:
        return None
    parts: list[Any] = list(module)
    pool, bn = parts
    if not isinstance(pool, POOLS) or awake(bn) not in NORMS or hooked(module, pool, bn):
        return None
    # Without a momentum, torch waits for the device to read the count of batches.
    tracks = bn.training and bn.track_running_stats and bn.momentum is not None
    if not tracks or bn.affine or bn.running_mean is None:
        return None
    constants = tuple(getattr(pool, name) for name in type(pool).__constants__)
    return awake(pool), constants, bn.eps, bn.momentum, bn.running_mean.dtype


def _normalised(x: Tensor, norms: list[Any]) -> Tensor:
    """Return the batch norm of ``x``; update the running statistics of all ``norms``."""
    first = norms[0]
    out: Tensor
    try:
        out, mean, var = batch_norm(x, None, None, first.eps)
    except InvalidInputError:
        return functional.batch_norm(x, None, None, training=True, eps=first.eps)  # torch's own error
    with contextlib.nullcontext() if is_compiling() else late():
        for bn in norms:
            track(bn, mean, var)
    return out
