"""Shortlist: the kernels of an unknown problem that are worth a compiler's seconds; a pure function."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nxcore.spec.kernel import Code, Refusal


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

    def refusal(self, label: str) -> Refusal:
        """Return the refusal of a kernel that isn't needed."""
        before = " and ".join(self.order[: self.order.index(label)][: self.most])
        return _refusal(f"{before} promise more, and at most {self.most} are compiled")


EVERY = Shortlist()
"""No kernel is left out."""


def shortlisted(
    missing: Collection[str],
    wins: Mapping[str, int],
    most: int,
    ready: Collection[str] = (),
    here: Collection[str] = (),
) -> Shortlist:
    """Return which kernels of those that must be compiled are worth it: by the problems that they won.

    Parameters
    ----------
    missing : collection of str
        The kernels that must be compiled, in the registry's order.
    wins : Mapping
        Label -> number of other problems of the operator that it won.
    most : int
        The most kernels to compile.
    ready : collection of str
        The kernels besides torch's that nothing must be compiled for: another one must have won more problems
        than each of them.
    here : collection of str
        The kernels that no worker can compile, but the call itself: the last of equals.
    """
    least = max((wins.get(label, 0) for label in ready), default=0)
    order = [label for label in missing if wins.get(label, 0) > least]
    if not (order or ready):
        order = list(missing)
    order.sort(key=lambda label: (-wins.get(label, 0), label in here))
    why = f"it won no more problems than {' and '.join(sorted(ready))}, compiled already" if ready else ""
    left = _refusal(why or "it won no problem, and others did")
    pruned = {label: left for label in missing if label not in order}
    return Shortlist(tuple(order), most, pruned, tuple(missing))


def _refusal(why: str) -> Refusal:
    return Refusal(Code.PRUNED, f"not compiled: {why}", "nxcore tune races all kernels")
