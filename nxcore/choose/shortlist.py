"""Shortlist: the kernels of an unknown problem that are worth a compiler's seconds; a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nxcore.measure.timing import duration
from nxcore.spec.kernel import Code, Refusal

WITHIN = 1.5
"""The largest predicted time of a kernel worth compiling, relative to the best one's, torch's included."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The kernels of a problem that must be compiled.

    Attributes
    ----------
    order : tuple of str
        The labels of those that are worth it, the most promising first.
    most : int
        The number of them that are compiled: the others are needed only where one fails.
    pruned : Mapping
        Label -> refusal of those that aren't worth it.
    """

    order: tuple[str, ...] = ()
    most: int = 0
    pruned: Mapping[str, Refusal] = field(default_factory=dict)

    @property
    def first(self) -> tuple[str, ...]:
        """The kernels that are compiled unless one of them fails."""
        return self.order[: self.most]

    def spare(self, label: str) -> Refusal:
        """Return the refusal of a kernel that isn't needed."""
        before = " and ".join(self.order[: self.order.index(label)][: self.most])
        return _refusal(f"not compiled: {before} promise more, and at most {self.most} are compiled")


EVERY = Shortlist()
"""No kernel is left out."""


def shortlisted(
    backends: Mapping[str, str], predicted: Mapping[str, float], wins: Mapping[str, int], most: int
) -> Shortlist:
    """Prune kernels; a pure function.

    Parameters
    ----------
    backends : Mapping
        The label of each kernel that must be compiled -> its backend.
    predicted : Mapping
        Label -> predicted microseconds, of torch and of kernels that must be compiled or not.
    wins : Mapping
        Label -> number of other problems of the operator that it won.
    most : int
        The most kernels to compile. If there are fewer, none is left out for lack of knowledge.
    """
    best = min(predicted.values(), default=0.0)
    known = sorted((predicted[label], label) for label in backends if label in predicted)
    order = [label for us, label in known if us <= WITHIN * best]
    pruned = {
        label: _refusal(
            f"not compiled: predicted {duration(us)}, more than {WITHIN} times the best, {duration(best)}"
        )
        for us, label in known
        if us > WITHIN * best
    }
    taken: dict[str, str] = {}
    for label in _ranked([label for label in backends if label not in predicted], wins):
        first = taken.setdefault(backends[label], label)
        if first == label or most > len(backends):
            order.append(label)
        else:
            pruned[label] = _refusal(f"not compiled: nothing is known of it, and {first} is of its toolkit")
    return Shortlist(tuple(order), most, pruned)


def _ranked(labels: Sequence[str], wins: Mapping[str, int]) -> list[str]:
    """Return labels by the problems that they won, those without any in the order of the registry."""
    return sorted(labels, key=lambda label: -wins.get(label, 0))


def _refusal(why: str) -> Refusal:
    return Refusal(Code.PRUNED, why, "nxcore tune races all kernels")
