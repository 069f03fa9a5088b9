"""Pruning: which kernels of an unknown problem are compiled, by what is known of other problems.

A kernel whose code lies on disk costs next to nothing, so it is always verified and raced.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nxcore.choose.admission import once
from nxcore.choose.ahead import compilable, compiled, from_disk, pays
from nxcore.choose.contenders import Choice, Contender
from nxcore.choose.families import Families
from nxcore.choose.shortlist import EVERY, Shortlist, shortlisted
from nxcore.choose.workers import SEVERAL
from nxcore.observe.bar import Measuring, shown
from nxcore.spec.kernel import Backend, Kernel
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
        self._entered: dict[str, Contender] = {}  # the kernels on disk of the problem that is measured

    def shortlist(self, problem: Problem, missing: Collection[str] | None = None) -> Shortlist:
        """Return which kernels of a new problem are to be compiled; empty where none must be pruned.

        Kernels whose code is on disk are verified now, unless ``missing`` names those that aren't compiled.
        Those that can serve are what the others must promise to be faster than.
        """
        most = self.tuner.effort.compiled
        if not most or problem.view:
            return EVERY
        ready, waits = set[str](), missing is None and pays(self.tuner)
        if missing is None:
            able = self.families.able(problem)[1]
            self._entered.clear()
            others = {label: of for label, of in able.items() if of[0].name != "torch"}
            found = {label: self._found(*of, problem) for label, of in others.items()}
            missing = {label for label, serves in found.items() if serves is None}
            ready = {label for label, serves in found.items() if serves}
        if not missing:
            return EVERY
        able = self.families.able(problem)[1]  # without those that were found wrong now
        backends = {label: b.name for label, (b, _) in able.items() if label in missing}
        near, wins = self.families.nearest(problem, able), self.families.wins(problem)
        here = [label for label in backends if waits and not compilable(able[label][0], problem)]
        return shortlisted(backends, near, wins, most, ready, here)

    def measured(self, problem: Problem, args: tuple[Any, ...]) -> Choice:
        """Compile what is worth it, race the kernels, and keep the result; return the choice."""
        recall = self.families.recall
        with once(), MEASURING.of(problem.op):
            listed = self.shortlist(problem)
            self.compile(problem, listed)
            entered, self._entered = self._entered, {}
            before = recall.before(problem)
            choice = self.tuner.choose(problem, args, shortlist=listed, before=before, entered=entered)
        return recall.kept(problem, args, choice)

    def compile(self, problem: Problem, listed: Shortlist) -> None:
        """Have workers compile the first kernels of a shortlist at the same time, if that is faster."""
        if len(listed.order) and pays(self.tuner):
            with shown(f"compiles {problem.op}") as advance:
                first = [label for label in listed.missing if label in listed.first]
                compiled(self.tuner, [problem], advance, missing=lambda _: first, least=SEVERAL)

    def _found(self, backend: Backend, kernel: Kernel, problem: Problem) -> bool | None:
        """Return whether a kernel on disk can serve a problem; None if it must be compiled.

        A kernel whose samples had to be compiled isn't tried for other problems until it is verified. Nor are
        kernels of a backend that has nothing on disk: to import a toolkit and to make its calls takes longer
        than to race.
        """
        key = (kernel.op, kernel.variant, problem.device, problem.dtype)
        bare = self._bare.setdefault(backend.name, set())
        hopeless = len(bare) >= BARE and backend.name not in self._stocked
        if (key in bare or hopeless) and not self.tuner.gate.knows(backend, kernel, problem):
            return None
        entry = from_disk(self.tuner, backend, kernel, problem)
        if entry is None:
            bare.add(key)
            return None
        self._stocked.add(backend.name)
        self._entered[backend.label(kernel)] = entry
        return entry.call is not None
