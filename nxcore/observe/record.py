"""Record: the distinct problems of calls, written to a file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nxcore.observe.counted import Counted
from nxcore.registry import made
from nxcore.spec.problem import Problem
from nxcore.store.encoding import encoded
from nxcore.store.wisdom import key


class Trace:
    """The distinct problems of some calls, and the number of calls of each.

    A problem is noted once a plan; the plan's calls are then counted. Torch's autograd doesn't report
    gradients that it computes by itself: these count as often as the forward call.

    Parameters
    ----------
    path : Path, optional
        The file of ``write``; opened now, so that an error is raised before the calls.
    """

    sees_both_ways = True

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        if path:
            path.write_text("", encoding="utf-8")
        self._problems: dict[str, tuple[Problem, dict[str, Any]]] = {}
        self._plans: dict[str, list[Counted]] = {}
        self._gradients: dict[str, set[str]] = {}
        self._guesses: dict[str, str] = {}
        self._lock = threading.Lock()  # a backward pass runs in another thread

    def observing(self, problem: Problem, label: str, call: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002  the label does not matter here
        """Return ``call`` with a counter, whose calls count for ``problem``."""
        counted = Counted(call)
        with self._lock:
            self._plans[self._named(problem)].append(counted)
        return counted

    def paired(self, forward: Problem, backward: Problem, *, guessed: bool = False) -> None:
        """Note that ``backward`` is the gradient of ``forward``, which torch's autograd may compute.

        If it is ``guessed``, with the layout of the output, it counts until the real one is known.
        """
        with self._lock:
            of, gradient = self._named(forward), self._named(backward)
            if guessed:
                self._guesses[of] = gradient
            else:
                self._gradients.setdefault(of, set()).add(gradient)

    def _named(self, problem: Problem) -> str:
        line = key(problem)
        name = encoded(line, sort_keys=True)
        self._problems.setdefault(name, (problem, line))
        self._plans.setdefault(name, [])
        return name

    @property
    def met(self) -> list[tuple[Problem, dict[str, Any]]]:
        """Each problem with its line of the file, the most frequent first.

        Another process may not know an expression's operator, so its line has the expression.
        """
        with self._lock:
            counts = {name: sum(plan.count for plan in plans) for name, plans in self._plans.items()}
            told = {name: {guess} for name, guess in self._guesses.items()} | self._gradients
            for name, gradients in told.items():
                for gradient in gradients:
                    counts[gradient] = max(counts[gradient], counts[name])
            found = [
                (p, line | {"count": counts[name]} | _expression(p))
                for name, (p, line) in self._problems.items()
            ]
        return sorted((entry for entry in found if entry[1]["count"]), key=lambda entry: -entry[1]["count"])

    def write(self) -> None:
        """Write the problems to the file, the most frequent first, replacing its content."""
        if self.path:
            text = "".join(encoded(line) + "\n" for _, line in self.met)
            self.path.write_text(text, encoding="utf-8")


def _expression(problem: Problem) -> dict[str, Any]:
    plain = made.plain(problem.spec)
    return {} if plain is None else {"expression": plain}
