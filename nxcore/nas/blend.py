"""The weighted sum of an edge's operations; in a captured call, one operator with the norms that end them."""

import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.errors import FOREIGN, InvalidInputError
from nxcore.graphs.branches import branched
from nxcore.graphs.hooks import hooked, saving
from nxcore.graphs.late import LATE
from nxcore.graphs.raw import Raw
from nxcore.interop import autocast
from nxcore.nas.casts import alike
from nxcore.nas.group import Given, wide_of
from nxcore.nas.group import outputs as grouped
from nxcore.nas.points import layers_of
from nxcore.nn import BatchNorm2d
from nxcore.nn.exchange import awake
from nxcore.nn.modules import track

ENDS = "_nxcore_ends"
"""The attribute of a mixed operation: its operations that end with a norm, each with that norm."""

_torchs: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""The mixed operations whose sums with norms torch would serve."""


def ends_of(twins: Sequence[nn.Module], x: Tensor) -> list[int]:
    """Return the indices of operations that end with a norm.

    Parameters
    ----------
    twins : sequence of Module
        Copies of the operations in training, which a trial may call.
    x : Tensor
        What they are called with.
    """
    return [i for i, twin in enumerate(twins) if _ends_with_norm(twin, x)]


def last_of(op: nn.Module) -> nn.Module:
    """Return the last of an operation's modules."""
    *_, last = op.modules()
    return last


def _ends_with_norm(twin: nn.Module, x: Tensor) -> bool:
    """Return whether the result of an operation is that of its last module, a norm without factors."""
    norm: Any = last_of(twin)
    if awake(norm) is not BatchNorm2d or norm.affine:
        return False
    raw = Raw(twin, norm)
    try:
        wanted, found = twin(x.clone()), raw(x.clone())
        return raw.left is not None and torch.allclose(norm(found), wanted, rtol=1e-9, atol=1e-12)
    except FOREIGN:
        return False


@dataclass(frozen=True)
class Edge:
    """The results of an edge's operations, which are to be added up.

    Attributes
    ----------
    mixed : Module
        The module that holds the operations.
    outputs : list of Tensor
    norms : list
        The norm that each is still to be normalised by, or None.
    weights : Tensor
        One for each.
    half : torch.dtype, optional
        The dtype that the sum is rounded to; None for that of the results.
    """

    mixed: nn.Module
    outputs: list[Tensor]
    norms: list[Any]
    weights: Tensor
    half: torch.dtype | None = None

    def normalised(self) -> list[Tensor]:
        """Return the outputs after their norms."""
        return [y if norm is None else norm(y) for y, norm in zip(self.outputs, self.norms, strict=True)]


def edge_of(
    mixed: nn.Module,
    operations: Sequence[nn.Module],
    known: Sequence[Tensor | None],
    x: Tensor,
    weights: Tensor,
    ends: Mapping[nn.Module, nn.Module],
    *,
    written: bool = False,
) -> Edge:
    """Run the operations of an edge, which ``mixed`` holds, on ``x``, but those whose results are ``known``.

    ``ends`` has the norm of each operation that ends with one; ``written``: an operation writes into ``x``.
    """
    own = [op for op, output in zip(operations, known, strict=True) if output is None]
    norms = {} if written else _norms(mixed, own, ends)
    wide = state_of(mixed, x, written=written)
    given = {} if written else grouped(own, x, _plain if norms else None, wide=wide is not x)
    left = [op for op in own if op not in given]
    run = [Raw(op, norms[op]) if op in norms else op for op in left]
    calls = run if wide is x else [_in_float32(op, one) for op, one in zip(left, run, strict=True)]
    made = branched(calls, wide, written=written, read=bool(given))
    rest = iter(zip(run, made, strict=True))
    found: list[Given] = []
    for op, output in zip(operations, known, strict=True):
        if output is not None:
            found.append(Given(output, None))
        elif op in given:
            found.append(given[op] if op in norms else _whole(given[op]))
        else:
            ran, out = next(rest)
            found.append(Given(out, ran.norm if isinstance(ran, Raw) and ran.left is not None else None))
    outs = [one.out for one in found]
    half = None if wide is x else x.dtype
    return Edge(
        mixed, outs if half is None else alike(outs, wide.dtype), [one.norm for one in found], weights, half
    )


def state_of(mixed: nn.Module, x: Tensor, *, written: bool = False) -> Tensor:
    """Return the state that the operations of an edge read: in float32 where it is under autocast."""
    return x if written or saving() or not joining([mixed]) else wide_of(x)


def _in_float32(op: nn.Module, call: Any) -> Any:
    """Return what calls an operation: 1x1 convolutions without autocast, which would cast what they read."""
    if layers_of(op) is None:
        return call

    def found(x: Tensor) -> Any:
        with autocast.disabled():
            return call(x)

    return found


def _whole(given: Given) -> Given:
    """Return a result after its norm."""
    return Given(given.out if given.norm is None else given.norm(given.out), None)


def total(edges: Sequence[Edge]) -> Tensor:
    """Return the weighted sum of all edges' results: of one shape by one operator, if a kernel was chosen."""
    if len(edges) > 1 and (found := _by_kernel(edges)) is not None:
        return found
    return functools.reduce(torch.add, map(_alone, edges))


def _alone(edge: Edge) -> Tensor:
    """Return the weighted sum of an edge's results."""
    if (found := _by_kernel([edge])) is not None:
        return found
    outputs, blend = edge.normalised(), session.default().op("weighted_sum")
    if torch.compiler.is_compiling():
        return blend(outputs, edge.weights)  # type: ignore[no-any-return]  # it returns a tensor
    try:
        summed: Tensor = blend(outputs, edge.weights)
    except (
        InvalidInputError
    ):  # of several shapes or dtypes, as autocast leaves them: torch broadcasts and casts
        summed = functools.reduce(torch.add, [w * y for w, y in zip(edge.weights, outputs, strict=False)])
    return summed


def joining(mixed: Iterable[nn.Module]) -> bool:
    """Return whether norms are computed with sums now: in a call that is captured, or precedes a capture.

    ``mixed`` are the modules that hold the operations; torch may be known to serve the sums of all of them.
    """
    now = not torch.compiler.is_compiling() and LATE.get() is not None
    return now and not all(module in _torchs for module in mixed)


def _norms(
    mixed: nn.Module, own: Sequence[nn.Module], ends: Mapping[nn.Module, nn.Module]
) -> dict[nn.Module, nn.Module]:
    """Return the norms that may be computed with the sum, by operation: all of one eps."""
    if not joining([mixed]) or saving():
        return {}
    found = {op: ends[op] for op in own if op in ends and _plain(op, ends[op])}
    first: Any = next(iter(found.values()), None)
    return {op: norm for op, norm in found.items() if norm.eps == first.eps}


def _plain(op: nn.Module, norm: Any) -> bool:
    """Return whether a norm normalises by the statistics of its batch alone, and is the operation's last."""
    tracks = norm.track_running_stats and norm.momentum is not None
    return norm.training and tracks and not norm.affine and not hooked(op, norm) and last_of(op) is norm


def _by_kernel(edges: Sequence[Edge]) -> Tensor | None:
    """Return the sum of all results, with their norms, by a kernel; None without a norm."""
    outputs = [y for edge in edges for y in edge.outputs]
    norms = [norm for edge in edges for norm in edge.norms]
    left = [norm for norm in norms if norm is not None]
    if len({norm.eps for norm in left}) != 1:
        return None
    weights = edges[0].weights if len(edges) == 1 else torch.cat([edge.weights for edge in edges])
    args = outputs, weights, tuple(norm is not None for norm in norms), left[0].eps
    try:
        found = _sum().by_kernel(*args)
    except InvalidInputError:
        return None  # the layers raise their own message
    if found is None:
        if len(edges) == 1 and _sum().settled(*args):
            _torchs.add(edges[0].mixed)
        return None
    summed: Tensor = found[0]
    if (waiting := LATE.get()) is not None:
        waiting.norms += len(left)
    for norm, mean, var in zip(left, found[1].unbind(0), found[2].unbind(0), strict=True):
        track(norm, mean, var)
    return summed


@functools.cache
def _sum() -> Any:
    return session.default().op("batch_norm_sum")
