"""Suspicion: whether a suspect call convicts the kernel, or has another cause."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.exits import RAISED, ExitError, blamed
from nxcore.spec.problem import leaves
from nxcore.spec.spec import OpSpec
from nxcore.trust.distance import strays
from nxcore.trust.form import meet, same_bits, spans, twin
from nxcore.trust.truth import Truth, without_out

CLEAR = 4.0
"""The factor on the allowed distance beyond which a result convicts even if it can't be reproduced."""

INPUTS = "inputs must be left unchanged"


def confirmed(
    planned: Callable[..., Any] | None, spec: OpSpec, own: tuple[Any, ...], result: Any, *, changed: bool
) -> str:
    """Return why a suspect is convicted; empty if the caller's own actions may be the cause.

    The kernel runs again on copies of the inputs, which no other thread can write into, and is compared with
    the float64 reference by both gates. A result that can't be reproduced convicts only if it is far off and
    the inputs are unchanged. ``planned`` is None for some rows of a call, which can't run again; ``own`` are
    copies of the arguments from before it. Where an input ``changed`` after the call, or the result since,
    the second run alone counts.
    """
    given = without_out(spec, own)
    truth = Truth.of(spec, given)
    if not truth.judge(truth.torch, laid_out=False).ok:
        return ""  # on these inputs torch's own result is wrong too
    if planned is None:
        first = truth.judge(result, laid_out=False)
        clear = not (changed or first.ok) and _sure(truth, given, result)
        return first.reason if clear and bool(strays(spec, given, truth.torch, result, slack=CLEAR)) else ""
    mine = twin(own)
    try:
        again = planned(*mine)
    except RAISED as error:
        if not isinstance(fault := blamed(error), ExitError):
            raise
        return str(fault)
    if bool(differ(spec, mine, own)):
        return INPUTS
    first, second = (truth.judge(r, laid_out=False) for r in (result, again))
    if changed:  # by another thread, or by what the program did next: only the copies count then
        first, result = second, again
    if first.ok or not _sure(truth, given, result):
        return ""
    if not second.ok:
        return first.reason
    if bool(strays(spec, given, truth.torch, result, slack=CLEAR)):
        return f"{first.reason}; the same inputs again gave the right result"
    return ""


def versions(result: Any) -> tuple[int | None, ...]:
    """Return how often each tensor of a result was written; None where torch doesn't count, in inference."""
    counts = [None if t.is_inference() else t._version for t in leaves(result)]  # noqa: SLF001  no public way
    return tuple(counts)


def out_of(spec: OpSpec, args: tuple[Any, ...]) -> Tensor | None:
    """Return the ``out`` argument, or None."""
    named = zip(spec.params, args, strict=True)
    return next((a for p, a in named if p.kind == "out" and a is not None), None)


def differ(spec: OpSpec, args: tuple[Any, ...], own: tuple[Any, ...]) -> Tensor:
    """Return a tensor of one bool: whether any input except ``out`` differs from its copy."""
    out = out_of(spec, args)
    written = spans([out]) if out is not None else []
    pairs = list(zip(leaves(without_out(spec, args)), leaves(without_out(spec, own)), strict=True))
    device = next((now.device for now, _ in pairs if now.device.type != "cpu"), torch.device("cpu"))
    same = torch.ones((), dtype=torch.bool, device=device)
    rows: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor]]] = {}
    for now, then in pairs:
        if meet(spans([now]), written):
            continue
        if now.is_contiguous() and then.is_contiguous():
            rows.setdefault((now.dtype, now.device), []).append((now, then))
        else:
            same &= same_bits(now, then).to(device)
    for row in rows.values():  # together: each launch takes time
        a, b = (
            torch.cat([t.reshape(-1) for t in ts]) if len(row) > 1 else ts[0] for ts in zip(*row, strict=True)
        )
        same &= same_bits(a, b).to(device)
    return ~same


def restore(args: tuple[Any, ...], own: tuple[Any, ...]) -> None:
    """Restore inputs that a kernel wrote into, without a change that autograd would see."""
    for now, then in zip(leaves(args), leaves(own), strict=True):
        if not bool(same_bits(now, then)):
            with contextlib.suppress(RuntimeError):  # elements that share memory can't be written
                now.data.copy_(then)


def _sure(truth: Truth, given: tuple[Any, ...], result: Any) -> bool:
    """Return whether special values in the result are the kernel's fault, not the caller's.

    What only moves values has one right result. Elsewhere, if an input is NaN or infinite, or the numbers are
    so large that the order of a sum determines whether it overflows, only elements that are finite in both
    results count.
    """
    if truth.bitwise:
        return True
    floats = [t for t in leaves(given) if t.is_floating_point()]
    finite = all(bool(t.isfinite().all()) for t in floats)
    limit = min((torch.finfo(t.dtype).max / 2 for t in truth.torch if t.is_floating_point()), default=1.0)
    if finite and all(bool((s.abs() < limit).all()) for s in truth.scale if s.is_floating_point()):
        return True
    return all(
        y.is_floating_point() and torch.equal(y.isfinite(), t.isfinite())
        for y, t in zip(leaves(result), truth.torch, strict=True)
    )
