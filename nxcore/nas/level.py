"""Level: separable convolutions that don't depend on each other, by one call forward and one backward."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nxcore.call.wrappers import preferring
from nxcore.context import PREFERENCE
from nxcore.graphs.branches import one, total
from nxcore.graphs.together import weights_of
from nxcore.interop import autocast
from nxcore.interop.internals import any_autocast, batched
from nxcore.session import default

Window = tuple[int, int, int]
"""Stride, padding and dilation, along both axes."""

Grads = list[Tensor | None]


class Convolution(NamedTuple):
    """A separable convolution, and whether a norm follows.

    Attributes
    ----------
    x : Tensor
        What it is called with; several may read one tensor.
    weights : (Tensor, Tensor)
        Of the depthwise and of the 1x1 convolution.
    window : (stride, padding, dilation)
    normed : bool
        Whether its result is normalised.
    """

    x: Tensor
    weights: tuple[Tensor, Tensor]
    window: Window
    normed: bool


class Outcome(NamedTuple):
    """The results of convolutions, and of those that are normalised the mean and the variance."""

    outs: Sequence[Tensor]
    statistics: Sequence[tuple[Tensor, Tensor] | None]


def convolved(convolutions: Sequence[Convolution], eps: float) -> Outcome | None:
    """Return the results, of one shape, of convolutions after a ReLU each; None if no kernel was chosen.

    One call makes all; it raises ``InvalidInputError`` if the operator doesn't take them.
    """
    xs = [c.x for c in convolutions]
    dws, pws = ([c.weights[i] for c in convolutions] for i in (0, 1))
    windows, normed = tuple(c.window for c in convolutions), tuple(c.normed for c in convolutions)
    args = xs, dws, pws, *zip(*windows, strict=True), normed, True, eps
    with torch.no_grad(), autocast.disabled():  # whoever calls under autocast has cast the tensors
        found = _operator("foreach_sep_conv2d_batch_norm").by_kernel(*args)
    if found is None:
        return None
    _, _, mean, var = found
    each = iter(() if mean is None else zip(mean.unbind(0), var.unbind(0), strict=True))
    distinct = list({id(x): x for x in xs}.values())
    places = {id(x): i for i, x in enumerate(distinct)}
    call = _Call(tuple(places[id(x)] for x in xs), windows, normed, eps)
    read = [weights_of(*c.weights) for c in convolutions]
    outs = _convolve(call, found, *distinct, *(w[0] for w in read), *(w[1] for w in read))
    return Outcome(outs, [next(each) if norm else None for norm in normed])


class _Call:
    """The values that a backward pass needs besides tensors.

    Parameters
    ----------
    places : tuple of int
        The tensor that each convolution reads.
    windows, normed, eps
        As in the operator.
    """

    def __init__(
        self, places: tuple[int, ...], windows: tuple[Window, ...], normed: tuple[bool, ...], eps: float
    ) -> None:
        self.places, self.windows, self.normed, self.eps = places, windows, normed, eps
        order = PREFERENCE.get()  # autograd's thread has no context of the call's
        self.gradients, self.total = preferring(order, _gradients), preferring(order, total)


class _Convolve(torch.autograd.Function):
    """The results of a level, from what its operator returned."""

    @staticmethod
    def forward(ctx: Any, call: _Call, found: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        outs, ys, mean, var = found
        ctx.set_materialize_grads(False)
        ctx.call, ctx.count = call, len(tensors) - 2 * len(outs)
        statistics = () if mean is None else (mean, var)
        ctx.save_for_backward(*tensors, *ys, *statistics)
        for place in range(ctx.count):
            if (readers := call.places.count(place)) > 1:
                one(tensors[place], readers)  # for the sum of their gradients
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        size, count, saved, needs = len(grads), ctx.count, ctx.saved_tensors, ctx.needs_input_grad[2:]
        found: Grads = [None] * len(needs)
        there = [i for i, g in enumerate(grads) if g is not None]  # others are of an edge that wasn't summed
        if not there:
            return None, None, *found
        kept = saved[count + 2 * size :]  # of the norms: what they were called with, means, variances
        norms = list(_rows(call.normed, kept))
        given = [
            _Given(
                grads[i],  # type: ignore[arg-type]  # it is there
                saved[call.places[i]],
                saved[count + i],
                saved[count + size + i],
                call.windows[i],
                norms[i],
                (needs[call.places[i]], needs[count + i], needs[count + size + i]),
            )
            for i in there
        ]
        each = call.gradients(given, call.eps, kept[-2:] if len(there) == size else None)
        of_x: dict[int, list[Tensor]] = {}
        for i, (x_grad, dw_grad, pw_grad) in reversed([*zip(there, each, strict=True)]):  # autograd's order
            found[count + i], found[count + size + i] = dw_grad, pw_grad
            if x_grad is not None:
                of_x.setdefault(call.places[i], []).append(x_grad)
        for place, parts in of_x.items():
            found[place] = parts[0] if len(parts) == 1 else call.total(parts)
        return None, None, *found


_convolve: Any = _Convolve.apply  # untyped in torch


class _Given(NamedTuple):
    """The tensors from which the gradients of one convolution are computed."""

    grad: Tensor
    x: Tensor
    dw: Tensor
    pw: Tensor
    window: Window
    norm: tuple[Tensor, Tensor, Tensor] | None
    mask: tuple[bool, bool, bool]


def _rows(normed: Sequence[bool], saved: Sequence[Tensor]) -> Any:
    """Yield what is kept of each norm: its argument, and the statistics of that."""
    ys = saved[: sum(normed)]
    means, variances = saved[len(ys) :] if ys else ((), ())
    rest = iter(zip(ys, means, variances, strict=True))
    return (next(rest) if norm else None for norm in normed)


def _gradients(given: Sequence[_Given], eps: float, statistics: Sequence[Tensor] | None) -> list[Grads]:
    """Return the gradients of each convolution: of what it read, and of both weights.

    ``statistics`` are those of all norms, stacked; None where some are missing.
    """
    if torch.is_grad_enabled() or any(batched(g.grad) for g in given):
        # They will be differentiated, or have no memory: torch's own functions.
        return [_alone(g, eps, by_reference=True) for g in given]
    if any_autocast():  # which applies to the forward pass only
        with autocast.disabled():
            return _by_operators(given, eps, statistics)
    return _by_operators(given, eps, statistics)


def _by_operators(given: Sequence[_Given], eps: float, statistics: Sequence[Tensor] | None) -> list[Grads]:
    norms = [g.norm for g in given if g.norm is not None]
    if norms and statistics is None:
        statistics = [torch.stack([norm[i] for norm in norms]) for i in (1, 2)]
    found = _operator("foreach_sep_conv2d_batch_norm_backward").by_kernel(
        [g.grad for g in given],
        [g.x for g in given],
        [g.dw for g in given],
        [g.pw for g in given],
        [y for y, _, _ in norms],
        *zip(*(g.window for g in given), strict=True),
        *(statistics if norms and statistics is not None else (None, None)),
        tuple(g.norm is not None for g in given),
        True,
        eps,
        tuple(mask for masks in zip(*(g.mask for g in given), strict=True) for mask in masks),
    )
    if found is None:
        return [_alone(g, eps) for g in given]
    return [list(each) for each in zip(*found, strict=True)]


def _alone(g: _Given, eps: float, *, by_reference: bool = False) -> Grads:
    """Return the gradients of one convolution by operators of its own."""
    op = _operator("sep_conv2d_backward" if g.norm is None else "sep_conv2d_batch_norm_backward")
    run = op.spec.reference if by_reference else op.run
    if g.norm is None:
        return list(run(g.grad, g.x, g.dw, g.pw, *g.window, True, g.mask))
    mask = (*g.mask, False, False)
    return list(run(g.grad, g.x, g.dw, g.pw, *g.norm, None, *g.window, True, eps, mask))[:3]


@functools.cache
def _operator(name: str) -> Any:
    return default().op(name)
