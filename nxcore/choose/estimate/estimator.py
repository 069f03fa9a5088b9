"""Estimator: choices for sizes that were never measured, from their measured ``neighbours``."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from nxcore.choose.contenders import Choice, yardstick
from nxcore.choose.estimate import neighbours
from nxcore.choose.estimate.model import Point
from nxcore.choose.estimate.neighbours import Guess
from nxcore.choose.recall import Recall
from nxcore.errors import InvalidInputError
from nxcore.measure.decision import Candidate, Decision
from nxcore.spec.kernel import Backend, Kernel, Refusal
from nxcore.spec.problem import Problem
from nxcore.store.problems import described
from nxcore.store.wisdom import SHELF, Page, digest, environment

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
        self._points: dict[tuple[str, str], tuple[Page, Any, Point | None]] = {}

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
        family, where = neighbours.family(problem), digest(facts)
        deterministic = torch.are_deterministic_algorithms_enabled()
        now: list[Point] = []
        before: list[Point] = []
        if len(self._points) > POINTS:
            self._points.clear()  # mostly points of dropped pages
        for name, (of, page) in self.wisdom.shelf(facts, problem.op).items():
            if of.get("deterministic") != deterministic:
                continue
            kept = self._points.get((where, name))
            if kept is None or kept[0] is not page:
                kept = self._points[where, name] = (page, *self._point(problem, of, page))
            _, found, point = kept
            if point is None or found != family:
                continue
            times = {n: t for n, t in point.times.items() if makes and page.makes.get(n) == makes.get(n)}
            if "torch" in times:
                now.append(replace(point, times=times))
            before.append(point)
        return now, before

    def _point(self, problem: Problem, of: dict[str, Any], page: Page) -> tuple[Any, Point | None]:
        times = {c.label: c.timing for c in page.decision.candidates if c.timing}
        if "torch" not in times or page.decision.unclear:
            return None, None
        try:
            other = described(problem.spec, of)
            point = neighbours.point(other, times, self._branches(other, times))
        except (InvalidInputError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            return None, None  # a page of another release, or not written by nxcore
        return neighbours.family(other), point

    def _branches(self, problem: Problem, labels: Collection[str]) -> dict[str, Hashable]:
        found: dict[str, Hashable] = {}
        for backend, kernel in self.tuner.taking_part(problem.op):
            if kernel.branch and (label := backend.label(kernel)) in labels:
                # An earlier version of the kernel may have accepted a call that this one rejects.
                with contextlib.suppress(Exception):
                    found[label] = kernel.branch_of(problem)
        return found


def _kinship(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> int:
    """Return how much two devices have in common: 2 for the same capability, 1 for the same generation."""
    here, there = (str(facts.get("capability")) for facts in (ours, theirs))
    return (here == there) + (here.partition(".")[0] == there.partition(".")[0])
