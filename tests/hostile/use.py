"""A program that uses a kernel as a user would, and the wrong results it gets; its clock is simulated."""

import contextlib
import contextvars
import os
import random
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore.context import KernelWarning
from nxcore.measure.race import Effort
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.spec import OpSpec
from nxcore.trust.distance import strays
from nxcore.trust.form import meet, spans
from nxcore.trust.memory import each
from nxcore.trust.truth import Truth
from tests.hostile.grammar import KEY, LATE, MARK, RATE, World, leaves
from tests.hostile.plain import PLAIN, Call, Dice
from tests.null import fakes
from tests.null.fakes import SPECS

STEP_S = 0.025
"""Seconds from one call to the next, by the program's clock."""

LATEST_S, LATEST = 5.0, 200
"""What ``docs/trust.md`` promises of a kernel that is wrong in every call from some call on."""

GAP_S = 3.5
"""The most seconds between two audits of such a kernel."""

SHORT = Effort(looks=(1,), warm_s=1e-5, budget_s=1e-3)
"""Races that show nothing: which kernel is preferred is given."""

UNLIKELY = 0.001
"""The probability, by the formula, below which a fault lived too long."""


@dataclass
class Made:
    """A kernel to be used: what makes it, and what is promised of it."""

    op: str
    name: str
    make: Callable[[World], Call]
    promise: str = KEY


@dataclass
class Used:
    """How the use of a kernel went.

    Attributes
    ----------
    wrong : int
        The wrong results that it gives in this program where nothing keeps it from it.
    seen : int
        Those that the caller sees.
    most : int
        Those that the caller may see, by ``docs/trust.md``.
    by : str
        What convicted it: the gate, a call, or nothing.
    reason : str
        Why.
    """

    op: str
    name: str
    promise: str
    wrong: int
    seen: int = 0
    most: int = 0
    calls: int = 0
    by: str = ""
    reason: str = ""


@dataclass
class Turn:
    """A call of the program: arguments, where they come from, and what is right."""

    spec: OpSpec
    args: tuple[Any, ...]
    own: tuple[Any, ...]
    truth: Truth
    where: str


LAYOUTS = ("plain",) * 5 + ("moved", "transposed", "gaps")
WHERE = ("here",) * 6 + ("thread", "inference", "gradient")
VALUES = ("normal",) * 6 + ("ties", "positive", "large", "-0", "denormal", "NaN", "inf")


def _filled(dice: Dice, shape: tuple[int, ...], dtype: torch.dtype, values: str) -> Tensor:
    found = torch.randn(shape, generator=torch.Generator().manual_seed(dice.randrange(1 << 30)))
    if values == "ties":
        found = found.round()
    if values == "positive":
        found = found.abs()
    if values == "large":
        found = found * 1e3
    some = torch.rand(shape, generator=torch.Generator().manual_seed(dice.randrange(1 << 30))) < 0.05
    special = {"-0": -0.0, "denormal": 1e-40, "NaN": torch.nan, "inf": dice.choice((torch.inf, -torch.inf))}
    return found.masked_fill(some, special[values]).to(dtype) if values in special else found.to(dtype)


def _laid(tensor: Tensor, layout: str) -> Tensor:
    if layout == "moved":
        return tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape).copy_(tensor)
    if layout == "transposed" and tensor.ndim > 1:
        return tensor.mT.contiguous().mT
    if layout == "gaps":
        return torch.stack([tensor, tensor], -1)[..., 0]
    return tensor


def program(op: str, seed: int, calls: int) -> Iterator[Turn]:
    """Yield calls that vary in size, type, layout, numbers and where they come from."""
    dice = random.Random(seed)
    sizes = (dice.choice((200, 300, 512)), dice.choice((1024, 2000, 3001)), dice.choice((6000, 20_000)))
    kept: dict[Any, Tensor] = {}
    for _ in range(calls):
        size = dice.choices(sizes, (5, 3, 1))[0]
        dtype = dice.choice((torch.float32, torch.float32, torch.bfloat16))
        layout, values, where = dice.choice(LAYOUTS), dice.choice(VALUES), dice.choice(WHERE)
        again = layout == "plain" and dice.random() < 0.3

        def made(
            *shape: int, dtype: Any = dtype, layout: str = layout, values: str = values, again: bool = again
        ) -> Tensor:
            tensor = _laid(_filled(dice, shape, dtype, values), layout)
            if again:  # new numbers in the memory of an earlier call
                return kept.setdefault((shape, dtype, len(kept) % 2), tensor.clone()).copy_(tensor)
            return tensor

        args = PLAIN[op].draw(dice, size, made)
        yield Turn(SPECS[op], args, each(args, torch.clone), Truth.of(SPECS[op], args), where)


def wrong(turn: Turn, result: Any) -> bool:
    """Return whether a result isn't what ``docs/trust.md`` calls right, or the call changed an input.

    What is within twice the bound of gate (a) counts for right, as no audit suspects that.
    """
    with torch.no_grad():
        inputs = list(leaves(turn.args))
        changed = any(not _same(now, then) for now, then in zip(inputs, leaves(turn.own), strict=True))
        if changed:
            for now, then in zip(inputs, leaves(turn.own), strict=True):
                now.data.copy_(then)
        if any(map(marked, leaves(result))):
            return True
        mine = [t.detach() for t in leaves(result)]
        shared = meet(spans(mine), spans(inputs))
        torchs = len(mine) == len(turn.truth.torch) and all(map(_same, mine, turn.truth.torch))
        if changed or shared or torchs or turn.truth.judge(tuple(mine)).ok:
            return changed or shared
        formed = all(
            (y.dtype, y.shape) == (t.dtype, t.shape) for y, t in zip(mine, turn.truth.torch, strict=True)
        )
        return not formed or bool(strays(turn.spec, turn.own, turn.truth.torch, tuple(mine)))


def marked(result: Tensor) -> bool:
    """Return whether a result has a negative or conjugate bit, names, or memory of more than its own size."""
    more = result.untyped_storage().nbytes() > result.numel() * result.element_size()
    return result.is_neg() or result.is_conj() or any(getattr(result, "names", ())) or more


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same numbers; all NaNs count as equal."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def _called(call: Call, turn: Turn) -> Any:
    """Call from where the program does."""
    if turn.where == "thread":
        with ThreadPoolExecutor(1) as other:
            return other.submit(contextvars.copy_context().run, call, *turn.args).result()
    if turn.where == "inference":
        with torch.inference_mode():
            return call(*turn.args)
    if turn.where == "gradient":
        given = each(turn.args, lambda t: t.detach().requires_grad_())
        turn.args = given
    return call(*turn.args)


@contextlib.contextmanager
def _state(step: int, calls: int) -> Iterator[None]:
    """Change settings in the second half of a program."""
    before = torch.get_num_threads()
    if 2 * step < calls:
        yield
        return
    os.environ[MARK] = "1"
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        del os.environ[MARK]
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(before)


def _run(
    op: str, call: Call, world: World, seed: int, calls: int, tick: Callable[[], None]
) -> Iterator[bool]:
    """Yield for each call whether the caller sees a wrong result; later also one that changes."""
    earlier: list[tuple[Tensor, Tensor]] = []
    world.begun = True
    for step, turn in enumerate(program(op, seed, calls)):
        world.seconds = step * STEP_S
        tick()
        try:
            with _state(step, calls):
                result = _called(call, turn)
        except Exception:  # noqa: BLE001  a kernel that raises gives no wrong result
            yield False
            continue
        bad = wrong(turn, result)
        bad |= any(not _same(now, then) for now, then in earlier)
        mine = [t.detach() for t in leaves(result)]
        earlier = [*earlier[-2:], *((t, t.clone()) for t in mine)] if not bad else []
        yield bad


def bare(made: Made, seed: int, calls: int) -> list[bool]:
    """Return which results of a program are wrong where the kernel serves every call."""
    world = World()
    call = made.make(world)
    with torch.no_grad():
        return list(_run(made.op, call, world, seed, calls, lambda: None))


def used(made: Made, seed: int, calls: int) -> Used:
    """Register a kernel as a plugin's, use it in a program, and count."""
    found = bare(made, seed, calls)
    made_wrong = sum(found)
    world, now, due = World(), [0.0], [0.0]
    kernel = fakes.kernel(
        made.op,
        made.make(world),
        accepts=lambda problem: fakes.YES if PLAIN[made.op].fits(*problem.args) else NO,
        dtypes=(torch.float32, torch.bfloat16),
        deterministic=True,
    )
    backend = fakes.backend("hostile", kernel)
    session = Session(Settings(policy="frozen"), fakes.registry(backend), SHORT)
    watches = session.chooser.watches
    watches.wait, watches._clock = (lambda seconds: False), (lambda: now[0])

    def tick() -> None:
        now[0] += STEP_S
        if now[0] >= due[0]:
            watches.arm()
            due[0] = now[0] + (watches.gap or 0.1)

    result = Used(made.op, made.name, made.promise, made_wrong, calls=calls)
    served = 0

    def call(*args: Any) -> Any:
        return fakes.called(session.op(made.op), args)

    with session.use("hostile"), warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)
        for step, bad in enumerate(_run(made.op, call, world, seed, calls, tick)):
            result.seen += bad
            served = step + 1 if not list(session.gate.quarantine) else served
    entries = list(session.gate.quarantine)
    if entries:
        result.by = "gate" if entries[0].reason.startswith(("wrong on", "wrong about")) else "call"
        result.reason = entries[0].reason
    promise = RATE if made.promise == KEY and made.name.endswith("not written") else made.promise
    early = sum(min(w._calls, 16).bit_length() for w in watches._known.values())
    result.most = most(promise, found, early + served * STEP_S / GAP_S)
    return result


NO = fakes.Verdict(False, "another shape")


def most(promise: str, found: list[bool], audits: float) -> int:
    """Return how many wrong results a caller may see, by ``docs/trust.md``."""
    if promise == LATE:
        return max(LATEST, round(LATEST_S / STEP_S))
    if promise == RATE:
        share = sum(found) / len(found)
        return len(found) if (1 - share) ** audits >= UNLIKELY else 0
    return 0
