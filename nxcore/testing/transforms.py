"""Transforms of torch: each transform of a call agrees with the same transform of the reference.

The operator is called as a user calls it, with the cell's backend preferred. If a transform passes arguments
that no kernel may take, the reference must run. Checked once for each kernel, on its smallest smoke sample.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from nxcore.call.operator import Operator
from nxcore.registry.registry import Registry
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import leaves
from nxcore.testing.cell import Broken, Cell, Inapplicable
from nxcore.testing.rules import Rule
from nxcore.trust.memory import each
from nxcore.trust.truth import without_out

TOLERANCE = 2e-3
"""Tolerance of a transform in float32, relative to its largest number; the order of sums may differ."""

ROWS = 3
"""Rows of a batch."""

Function = Callable[..., Tensor]
Transform = Callable[[Function, tuple[Tensor, ...]], Any]


def jvp(f: Function, xs: tuple[Tensor, ...]) -> Any:
    """Differentiate in forward mode."""
    return torch.func.jvp(f, xs, _like(xs))[1]


def vmap(f: Function, xs: tuple[Tensor, ...]) -> Any:
    """Map over a batch."""
    return torch.func.vmap(f)(*(torch.stack([x, x.flip(0) if x.ndim else x]) for x in xs))


def differentiable_batched_gradient(f: Function, xs: tuple[Tensor, ...]) -> Any:
    """Differentiate a batched gradient again."""
    y = f(*xs)
    grads = torch.stack([_numbers(y, row) for row in range(ROWS)])
    first = torch.autograd.grad(y, xs, grads, is_grads_batched=True, create_graph=True, allow_unused=True)
    total = sum((g.square().sum() for g in first if g is not None), 0 * xs[0].sum())
    return first, torch.autograd.grad(total, xs, allow_unused=True)


def mapped_gradient(f: Function, xs: tuple[Tensor, ...]) -> Any:
    """Map the backward pass of an earlier call over a batch of gradients."""
    y = f(*xs)
    grads = torch.stack([_numbers(y, row) for row in range(ROWS)])

    def back(grad: Tensor) -> tuple[Tensor, ...]:
        return _given(torch.autograd.grad(y, xs, grad, retain_graph=True, allow_unused=True))

    return torch.func.vmap(back)(grads)


def traced_gradient(f: Function, xs: tuple[Tensor, ...]) -> Any:
    """Trace forward and backward by ``torch.jit.trace``, and run on other numbers."""
    traced = torch.jit.trace(lambda *xs: _gradient(f, *xs), xs, check_trace=False)
    return traced(*_others(xs))


def graph(f: Function, xs: tuple[Tensor, ...]) -> Any:
    """Trace forward and backward by ``make_fx``, and run on other numbers."""
    return make_fx(functools.partial(_gradient, f))(*xs)(*_others(xs))


def exported(f: Function, xs: tuple[Tensor, ...]) -> Any:
    """Export, and run on other numbers."""
    others = tuple(t.detach() for t in _others(xs))
    return torch.export.export(_Module(f), tuple(t.detach() for t in xs)).module()(*others)


TRANSFORMS: tuple[Transform, ...] = (
    jvp,
    vmap,
    differentiable_batched_gradient,
    mapped_gradient,
    traced_gradient,
    graph,
    exported,
)
"""The transforms that are checked."""


class Call:
    """An operator as a function of its floating tensors; the other arguments are fixed.

    Attributes
    ----------
    operator : callable
        Takes the operator's arguments, all positional.
    args : tuple
        The arguments of the call.
    """

    def __init__(self, operator: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.operator, self.args = operator, args

    def __call__(self, *xs: Tensor) -> Tensor:
        """Return the first tensor of the result."""
        left: Iterator[Tensor] = iter(xs)
        args = each(self.args, lambda t: next(left) if t.is_floating_point() else t)
        return next(t for t in leaves(self.operator(*args)) if t.is_floating_point())


class _Called:
    """An operator, called as a user does: by keyword what can't be given by position."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.names = tuple(p.name for p in operator.spec.params if p.keyword)

    def __call__(self, *args: Any) -> Any:
        """Call the operator."""
        first = len(args) - len(self.names)
        return self.operator(*args[:first], **dict(zip(self.names, args[first:], strict=True)))


class _Module(torch.nn.Module):
    def __init__(self, f: Function) -> None:
        super().__init__()
        self.f = f

    def forward(self, *xs: Tensor) -> Tensor:
        return self.f(*xs)


def _gradient(f: Function, *xs: Tensor) -> tuple[Tensor, ...]:
    xs = tuple(x if x.requires_grad else x.detach().requires_grad_() for x in xs)
    y = f(*xs)
    return (y, *_given(torch.autograd.grad(_loss(y), xs, allow_unused=True)))


def _loss(y: Tensor) -> Tensor:
    # Weighted: the plain sum of squares of a normalised image has a gradient of rounding errors only.
    return (y * _numbers(y)).square().sum()


def _given(grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    return tuple(g for g in grads if g is not None)


def _numbers(like: Tensor, seed: int = 0) -> Tensor:
    # From a formula, because a trace would draw random numbers again.
    count = torch.arange(1, like.numel() + 1, dtype=like.dtype, device=like.device)
    return (count * (0.9 + 0.1 * seed)).sin().view(like.shape)


def _like(xs: tuple[Tensor, ...], seed: int = 0) -> tuple[Tensor, ...]:
    return tuple(_numbers(x, seed + i) for i, x in enumerate(xs))


def _others(xs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple((x.detach() * 0.75).requires_grad_(x.requires_grad) for x in xs)


@functools.lru_cache(maxsize=4)
def _session(registry: Registry, settings: Settings) -> Session:
    return Session(replace(settings, policy="frozen"), registry)


def under(transform: Transform, cell: Cell) -> None:
    """Agree with the reference under a transform of torch, with the cell's backend preferred.

    Raises
    ------
    Broken
        Of a rule named as the transform.
    Inapplicable
        If the kernel is simulated here or runs on request only; or if torch can't transform the reference,
        with torch's reason.
    """
    if cell.machine.simulated:
        raise Inapplicable("simulated: it is checked where it is compiled")
    if cell.backend.on_request:
        raise Inapplicable(f"only on request: {cell.backend.on_request}")
    one, name = cell.smallest(), transform.__name__
    args = without_out(one.spec, one.build())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates some of these
        try:
            want = list(_flat(transform(*_differentiated(one.spec.reference, args))))
        except Exception as error:  # torch raises many types
            raise Inapplicable(f"torch can't apply {name} to the reference: {_first_line(error)}") from error
        session = _session(cell.registry, Settings.from_environment())
        with session.use(cell.backend.name):
            try:
                function, xs = _differentiated(_Called(session.op(one.spec.name)), args)
                # Its plan is known from here on, and a transform must not find it where it doesn't fit.
                function(*xs)
                got = list(_flat(transform(function, xs)))
            except Exception as error:
                raise Broken(name, f"raised {type(error).__name__}: {_first_line(error)}") from error
    if len(got) != len(want):
        raise Broken(name, f"expected {len(want)} tensors as from the reference, got {len(got)}")
    for mine, torchs in zip(got, want, strict=True):
        if reason := _difference(mine, torchs):
            raise Broken(name, reason)


def _rule(transform: Transform) -> Rule:
    def rule(cell: Cell) -> None:
        under(transform, cell)

    rule.__name__, rule.__doc__ = transform.__name__, transform.__doc__
    return rule


UNDER: tuple[Rule, ...] = tuple(map(_rule, TRANSFORMS))
"""Rules checked once for each kernel, in addition to those of ``examine``, which call the kernel directly."""


def _differentiated(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Call, tuple[Tensor, ...]]:
    """Return a call as a function of its floating tensors, and copies of these that need a gradient."""
    fresh = leaves(each(args, lambda t: t.detach().clone()))
    return Call(function, args), tuple(t.requires_grad_() for t in fresh if t.is_floating_point())


def _difference(got: Tensor | None, want: Tensor | None) -> str:
    """Return how a tensor differs from torch's; None counts as zeros."""
    if got is None or want is None:
        there = want if got is None else got
        return (
            ""
            if there is None or not bool(there.any())
            else "a gradient is missing in one of the two results"
        )
    scale = float(want.abs().max()) if want.numel() else 0.0
    try:
        torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE * max(scale, 1e-6))
    except AssertionError as error:
        return f"differs from the reference's: {_first_line(error)}"
    return ""


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300] if lines else repr(error)


def _flat(result: Any) -> Iterator[Tensor | None]:
    if isinstance(result, tuple | list):
        for item in result:
            yield from _flat(item)
    else:
        yield None if result is None else result.detach()
