"""Estimator: choices for sizes that were never measured, from their measured ``neighbours``."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from nxcore.choose.ahead import on_disk
from nxcore.choose.contenders import Choice, yardstick
from nxcore.choose.estimate import neighbours
from nxcore.choose.estimate.family import End, comparable, enclosing, end, told
from nxcore.choose.estimate.model import Point
from nxcore.choose.estimate.neighbours import Guess
from nxcore.choose.recall import Recall
from nxcore.errors import InvalidInputError
from nxcore.measure.decision import Candidate, Decision
from nxcore.measure.timing import Timing
from nxcore.spec.kernel import Backend, Kernel, Refusal
from nxcore.spec.problem import Problem
from nxcore.store.pages import Page
from nxcore.store.problems import arguments, described
from nxcore.store.wisdom import SHELF, digest, environment

POINTS = 16 * SHELF
"""The most pages kept as points; beyond it all are computed again."""

Owned = dict[str, tuple[Backend, Kernel]]


class Estimator:
    """Chooses from measurements at other sizes; measures nothing itself.

    Parameters
    ----------
    recall : Recall
        Holds the wisdom; its tuner checks which kernels can serve the actual problem.
    """

    def __init__(self, recall: Recall) -> None:
        self.recall, self.tuner, self.wisdom = recall, recall.tuner, recall.wisdom
        self._points: dict[tuple[str, str], tuple[Page, Any, End | None]] = {}
        self._families: dict[Any, Any] = {}

    @functools.cached_property
    def _foreign(self) -> dict[str, list[dict[str, Any]]]:
        return {kind: self.wisdom.environments(kind) for kind in ("cpu", "cuda")}

    def choose(self, problem: Problem, args: tuple[Any, ...]) -> Choice | None:
        """Return the choice for ``problem`` from measurements at other sizes, or None."""
        if problem.view:
            return None
        owned, able, refused = self.able(problem)
        while len(able) > 1 and (found := self.guess(problem, able)):
            entry = self.tuner.enter(*able[found.label], problem, args)
            if entry.call is not None:
                candidates = tuple(
                    Candidate(label, b.name, refusal=refused.get(label)) for label, (b, _) in owned.items()
                )
                decision = Decision(found.label, found.rule, found.reason, candidates)
                return Choice(decision, entry.call, entry.kernel, entry.backend)
            if entry.candidate.refusal:
                refused[found.label] = entry.candidate.refusal
            del able[found.label]
        return None

    def between(self, problem: Problem, args: tuple[Any, ...] | None = None) -> Choice | None:
        """Return the choice of the family of ``problem`` for a size between two measured ones, or None.

        Nothing is compiled or verified for it: such a kernel is learnt. It is run once on ``args``, or on
        random arguments. Its figures are of other sizes, so the choice is to be confirmed in use.

        Without ``args`` the record is read if it wasn't yet. No call waits for that.
        """
        facts = environment(problem.device)
        if problem.view or problem.cost is None or not (args is None or self.wisdom.shelved(facts)):
            return None
        known = list(self._measured(problem, facts))
        if len(known) < 2 or not any(e.clear for _, e in known):
            return None  # a call waits: what follows may take the first problem of a process a second
        at = neighbours.point(problem, {}, {})
        near = [(page, e) for page, e in known if e.point.clear and comparable(at, e.point)]
        taking = {b.label(k): (b, k) for b, k in self.tuner.taking_part(problem.op)}
        makes = {label: self.recall.make(*of) for label, of in taking.items()}
        # An end that lacks a kernel, or has another version of it, will be measured again itself.
        ends = [e for page, e in near if all(page.makes.get(n) == made != "" for n, made in makes.items())]
        labels = {e.label for e in ends if e.clear}
        if len(ends) < 2 or not labels:
            return None
        at = replace(at, branches=self._branches(problem, labels))
        if (found := enclosing(at, ends)) is None:
            return None
        label, (owned, able, refused) = found[0].label, self.able(problem)
        if label not in able or not on_disk(self.tuner, *able[label], problem):
            return None
        entry = self.tuner.enter(*able[label], problem, arguments(problem) if args is None else args)
        if entry.call is None:
            return None
        candidates = tuple(Candidate(n, b.name, refusal=refused.get(n)) for n, (b, _) in owned.items())
        decision = Decision(label, "family", told(*found), candidates)
        saves_us = min(e.saves_us for e in found)
        return Choice(decision, entry.call, entry.kernel, entry.backend, foreign=True, saves_us=saves_us)

    def knows(self, problem: Problem) -> bool:
        """Return whether measurements at other sizes allow an estimate for ``problem``."""
        able = {} if problem.view else self.able(problem)[1]
        return len(able) > 1 and self.guess(problem, able) is not None

    def able(self, problem: Problem) -> tuple[Owned, Owned, dict[str, Refusal]]:
        """Return all kernels that take part, those that can serve, and the refusals of the others."""
        able: Owned = {}
        refused: dict[str, Refusal] = {}
        owned = {b.label(k): (b, k) for b, k in self.tuner.taking_part(problem.op)}
        for label, (backend, kernel) in owned.items():
            if why := self.tuner.refusal(backend, kernel, problem):
                refused[label] = why
            elif not (self.tuner.registry.probe(backend, kernel).simulated or yardstick(kernel)):
                able[label] = backend, kernel
        return owned, able, refused

    def guess(self, problem: Problem, able: Owned) -> Guess | None:
        """Return a guess among ``able``, from this device's figures, otherwise from those of others."""
        if problem.cost is None or "torch" not in able:
            return None
        at = neighbours.point(problem, {}, self._branches(problem, able))
        for points, here in self._points_of(problem, able):
            if found := neighbours.guess(at, points, able, here=here):
                return found
        return None

    def predicted(self, problem: Problem, able: Owned) -> dict[str, float]:
        """Return label -> predicted microseconds, for torch and at least one kernel; empty if unknown."""
        if problem.cost is None or "torch" not in able:
            return {}
        at = neighbours.point(problem, {}, self._branches(problem, able))
        for points, _ in self._points_of(problem, able):
            if len(found := neighbours.predicted(at, points, able)) > 1:
                return found
        return {}

    def wins(self, problem: Problem) -> Counter[str]:
        """Return label -> number of problems of the operator, on any device of the type, that it won."""
        facts = environment(problem.device)
        every = [facts, *(f for f in self._foreign[problem.device.type] if f != facts)]
        pages = (page for of in every for _, page in self.wisdom.shelf(of, problem.op).values())
        return Counter(page.decision.chosen for page in pages if not page.decision.unclear)

    def _points_of(self, problem: Problem, able: Owned) -> Iterator[tuple[list[Point], bool]]:
        """Yield the measurements of one device after the other, and whether they count here as they are.

        Figures of two devices are never mixed. After this device's come those of its kin.
        """
        facts = environment(problem.device)
        makes = {label: self.recall.make(b, k) for label, (b, k) in able.items()}
        ours, stale = self._known(problem, facts, makes)
        yield ours, True
        foreign = [(_kinship(facts, facts), stale)]
        foreign += [
            (_kinship(facts, other), self._known(problem, other, {})[1])
            for other in self._foreign[problem.device.type]
            if other != facts
        ]
        for _, points in sorted(foreign, key=lambda of: (of[0], len(of[1])), reverse=True):
            yield points, False

    def _known(
        self, problem: Problem, facts: dict[str, Any], makes: dict[str, str]
    ) -> tuple[list[Point], list[Point]]:
        """Return the measurements in an environment for the family of ``problem``.

        First with the times of unchanged kernels alone, then, if kernels have changed, with all times.
        """
        now: list[Point] = []
        before: list[Point] = []
        for page, measured in self._measured(problem, facts):
            point = measured.point
            times = {n: t for n, t in point.times.items() if makes and page.makes.get(n) == makes.get(n)}
            if "torch" in times:
                now.append(replace(point, times=times))
            before.append(point)
        return now, before

    def _measured(self, problem: Problem, facts: dict[str, Any]) -> Iterator[tuple[Page, End]]:
        """Yield the measurements in an environment for the family of ``problem``; see ``_times``."""
        family, where = self._family(problem), digest(facts)
        deterministic = torch.are_deterministic_algorithms_enabled()
        if len(self._points) > POINTS or len(self._families) > POINTS:
            self._points.clear()  # mostly points of dropped pages
            self._families.clear()
            family = self._family(problem)
        for name, (of, page) in self.wisdom.shelf(facts, problem.op).items():
            if of.get("deterministic") != deterministic:
                continue
            kept = self._points.get((where, name))
            if kept is None or kept[0] is not page:
                kept = self._points[where, name] = (page, *self._point(problem, of, page))
            _, found, measured = kept
            if measured is not None and found is family:
                yield page, measured

    def _family(self, problem: Problem) -> Any:
        """Return the family of a problem, one object for equal ones."""
        found = neighbours.family(problem)
        return self._families.setdefault(found, found)

    def _point(self, problem: Problem, of: dict[str, Any], page: Page) -> tuple[Any, End | None]:
        times = _times(page.decision)
        if "torch" not in times:
            return None, None
        try:
            other = described(problem.spec, of)
            point = neighbours.point(other, times, self._branches(other, times))
            point = replace(point, clear=not page.decision.unclear)
        except (InvalidInputError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            return None, None  # a page of another release, or not written by nxcore
        return self._family(other), end(point, page.decision)

    def _branches(self, problem: Problem, labels: Collection[str]) -> dict[str, Hashable]:
        found: dict[str, Hashable] = {}
        for backend, kernel in self.tuner.taking_part(problem.op):
            if kernel.branch and (label := backend.label(kernel)) in labels:
                # An earlier version of the kernel may have accepted a call that this one rejects.
                with contextlib.suppress(Exception):
                    found[label] = kernel.branch_of(problem)
        return found


def _times(decision: Decision) -> dict[str, Timing]:
    """Return the times by label that count for other sizes; none of an unclear race that torch won.

    A kernel that won an unclear race did so by twice its noise, so that it and torch count as the end of a
    bracket. How fast the others are isn't known.
    """
    times = {c.label: c.timing for c in decision.candidates if c.timing}
    if not decision.unclear:
        return times
    won = decision.rule == "measured" and not decision[decision.chosen].native
    return {n: t for n, t in times.items() if won and n in ("torch", decision.chosen)}


def _kinship(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> int:
    """Return how much two devices have in common: 2 for the same capability, 1 for the same generation."""
    here, there = (str(facts.get("capability")) for facts in (ours, theirs))
    return (here == there) + (here.partition(".")[0] == there.partition(".")[0])
