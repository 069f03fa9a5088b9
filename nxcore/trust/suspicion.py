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
from nxcore.trust.truth import Truth, widened, without_out

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
        native, seen = (truth.torch, result) if _sure(truth, given) else _finite(truth, result)
        clear = not (changed or first.ok) and bool(strays(spec, given, native, seen, slack=CLEAR))
        return first.reason if clear else ""
    mine = twin(own)
    try:
        again = planned(*mine)
    except RAISED as error:
        if not isinstance(fault := blamed(error), ExitError):
            raise
        return str(fault)
    if bool(differ(spec, mine, own)):
        return INPUTS
    if changed:  # by another thread, or by what the program did next: only the copies count then
        result = again
    first, second = (truth.judge(r, laid_out=False) for r in (result, again))
    if first.ok:
        return ""
    if not _sure(truth, given):
        both = [_finite(truth, r) for r in (result, again)]
        far = all(bool(strays(spec, given, native, r, slack=CLEAR)) for native, r in both)
        return first.reason if far else ""
    if not second.ok:
        return first.reason
    if bool(strays(spec, given, truth.torch, result, slack=CLEAR)):
        return f"{first.reason}; the same inputs again gave the right result"
    return ""


def apart(spec: OpSpec, given: tuple[Any, ...], native: Any, result: Any) -> bool:
    """Return whether a result is clearly not torch's own, in the call's own dtype: no copies are needed."""
    own = tuple(leaves(native))
    scale = own if spec.exact else tuple(leaves(spec.magnitude(*widened(given, half=True))))
    truth = Truth(own, own, scale, max(spec.terms(*given), 1), spec.exact)
    right, seen = (own, result) if _sure(truth, given) else _finite(truth, result)
    return bool(strays(spec, given, right, seen, slack=CLEAR))


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


def _sure(truth: Truth, given: tuple[Any, ...]) -> bool:
    """Return whether special values in a result are the kernel's fault, not the caller's.

    What only moves values has one right result. Elsewhere, if an input is NaN or infinite, or the numbers are
    so large that the order of a sum determines whether it overflows, only ``_finite`` elements count.
    """
    floats = [t for t in leaves(given) if t.is_floating_point()]
    limit = min((torch.finfo(t.dtype).max / 2 for t in truth.torch if t.is_floating_point()), default=1.0)
    return truth.bitwise or (
        all(bool(t.isfinite().all()) for t in floats)
        and all(bool((s.abs() < limit).all()) for s in truth.scale if s.is_floating_point())
    )


def _finite(truth: Truth, result: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return torch's result and the kernel's, with 0 in both where either, or its scale, isn't finite."""
    pairs = zip(truth.torch, leaves(result), truth.scale, strict=True)
    odd = [(t, y, ~(t.isfinite() & y.isfinite() & s.isfinite())) for t, y, s in pairs]
    return tuple(t.masked_fill(o, 0) for t, _, o in odd), tuple(y.masked_fill(o, 0) for _, y, o in odd)
