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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import FOREIGN
from nxcore.spec.device import current
from nxcore.spec.exits import RAISED, blamed
from nxcore.spec.problem import Problem, leaves
from nxcore.spec.spec import OpSpec
from nxcore.trust.form import exchanged, form, misformed, misplaced, spans, twin
from nxcore.trust.memory import WALL, Guarded, Walls, bits, each, same, span
from nxcore.trust.truth import Truth, numbers, without_out

Call = Callable[..., Any]
Run = Callable[[Call, tuple[Any, ...]], Any]

ODD = WALL + 1
"""Elements of a wall: behind it, a tensor is aligned to one element alone."""

REPEATED = "new numbers at the same addresses gave the old result"
"""Why a kernel that keeps its results is wrong."""

LARGE, LARGE_HALF = 1_000_000, 3000
"""Factors on a number, and in float16, whose largest number is 65504."""


@dataclass(frozen=True)
class Variant:
    """The arguments of a sample in another form, for the same plan: how they differ, and their own truth."""

    what: str
    args: tuple[Any, ...]
    truth: Truth

    def of(self, why: str) -> str:
        """Return what is wrong with it in words; empty if nothing is."""
        return f"{self.what}: {why}" if self.what and why else why


@dataclass(frozen=True)
class Case:
    """A sample as it is built on a device, in a dtype; ``build`` makes its arguments with other numbers."""

    spec: OpSpec
    args: tuple[Any, ...]
    truth: Truth
    build: Callable[[], tuple[Any, ...]]

    @functools.cached_property
    def others(self) -> tuple[Any, ...]:
        """The arguments with other numbers."""
        return self.build()

    @functools.cached_property
    def variants(self) -> tuple[Variant, ...]:
        """See ``variants``."""
        return variants(self.spec, self.args, Problem.of(self.spec, self.args))


class _Tried:
    """A kernel under conditions: each on other numbers first, then on the sample's at the same addresses.

    So a result that was kept from an earlier call is wrong; one that was kept from the condition's own first
    call is the same twice.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.known = case, None
        self._kept: list[Tensor] = []
        self._repeats: list[tuple[Variant, Any, Tensor]] = []

    def wrong(
        self, call: Call, given: Any, one: Variant, run: Run | None = None, guard: Guarded | None = None
    ) -> str:
        """Return how a kernel is wrong on ``given``, which holds the numbers of ``one``."""
        early: list[Any] = []

        def renewed(*args: Any) -> Any:
            _fill(args, self.case.others)
            early.append(_known(call(*args)))
            _fill(args, one.args)
            return call(*args)

        result = run(renewed, given) if run else renewed(*given)
        now, (before,) = _known(result), early
        if guard is None:  # else the walls show it
            self._kept.append(_equal(bits(leaves(given)), bits(leaves(one.args))))
        own = one.truth is self.case.truth
        why = _wrong(one, given, result, now, self.known if own else None, guard)
        if before[0] == now[0] and now[1]:
            repeats = _equal(before[1], now[1])
            self._repeats.append((one, given, repeats))
            why = f"{why}; {REPEATED}" if why and bool(repeats) else why
        self.known = now if own and not why else self.known
        return one.of(why)

    def left(self) -> str:
        """Return what else is wrong: the host waits for these comparisons once."""
        flags = numbers([*self._kept, *(repeats for *_, repeats in self._repeats)])
        if not all(flags[: len(self._kept)]):
            return "an input must be left unchanged, in another thread and in inference mode too"
        for (one, given, _), repeats in zip(self._repeats, flags[len(self._kept) :], strict=True):
            if repeats and self._differs(one, given):
                return one.of(REPEATED)
        return ""

    def _differs(self, one: Variant, given: Any) -> bool:
        """Return whether the reference's results differ for the other numbers."""
        results = []
        for args in (self.case.others, one.args):
            _fill(given, args)
            results.append(_known(self.case.spec.reference(*given)))
        return not _same(*results)


def _fill(args: Any, numbers: Any) -> None:
    """Write numbers into the memory of tensors of the same form, gaps included."""
    to, of = ([t.as_strided((span(t),), (1,)) for t in leaves(some)] for some in (args, numbers))
    torch._foreach_copy_(to, of)


@torch.no_grad()
def unheld(call: Call, case: Case, odd: bool = True) -> str:
    """Return the condition under which a kernel is wrong, and how; empty if there is none.

    ``call`` is its plan for the arguments of a sample without an ``out``. Functions of torch can end a CUDA
    context at ``odd`` addresses.
    """
    device = next((t.device for t in leaves(case.args) if t.device.type != "cpu"), torch.device("cpu"))
    tried, mine = _Tried(case), twin(case.args)
    plain = Variant("", case.args, case.truth)
    if why := tried.wrong(torch.enable_grad()(call), mine, plain) or moved(call, case, odd, tried):
        return why
    fresh = functools.partial(_within, Guarded(fill=torch.nan, walled=False), call)
    runs: dict[str, Run] = {
        "in another thread, on tensors that require a gradient": functools.partial(_elsewhere, device),
        **({"on a stream of its own": _beside} if device.type == "cuda" else {}),
    }
    for what, run in runs.items():
        if why := tried.wrong(fresh, mine, replace(plain, what=what), run):
            return why
    with torch.inference_mode():
        if why := tried.wrong(fresh, mine, replace(plain, what="in inference mode")):
            return why
    places = dict(zip(map(id, leaves(case.args)), leaves(mine), strict=True))
    for one in case.variants:
        if why := tried.wrong(fresh, exchanged(one.args, places), one):
            return why
    return tried.left()


def _within(guard: Guarded, call: Call, *args: Any) -> Any:
    """Call with guards, or NaN, in new memory: what it held before may be the right result."""
    try:
        with _uncompiled(), guard:
            return call(*args)
    except FOREIGN:  # a kernel may not run in a dispatch mode
        guard.blocks.clear()
        return call(*args)


@torch.no_grad()
def moved(call: Call, case: Case, odd: bool = True, tried: _Tried | None = None) -> str:
    """Return how a kernel is wrong on inputs at other addresses, or which memory beside them it writes.

    Inputs are between walls, results between guards, and new memory holds NaN.
    """
    walls, guard = Walls(case.args, (ODD if tried else 1) if odd else WALL, 3.0), Guarded(fill=torch.nan)
    one = Variant(f"on inputs at {'odd' if odd else 'other'} addresses", case.args, case.truth)
    within = functools.partial(_within, guard, call)
    if tried:
        why = tried.wrong(within, walls.args, one, guard=guard)
    else:
        why = one.of(_wrong(one, walls.args, within(*walls.args), guard=guard))
    if walls.changed:
        return "an input must be left unchanged, and the memory beside it"
    return "memory beside a result must be left unchanged" if guard.scratched else why


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """Have what torch compiled run as it is written: dynamo gives up what it meets in a mode.

    That is a setting of all threads. So beside the main thread it raises.
    """
    if "torch._dynamo" not in sys.modules:
        yield
    elif threading.current_thread() is threading.main_thread():
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        before = sys.getprofile()
        sys.setprofile(_refuse)
        try:
            yield
        finally:
            sys.setprofile(before)


def _refuse(frame: Any, event: str, _: Any) -> None:
    if event == "call" and frame.f_globals.get("__name__") == "torch._dynamo.eval_frame":
        raise RuntimeError("what torch compiled can't run in a dispatch mode here")


def _wrong(
    one: Variant, given: Any, result: Any, now: Any = None, known: Any = None, guard: Guarded | None = None
) -> str:
    """Return how a result is wrong; one that equals what is ``known`` to be right needs no other look."""
    if known is None or not _same(now, known):
        found = one.truth.judge(result)
        if not found.ok:
            return found.reason
    results, like = tuple(leaves(result)), form(one.truth.torch, spans(list(leaves(one.args))))
    stored = guard is None or not guard.blocks  # else its memory is that of the guards too
    return misplaced(results, like, spans(list(leaves(given)))) or (
        misformed(results, like) if stored else ""
    )


def _known(result: Any) -> Any:
    """Return what the tensors of a result are, and their bits."""
    return [(t.shape, t.dtype, t.device) for t in leaves(result)], bits(leaves(result))


def _same(one: Any, other: Any) -> bool:
    return one[0] == other[0] and same(one[1], other[1])


def _equal(some: list[Tensor], others: list[Tensor]) -> Tensor:
    """Return whether ``bits`` are the same, on their device."""
    return functools.reduce(torch.logical_and, [(a == b).all() for a, b in zip(some, others, strict=True)])


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


def whole(spec: OpSpec, args: tuple[Any, ...]) -> bool:
    """Return whether a sample has results to compare, in memory that the kernel makes itself."""
    own = zip(args, without_out(spec, args), strict=True)
    return all(a is b for a, b in own) and all(t.numel() for t in leaves(args))
