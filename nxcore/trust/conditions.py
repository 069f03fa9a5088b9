"""Conditions: what the key of a plan doesn't distinguish, and a kernel must therefore be right under.

A plan serves calls whose tensors lie at any address, may be one and the same, come from another thread or
within inference mode, and hold any number. A sample is built in one way; so a kernel is run on one in each of
the others.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import FOREIGN
from nxcore.registry.registry import Registry
from nxcore.spec.device import current
from nxcore.spec.exits import RAISED, blamed
from nxcore.spec.problem import Problem, leaves
from nxcore.spec.spec import OpSpec
from nxcore.trust.form import form, misformed, spans
from nxcore.trust.memory import WALL, Guarded, Walls, bits, each, same
from nxcore.trust.truth import Truth, without_out

Call = Callable[..., Any]
Run = Callable[[Call, tuple[Any, ...]], Any]

ODD = WALL + 1
"""Elements of a wall: behind it, a tensor is aligned to one element alone."""

LARGE, LARGE_HALF = 1_000_000, 3000
"""Factors on a number, and in float16, whose largest number is 65504."""


@dataclass(frozen=True)
class Variant:
    """The arguments of a sample in another form, for the same plan.

    Attributes
    ----------
    what : str
        How they differ.
    args : tuple
    truth : Truth
        Their own.
    """

    what: str
    args: tuple[Any, ...]
    truth: Truth


@torch.no_grad()
def unheld(
    call: Call, args: tuple[Any, ...], truth: Truth, others: tuple[Variant, ...] | None, *, odd: bool = True
) -> str:
    """Return the condition under which a kernel is wrong, and how; empty if there is none.

    Parameters
    ----------
    call : callable
        The kernel's plan for ``args``.
    args : tuple
        The arguments of a sample without an ``out``.
    truth : Truth
        The right result.
    others : tuple of Variant, optional
        See ``variants``. None for a further sample of an operator, which is moved in memory alone.
    odd : bool
        Whether inputs lie at odd addresses, where functions of torch can end a CUDA context.
    """
    if others is None:
        return guarded(call, args, truth, wall=1 if odd else WALL)
    device = next((t.device for t in leaves(args) if t.device.type != "cpu"), torch.device("cpu"))
    result = call(*args)
    if why := _wrong(truth, args, result):
        return why
    known = _known(result)
    if why := guarded(call, args, truth, wall=ODD if odd else WALL, known=known):
        return why
    where: dict[str, Run] = {
        "in another thread, on tensors that require a gradient": functools.partial(_elsewhere, device),
        **({"on a stream of its own": _beside} if device.type == "cuda" else {}),
    }
    given = list(leaves((args, *(other.args for other in others))))
    before = bits(given)
    fresh = functools.partial(_within, Guarded(fill=torch.nan, walled=False), call)
    for what, run in where.items():
        if why := _wrong(truth, args, run(fresh, args), known):
            return f"{what}: {why}"
    with torch.inference_mode():
        if why := _wrong(truth, args, fresh(*args), known):
            return f"in inference mode: {why}"
    for other in others:
        if why := _wrong(other.truth, other.args, fresh(*other.args)):
            return f"{other.what}: {why}"
    if not same(before, bits(given)):
        return "an input must be left unchanged, in another thread and in inference mode too"
    return ""


def _within(guard: Guarded, call: Call, *args: Any) -> Any:
    """Call with guards, or NaN, in new memory: what it held before may be the right result."""
    if not _guardable():
        return call(*args)
    try:
        with _uncompiled(), guard:
            return call(*args)
    except FOREIGN:  # a kernel may not run in a dispatch mode
        guard.blocks.clear()
        return call(*args)


def guarded(call: Call, args: tuple[Any, ...], truth: Truth, *, wall: int, known: Any = None) -> str:
    """Return how a kernel is wrong on inputs at other addresses, or which memory beside them it writes.

    Inputs are between walls, results between guards, and new memory holds NaN.
    """
    walls, guard = Walls(args, wall, 3.0), Guarded(fill=torch.nan)
    result = _within(guard, call, *walls.args)
    if walls.changed:
        return "an input must be left unchanged, and the memory beside it"
    if guard.scratched:
        return "memory beside a result must be left unchanged"
    why = _wrong(truth, args, result, known, stored=not guard.blocks)
    where = "other" if wall == WALL else "odd"
    return f"on inputs at {where} addresses: {why}" if why else ""


def _guardable() -> bool:
    """Return whether results may have guards: dynamo gives up what it meets in a mode, unless it is off.

    That is for all threads, so a thread beside the program doesn't.
    """
    return "torch._dynamo" not in sys.modules or threading.current_thread() is threading.main_thread()


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Have what torch compiled run as it is written."""
    known = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if known else contextlib.nullcontext()


def _wrong(
    truth: Truth,
    args: tuple[Any, ...],
    result: Any,
    known: Any = None,
    *,
    stored: bool = True,
) -> str:
    """Return how a result is wrong; one that equals what is ``known`` to be right needs no other look."""
    if known is None or not _same(_known(result), known):
        found = truth.judge(result)
        if not found.ok:
            return found.reason
    return misformed(tuple(leaves(result)), form(truth.torch, spans(list(leaves(args))))) if stored else ""


def _known(result: Any) -> Any:
    """Return what the tensors of a result are, and their bits."""
    return [(t.shape, t.dtype, t.device) for t in leaves(result)], bits(leaves(result))


def _same(one: Any, other: Any) -> bool:
    return one[0] == other[0] and same(one[1], other[1])


def _elsewhere(device: torch.device, call: Call, args: tuple[Any, ...]) -> Any:
    """Run in another thread, and wait for it and the device."""
    given = each(args, lambda t: t.detach().requires_grad_(t.is_floating_point()))
    found: list[Any] = []

    def wait() -> None:  # not for the whole device, which would end a capture beside
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    def run() -> None:
        try:
            with torch.no_grad(), current(device):
                found.append(call(*given))
                wait()
        except RAISED as error:  # raised again in the thread that waits
            found.append(blamed(error))

    wait()
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="nxcore verifies")
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _beside(call: Call, args: tuple[Any, ...]) -> Any:
    """Run on another stream of CUDA, before which the inputs are ready, and after which nothing waits."""
    here, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        result = call(*args)
    here.wait_stream(stream)
    return result


def variants(spec: OpSpec, args: tuple[Any, ...], problem: Problem) -> tuple[Variant, ...]:
    """Return other arguments for the plan of ``problem``: equal tensors as one, and numbers of other sizes.

    One whose result torch itself can't compute within the gates is left out.
    """
    found = []
    for what, given in (*_aliased(spec, args, problem), *_sized(spec, args)):
        truth = Truth.of(spec, given)
        finite = all(bool(y.isfinite().all()) for y in truth.exact if y.is_floating_point())
        if finite and truth.judge(truth.torch).ok:
            found.append(Variant(what, given, truth))
    return tuple(found)


def _aliased(spec: OpSpec, args: tuple[Any, ...], problem: Problem) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the arguments with the first of several equally described tensors in place of the others."""
    bound = spec.sketches(*problem.args)  # the values of these are constrained
    first: dict[Any, Tensor] = {}
    again = False

    def one(tensor: Tensor) -> Tensor:
        nonlocal again
        place = (tensor.shape, tensor.stride(), tensor.dtype)
        again |= place in first
        return first.setdefault(place, tensor)

    given = tuple(
        a if p.name in bound or p.kind == "out" else each(a, one)
        for p, a in zip(spec.params, args, strict=True)
    )
    if again:
        yield "on arguments that are one tensor", given


def _sized(spec: OpSpec, args: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the arguments with large and small numbers."""
    large = LARGE_HALF if any(t.dtype is torch.float16 for t in leaves(args)) else LARGE
    for factor, what in ((large, "large"), (1 / large, "small")):
        given = tuple(
            type(a)(a * factor) if p.kind in ("scalar", "operand") and type(a) in (int, float) else a
            for p, a in zip(spec.params, args, strict=True)
        )
        if any(g is not a for g, a in zip(given, args, strict=True)):
            yield f"with {what} numbers", given


@functools.lru_cache(maxsize=256)
def varied(
    op: str, name: str, device: torch.device, dtype: torch.dtype, registry: Registry
) -> tuple[Variant, ...]:
    """Return the variants of a sample, shared by an operator's kernels."""
    spec = registry.spec(op)
    args = next(s for s in spec.samples if s.name == name).build(spec, device, dtype)
    return variants(spec, args, Problem.of(spec, args))


def whole(spec: OpSpec, args: tuple[Any, ...]) -> bool:
    """Return whether a sample has results to compare, in memory that the kernel makes itself."""
    own = zip(args, without_out(spec, args), strict=True)
    return all(a is b for a, b in own) and all(t.numel() for t in leaves(args))
