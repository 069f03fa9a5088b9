"""Pruning: which kernels of an unknown problem are compiled, by the problems that they won.

A kernel whose code lies on disk costs next to nothing, so it is always verified and raced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from nxcore.choose.ahead import compilable, compiled, from_disk, pays
from nxcore.choose.contenders import Candidacy, Choice
from nxcore.choose.families import Families
from nxcore.choose.shortlist import EVERY, Shortlist, shortlisted
from nxcore.observe.bar import Measuring, shown
from nxcore.spec.problem import Problem

BARE = 3
"""The kernels of a backend without code on disk after which no other one is tried, if none had any."""

MEASURING = Measuring()
"""Of all sessions of the process."""


class Pruner:
    """Prunes the kernels of problems by the measurements of others.

    Parameters
    ----------
    families : Families
        Knows measurements at other sizes and on other devices.
    """

    def __init__(self, families: Families) -> None:
        self.families, self.tuner = families, families.tuner
        self._bare: dict[str, set[tuple[Any, ...]]] = {}
        self._stocked: set[str] = set()

    def shortlist(
        self,
        problem: Problem,
        missing: Collection[str] | None = None,
        candidacies: Sequence[Candidacy] = (),
    ) -> Shortlist:
        """Return which kernels of a new problem are to be compiled; empty where none must be pruned.

        Kernels whose code is on disk are verified now, unless ``missing`` names those that aren't compiled.
        ``candidacies`` are what is known of the kernels, to which those that are ready are added.
        """
        most = self.tuner.effort.compiled
        if not most or problem.view:
            return EVERY
        ready, waits = set[str](), missing is None and pays(self.tuner)
        known = candidacies or self.tuner.candidacies(problem)
        if missing is None:
            found = {c.label: self._found(c, problem) for c in known if c.able and c.backend.name != "torch"}
            missing = {label for label, serves in found.items() if serves is None}
            ready = {label for label, serves in found.items() if serves}
        if not missing:
            return EVERY
        able = {c.label: c.backend for c in known if c.able and c.label in missing}
        here = [label for label, backend in able.items() if waits and not compilable(backend, problem)]
        return shortlisted(able, self.families.wins(problem), most, ready, here)

    def measured(self, problem: Problem, args: tuple[Any, ...]) -> Choice:
        """Compile what is worth it, race the kernels, and keep the result; return the choice."""
        recall = self.families.recall
        with MEASURING.of(problem.op):
            known = self.tuner.candidacies(problem)
            listed = self.shortlist(problem, None, known)
            self.compile(problem, listed)
            before = recall.before(problem)
            choice = self.tuner.choose(problem, args, shortlist=listed, before=before, candidacies=known)
        return recall.kept(problem, args, choice)

    def compile(self, problem: Problem, listed: Shortlist) -> None:
        """Have workers compile the first kernels of a shortlist at the same time, if that is faster."""
        if len(listed.order) and pays(self.tuner):
            with shown(f"compiles {problem.op}") as advance:
                first = [label for label in listed.missing if label in listed.first]
                compiled(self.tuner, [problem], advance, missing=lambda _: first, several=True)

    def _found(self, of: Candidacy, problem: Problem) -> bool | None:
        """Return whether a kernel on disk can serve a problem; None if it must be compiled.

        A kernel whose samples had to be compiled isn't tried for other problems until it is verified. Nor are
        kernels of a backend that has nothing on disk: to import a toolkit and to make its calls takes longer
        than to race.
        """
        backend, kernel = of.backend, of.kernel
        key = (kernel.op, kernel.variant, problem.device, problem.dtype)
        bare = self._bare.setdefault(backend.name, set())
        hopeless = len(bare) >= BARE and backend.name not in self._stocked
        if (key in bare or hopeless) and not self.tuner.gate.knows(backend, kernel, problem):
            return None
        if (entry := from_disk(self.tuner, of, problem)) is None:
            bare.add(key)
            return None
        self._stocked.add(backend.name)
        of.entry, of.refusal = entry, entry.candidate.refusal
        return entry.call is not None
