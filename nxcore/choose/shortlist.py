"""Shortlist: the kernels of an unknown problem that are worth a compiler's seconds; a pure function."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nxcore.measure.decision import MARGIN
from nxcore.measure.timing import duration
from nxcore.spec.kernel import Code, Refusal

WITHIN = 1.5
"""The largest time, at the nearest measured size, of a kernel worth compiling: in multiples of the best."""


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
    missing : tuple of str
        All that must be compiled, worth it or not.
    """

    order: tuple[str, ...] = ()
    most: int = 0
    pruned: Mapping[str, Refusal] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

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
    backends: Mapping[str, str],
    near: Mapping[str, float],
    wins: Mapping[str, int],
    most: int,
    ready: Collection[str] = (),
    here: Collection[str] = (),
) -> Shortlist:
    """Prune kernels; a pure function.

    Where a kernel is ``ready``, the others are worth a compiler's seconds only if what is known promises that
    they win: by a time at the nearest measured size that is less than any other by the margin
    of a decision, or by more problems won.

    Parameters
    ----------
    backends : Mapping
        The label of each kernel that must be compiled -> its backend.
    near : Mapping
        Label -> microseconds at the nearest measured size, of torch and of kernels that must be compiled or
        not.
    wins : Mapping
        Label -> number of other problems of the operator that it won.
    most : int
        The most kernels to compile. If there are fewer, none is left out for lack of knowledge.
    ready : collection of str
        The kernels besides torch's that nothing must be compiled for.
    here : collection of str
        The kernels that no worker can compile, but the call itself. Without a promise they are compiled only
        where all are such.
    """
    least = min((us for label, us in near.items() if label not in backends), default=0.0)
    limit = least / (1 + MARGIN) if ready else WITHIN * min(near.values(), default=0.0)
    known = sorted((near[label], label) for label in backends if label in near)
    order = [label for us, label in known if us <= limit]
    pruned = {label: _refusal(_slow(us, limit, ready)) for us, label in known if us > limit}
    taken: dict[str, str] = {}
    workers = bool(set(backends) - set(here))
    won = max((wins.get(label, 0) for label in ready), default=-1)
    for label in _ranked([label for label in backends if label not in near], wins):
        if workers and label in here and not wins.get(label, 0):
            pruned[label] = _refusal("not compiled: nothing is known of it, and no worker can compile it")
            continue
        first = taken.setdefault(backends[label], label)
        if wins.get(label, 0) <= won:
            pruned[label] = _refusal(
                f"not compiled: nothing promises that it wins, and {_listed(ready)} must not be compiled"
            )
        elif first == label or most > len(backends):
            order.append(label)
        else:
            pruned[label] = _refusal(f"not compiled: nothing is known of it, and {first} is of its toolkit")
    return Shortlist(tuple(order), most, pruned, tuple(backends))


def _slow(us: float, limit: float, ready: Collection[str]) -> str:
    """Return why a kernel of such a time isn't worth a compiler's seconds."""
    told = f"not compiled: {duration(us)} at the nearest measured size"
    if ready:
        return f"{told}, {duration(limit)} would be needed, since {_listed(ready)} must not be compiled"
    return f"{told}, more than {WITHIN} times the best, {duration(limit / WITHIN)}"


def _listed(ready: Collection[str]) -> str:
    return " and ".join(sorted(ready))


def _ranked(labels: Sequence[str], wins: Mapping[str, int]) -> list[str]:
    """Return labels by the problems that they won, those without any in the order of the registry."""
    return sorted(labels, key=lambda label: -wins.get(label, 0))


def _refusal(why: str) -> Refusal:
    return Refusal(Code.PRUNED, why, "nxcore tune races all kernels")
