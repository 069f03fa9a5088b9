"""Families: what measurements at other sizes say of a problem that was never measured."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from dataclasses import replace
from typing import Any

import torch

from nxcore.choose import family
from nxcore.choose.ahead import on_disk
from nxcore.choose.contenders import FAMILY, PROBLEMS, Choice
from nxcore.choose.family import End, comparable, enclosing, told
from nxcore.choose.recall import Recall
from nxcore.errors import InvalidInputError
from nxcore.measure.decision import Candidate, Decision
from nxcore.spec.problem import Problem
from nxcore.store.pages import Page
from nxcore.store.problems import arguments, described
from nxcore.store.wisdom import digest, environment


class Families:
    """The measured sizes of problems' families; measures nothing itself.

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

    def between(self, problem: Problem, args: tuple[Any, ...] | None = None) -> Choice | None:
        """Return the choice of the family of ``problem`` for a size between two measured ones, or None.

        Nothing is compiled or verified for it: such a kernel is learnt. It is run once on ``args``, or on
        random arguments. Its figures are of other sizes, so the choice is to be confirmed in use.

        Without ``args`` the record is read if it wasn't yet. No call waits for that.
        """
        facts = environment(problem.device)
        if problem.view or not (args is None or self.wisdom.shelved(facts)):
            return None
        known = list(self._measured(problem, facts))
        if len(known) < 2 or not any(e.clear for _, e in known):
            return None  # a call waits: what follows may take the first problem of a process a second
        at = family.point(problem, {})
        near = [(page, e) for page, e in known if comparable(at, e.point)]
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
        label, owned = found[0].label, {c.label: c for c in self.tuner.candidacies(problem)}
        of = owned.get(label)
        if of is None or not (of.able and on_disk(self.tuner, of, problem)):
            return None
        given = arguments(problem) if args is None else args
        entry = self.tuner.enter(of.backend, of.kernel, problem, given)
        if entry.call is None:
            return None
        candidates = tuple(Candidate(n, c.backend.name, refusal=c.refusal) for n, c in owned.items())
        decision = Decision(label, "family", told(*found), candidates)
        saves_us = min(e.saves_us for e in found)
        return Choice(decision, entry.call, entry.kernel, entry.backend, saves_us=saves_us, rung=FAMILY)

    def wins(self, problem: Problem) -> Counter[str]:
        """Return label -> number of problems of the operator, on any device of the type, that it won."""
        facts = environment(problem.device)
        every = [facts, *(f for f in self._foreign[problem.device.type] if f != facts)]
        pages = (page for of in every for _, page in self.wisdom.shelf(of, problem.op).values())
        return Counter(page.decision.chosen for page in pages)

    def _measured(self, problem: Problem, facts: dict[str, Any]) -> Iterator[tuple[Page, End]]:
        """Yield the clear measurements in an environment for the family of ``problem``."""
        found, where = self._family(problem), digest(facts)
        deterministic = torch.are_deterministic_algorithms_enabled()
        if len(self._points) > PROBLEMS or len(self._families) > PROBLEMS:
            self._points.clear()  # mostly points of dropped pages
            self._families.clear()
            found = self._family(problem)
        for name, (of, page) in self.wisdom.shelf(facts, problem.op).items():
            if of.get("deterministic") != deterministic:
                continue
            kept = self._points.get((where, name))
            if kept is None or kept[0] is not page:
                kept = self._points[where, name] = (page, *self._point(problem, of, page))
            _, own, measured = kept
            if measured is not None and own is found:
                yield page, measured

    def _family(self, problem: Problem) -> Any:
        """Return the family of a problem, one object for equal ones."""
        found = family.of(problem)
        return self._families.setdefault(found, found)

    def _point(self, problem: Problem, of: dict[str, Any], page: Page) -> tuple[Any, End | None]:
        labels = {c.label for c in page.decision.candidates if c.timing}
        if "torch" not in labels:
            return None, None
        try:
            other = described(problem.spec, of)
            found = family.point(other, self._branches(other, labels))
        except (InvalidInputError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            return None, None  # a page of another release, or not written by nxcore
        return self._family(other), family.end(found, page.decision)

    def _branches(self, problem: Problem, labels: Collection[str]) -> dict[str, Hashable]:
        found: dict[str, Hashable] = {}
        for backend, kernel in self.tuner.taking_part(problem.op):
            if kernel.branch and (label := backend.label(kernel)) in labels:
                # An earlier version of the kernel may have accepted a call that this one rejects.
                with contextlib.suppress(Exception):
                    found[label] = kernel.branch_of(problem)
        return found
