"""Pruning: which kernels of an unknown problem are compiled, by what is known of other problems.

A kernel that lies compiled and verified on disk costs next to nothing, so it is always raced.
"""

from __future__ import annotations

from collections.abc import Collection

from nxcore.choose.ahead import uncompiled
from nxcore.choose.estimate.estimator import Estimator
from nxcore.choose.shortlist import EVERY, Shortlist, shortlisted
from nxcore.spec.problem import Problem


class Pruner:
    """Prunes the kernels of problems by the measurements of others.

    Parameters
    ----------
    estimator : Estimator
        Predicts from measurements at other sizes and on other devices.
    """

    def __init__(self, estimator: Estimator) -> None:
        self.estimator, self.tuner = estimator, estimator.tuner

    def shortlist(self, problem: Problem, missing: Collection[str] | None = None) -> Shortlist:
        """Return which kernels of a new problem are to be compiled; empty where none must be pruned.

        ``missing`` are those that aren't compiled, if that is known.
        """
        most = self.tuner.effort.compiled
        if not most or problem.view:
            return EVERY
        missing = set(uncompiled(self.tuner, problem) if missing is None else missing)
        if not missing:
            return EVERY
        able = self.estimator.able(problem)[1]
        backends = {label: b.name for label, (b, _) in able.items() if label in missing}
        predicted = self.estimator.predicted(problem, able)
        return shortlisted(backends, predicted, self.estimator.wins(problem), most)
