"""Pairs: forward and backward of a call together, against torch's own forward and autograd together.

Each half of a differentiable call has a winner of its own, chosen without the cost of nxcore's autograd
function. The caller runs both halves and that function, so this sum is what decides. It is measured once a
pair of problems and of winners, and recorded like any other race.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.choose.contenders import AGAIN, PROBLEMS, Choice, timed
from nxcore.choose.recall import Recall
from nxcore.interop.internals import gradients
from nxcore.measure import busy, race
from nxcore.measure.decision import Candidate, Decision, decide, settled
from nxcore.measure.timing import Timing
from nxcore.spec.device import occupied
from nxcore.spec.launched import repeats
from nxcore.spec.problem import Problem
from nxcore.store.lock import Lock
from nxcore.store.pages import Page
from nxcore.store.problems import arguments
from nxcore.store.wisdom import PATH
from nxcore.trust.gate import brief

_log = logging.getLogger(__name__)

CERTAIN_US: Mapping[str, float] = MappingProxyType({"cuda": 400.0})
"""The gain of the halves from which on a call races no pair, by device type.

Of 339 pairs in the records of an H100 and an H200, 145 have halves that gain 320 us or more together. All of
these are faster than torch by their medians, by 41 us at least.
"""

TORCH = "torch"
PATHS = (None, "compiled")
"""The ways to join forward and backward, each at a cost of its own: Python, and the extension."""

Call = Callable[..., Any]
Half = tuple[Problem, Choice]
"""A problem, and the choice for it."""
Key = tuple[Problem, tuple[bool, ...], Problem]


@dataclass(frozen=True, slots=True)
class Pair:
    """The two halves of a differentiable call, with the kernels that were chosen for them.

    Attributes
    ----------
    problem : Problem
        The differentiable call's.
    mask : tuple of bool
        Which of its tensors need a gradient.
    forward, backward : tuple of Problem and Choice
        The operators that run, and their choices.
    """

    problem: Problem
    mask: tuple[bool, ...]
    forward: Half
    backward: Half

    @property
    def key(self) -> Key:
        """The part of a decision's key that isn't the kernels."""
        return self.problem, self.mask, self.backward[0]

    @property
    def label(self) -> str:
        """The names of both kernels."""
        return " + ".join(choice.decision.chosen for _, choice in (self.forward, self.backward))

    @property
    def torchs(self) -> bool:
        """Whether torch's reference was chosen for both, so that there is nothing to compare."""
        return all(choice.alone for _, choice in (self.forward, self.backward))


class Pairs:
    """Measures pairs, and finds measured ones.

    Parameters
    ----------
    recall : Recall
        Its wisdom holds the measurements; its tuner has the effort of a race within a call.

    lock : Lock
        Its winners hold, whatever was measured.

    Attributes
    ----------
    made : int
        How many decisions were made or read.
    waiting : int
        How many pairs the next call of each will measure: no recording can, so a run must come before it.
    """

    def __init__(self, recall: Recall, lock: Lock) -> None:
        self.recall, self.wisdom, self.lock = recall, recall.wisdom, lock
        self._found: OrderedDict[Key, tuple[str, Decision]] = OrderedDict()
        self._latest: dict[Problem, Key] = {}  # of the call, and of the operator that runs in its place
        self._lock = threading.Lock()
        self.made, self.waiting = 0, 0
        self.repeat: Callable[[Problem], None] = lambda _: None  # has a call chosen again later
        self._effort: race.Effort | None = None  # of a block that measures ahead
        self._anew: set[Key] | None = None  # decided in a block that measures again

    def hold(self, lock: Lock) -> None:
        """Use another lock; drop all decisions."""
        with self._lock:
            self.lock = lock
            self._found.clear()
            self._latest.clear()

    @contextlib.contextmanager
    def every(self, effort: race.Effort | None = None, *, again: bool = False) -> Iterator[None]:
        """Leave no pair of this block's calls without a race, of that effort; by default one of a call.

        With ``again``, decisions from before the block don't count.
        """
        before = self._effort, self._anew
        self._effort, self._anew = effort or self.recall.tuner.effort, set() if again else None
        try:
            yield
        finally:
            self._effort, self._anew = before

    def certain(self, problem: Problem, gain_us: float) -> bool:
        """Return whether halves gain so much that their pair needs no race in a call."""
        least = math.inf if self._effort else CERTAIN_US.get(problem.device.type, math.inf)
        return least <= gain_us < math.inf

    def locked(self, pair: Pair) -> Decision | None:
        """Return the lock's decision on ``pair``; None if it has none with these kernels."""
        label = self.lock.pair(*pair.key, pair.label)
        if not label:
            return None
        decision = Decision(label, "locked", "the lock names it")
        self._hold(pair, decision)
        return decision

    def find(self, pair: Pair) -> Decision | None:
        """Return the decision on ``pair``; None if it wasn't measured with these kernels."""
        if self._anew is not None and pair.key not in self._anew:
            return None
        label, decision = self._found.get(pair.key, ("", None))
        if decision is not None and label == pair.label and decision.rule != busy.INCONCLUSIVE:
            return decision
        for path in sorted(PATHS, key=lambda path: path != _path()):
            page = self._page(pair, path)
            if page is not None and _holds(page):
                self._hold(pair, page.decision)
                return page.decision
        return None

    def _page(self, pair: Pair, path: str | None) -> Page | None:
        """Return the page on ``pair`` with these kernels, measured on a path."""
        page = self.wisdom.read_pair(*pair.key, path)
        return page if page and dict(page.makes) == self._makes(pair) else None

    def of(self, problem: Problem) -> Decision | None:
        """Return the newest decision on a differentiable call; None if there is none in this process.

        ``problem`` is the call's, or that of the operator that runs in its place where gradients are needed.
        """
        with self._lock:
            key = self._latest.get(problem)
            return None if key is None else self._found[key][1]

    def delayed(self, problem: Problem) -> bool:
        """Return whether the program leaves no room on the device for a race in the background."""
        if not occupied(problem.device):
            return False
        _log.info("pair: %s isn't measured, as the device is at work; its halves decide", problem)
        return True

    def measure(self, pair: Pair, ours: Call, args: tuple[Any, ...] | None = None) -> Decision:
        """Race ``ours`` against torch's own forward and autograd, and keep the decision.

        Parameters
        ----------
        pair : Pair
            The problems and choices.
        ours : callable
            nxcore's autograd function; takes the operator's arguments, all positional.
        args : tuple, optional
            The call's arguments; random ones of the same problem by default.

        Returns
        -------
        Decision
            On ``torch`` and ``pair.label``. Torch's own is chosen where it can't be measured.
        """
        candidates = [
            Candidate(TORCH, "torch", graph_safe=True),
            Candidate(pair.label, "nxcore", graph_safe=True),
        ]
        given = arguments(pair.problem) if args is None else args
        effort = self._effort or self.recall.tuner.effort
        if args is None:  # in the background
            effort = replace(effort, spin_s=race.SPIN_S)
        try:
            timings = _raced(pair, ours, given, candidates, effort)
        except Exception as error:  # noqa: BLE001  a failed race must not fail the caller's call
            decision = Decision(TORCH, "reference", f"not measured: {brief(error)}")
            self._hold(pair, decision)
            return decision
        again = timings.get(AGAIN)
        decision = busy.judged(decide(timed(candidates, timings), again))
        _log.info("pair: %s -> %s: %s", pair.problem, decision.chosen, decision.reason)
        self._hold(pair, decision)
        if decision.rule == busy.INCONCLUSIVE:
            self.repeat(pair.problem)
            return decision
        self._record(pair, decision, again, "auto" if args is None else "measure")
        return decision

    def _record(self, pair: Pair, decision: Decision, again: Timing | None, policy: str) -> None:
        """Write a decision into the store, if it can be known there when it is stale."""
        if not (makes := self._makes(pair)):
            return
        versions = self.recall.versions(pair.backward[0])
        if path := _path():
            versions[PATH] = path
        page = Page(decision, again, makes, policy=policy, versions=versions)
        self.wisdom.write_pair(*pair.key, path, page)

    def _hold(self, pair: Pair, decision: Decision) -> None:
        with self._lock:
            self.made += 1
            if self._anew is not None:
                self._anew.add(pair.key)
            self._found[pair.key] = pair.label, decision
            self._found.move_to_end(pair.key)
            self._latest |= dict.fromkeys((pair.problem, pair.forward[0]), pair.key)
            if len(self._found) > PROBLEMS:
                oldest, _ = self._found.popitem(last=False)
                self._latest = {p: key for p, key in self._latest.items() if key != oldest}

    def _makes(self, pair: Pair) -> dict[str, str]:
        """Return ``operator: label`` -> identity of both kernels; empty where changes can't be detected."""
        found = {}
        for problem, choice in (pair.forward, pair.backward):
            made = self.recall.make(choice.backend, choice.kernel)
            if not made:
                return {}
            found[f"{problem.op}: {choice.decision.chosen}"] = made
        return found


def _path() -> str | None:
    """Return what joins both ways, at a cost of its own: the extension, or None for Python."""
    return PATHS[bool(repeats())]


def _holds(page: Page) -> bool:
    """Return whether a decision holds on this path.

    The kernels are the same, and the extension joins them at a lower cost: what wins without it wins with it,
    and what loses with it loses without it.
    """
    return page.versions.get(PATH) == _path() or (page.decision.chosen == TORCH) == (_path() is None)


def _raced(
    pair: Pair, ours: Call, args: tuple[Any, ...], candidates: Sequence[Candidate], effort: race.Effort
) -> dict[str, Timing]:
    """Time ``ours`` and torch's own forward and autograd, until it is settled which is faster."""
    grad = arguments(pair.backward[0])[0]
    calls = {
        TORCH: _differentiated(pair.problem.spec.reference, args, pair.mask, grad),
        pair.label: _differentiated(ours, args, pair.mask, grad),
    }

    def clear(seen: Mapping[str, Timing]) -> bool:
        return settled(timed(candidates, seen), seen.get(AGAIN), by_far=effort.ahead(seen))

    with torch.enable_grad():
        return race.race(calls, pair.problem.device, effort=effort, again=AGAIN, settled=clear)


def _differentiated(
    call: Call, args: tuple[Any, ...], mask: tuple[bool, ...], grad: Tensor
) -> Callable[[], Any]:
    """Return a call of forward and backward on leaves of its own, which share memory with ``args``."""
    needs = iter(mask)
    wanted: list[Tensor] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor):
            made = value.detach()
            if next(needs):
                wanted.append(made.requires_grad_())
            return made
        return tuple(map(leaf, value)) if isinstance(value, tuple) else value

    leaves = tuple(map(leaf, args))

    def run(outputs: Callable[..., Any], *given: Any) -> Any:
        out = outputs(*given)
        first = out[0] if isinstance(out, tuple) else out
        return gradients([first], wanted, [grad])

    return functools.partial(run, call, *leaves)
