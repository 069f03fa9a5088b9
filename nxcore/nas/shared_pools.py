"""Pools that several edges share: computed once for each source, with every edge's running statistics.

``BN(pool(x))`` without an affine part has no parameters, so in training it is one tensor for all edges that
leave ``x`` with one stride. Only the running statistics differ: those of every module are updated from the
same batch.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nxcore.errors import InvalidInputError
from nxcore.graphs.branches import reader_of
from nxcore.graphs.hooks import hooked
from nxcore.interop.internals import saved_tensor_hooks
from nxcore.nas.pending import version
from nxcore.nn import BatchNorm2d
from nxcore.nn.exchange import awake
from nxcore.nn.modules import batch_norm, track
from nxcore.nn.served import is_compiling

POOLS = (nn.MaxPool2d, nn.AvgPool2d)
NORMS = (nn.BatchNorm2d, BatchNorm2d)


class _Made:
    """A shared output, with the statistics of its batch."""

    def __init__(self, out: Tensor, mean: Tensor | None, var: Tensor | None) -> None:
        self._out, self._mean, self._var = out, mean, var

    def track(self, bn: Any) -> None:
        """Update the running statistics of a norm."""
        if self._mean is not None and self._var is not None:
            track(bn, self._mean, self._var)

    def read(self) -> Tensor:
        """Return the output for one reader more."""
        return reader_of(self._out)


SHARED: ContextVar[tuple[dict[Any, tuple[Tensor, _Made]], Any] | None] = ContextVar(
    "nxcore_shared", default=None
)
"""The pools of the cell's call in progress, by tensor and kind, and the hooks on what it saves."""


@contextlib.contextmanager
def sharing(*, on: bool = True) -> Iterator[None]:
    """Let operations within the block that read one tensor share their pools, or none of them."""
    token = SHARED.set(({}, saved_tensor_hooks()) if on else None)
    try:
        yield
    finally:
        SHARED.reset(token)


def shared(x: Tensor, module: nn.Module) -> Tensor | None:
    """Return the output of a pool that other edges may have computed; None if it isn't shared.

    Parameters
    ----------
    x : Tensor
        The state that the edge reads: the same tensor for all edges that share.
    module : Module
        An operation of the edge. Its running statistics are updated.
    """
    scope = None if type(module) is not nn.Sequential or is_compiling() else SHARED.get()
    key = None if scope is None else _key(module)
    if scope is None or key is None:
        return None
    known, hooks = scope
    if saved_tensor_hooks() != hooks:  # a checkpoint of an edge computes its pools again
        return None
    place = id(x), version(x), key, torch.is_grad_enabled(), torch.is_autocast_enabled(x.device.type)
    pool, bn = module.children()
    if place not in known:
        known[place] = x, _normalised(pool(reader_of(x)), bn)  # the tensor too: its id must stay its own
    made = known[place][1]
    made.track(bn)
    return made.read()


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


def _normalised(x: Tensor, bn: Any) -> _Made:
    """Return the batch norm of ``x``."""
    try:
        return _Made(*batch_norm(x, None, None, bn.eps))
    except InvalidInputError:
        out = functional.batch_norm(x, None, None, training=True, eps=bn.eps)  # torch's own error
        return _Made(out, None, None)
