"""Ladder: the kernel of a problem that is new to this process; the first rung that has an answer decides.

``LADDER`` is the only list of it. ``Chooser`` goes down it, ``explain`` names the rung that answered, and
``docs/rungs.py`` draws it into ``docs/choosing.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nxcore.choose.contenders import FAMILY, SHIPPED, Choice
from nxcore.choose.query import Query

ANY, NOTHING = ("auto", "measure", "frozen", "known"), "nothing"
"""The policies, and ``known`` for a call that neither measures nor learns. A call that
must decide now does as under ``measure``."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A row of the ladder: its name in ``explain``, the condition, and the parts that serve and measure."""

    name: str
    when: str
    source: str
    measures: str
    answer: Callable[[Query], Choice | None]
    policies: tuple[str, ...] = ANY


LADDER = (
    Rung(
        name="pinned",
        when="`backend=` or `nxcore.use` names backends",
        source="the first kernel of these that can run it; with `backend=`, else an error",
        measures=NOTHING,
        answer=Query.pinned,
    ),
    Rung(
        name="locked",
        when="there is a lock, and it has an entry",
        source="the kernel that it names",
        measures=NOTHING,
        answer=Query.locked,
    ),
    Rung(
        name="recorded here",
        when="it was measured on this device, and no lock is frozen",
        source="the winner on record",
        measures="kernels that are new or have changed, as below",
        answer=Query.recorded,
    ),
    Rung(
        name=SHIPPED,
        when="the package, or an imported file, has figures of this device or of a related one",
        source="their winner, once it is verified here",
        measures="a thread confirms it in use",
        answer=Query.shipped,
    ),
    Rung(
        name=FAMILY,
        when="one kernel clearly won two sizes around it",
        source="that kernel",
        measures="a thread confirms it in use",
        answer=Query.of_family,
        policies=("auto",),
    ),
    Rung(
        name="measured beside",
        when="a capture on a GPU needs it, and is tried again later",
        source="torch until then",
        measures="the process beside the program, once",
        answer=Query.beside,
        policies=("auto", "measure"),
    ),
    Rung(
        name="measured in a call",
        when="the policy is `measure`, or an explanation or a capture needs it now",
        source="the winner of a race",
        measures="this call, once",
        answer=Query.raced,
        policies=("measure",),
    ),
    Rung(
        name="measured beside its calls",
        when="it comes back, and its calls can be learnt from",
        source="torch, then the winner of a race",
        measures="on a GPU the process beside; else a call races 50 ms before it, once compilers are done",
        answer=Query.explored,
        policies=("auto",),
    ),
    Rung(
        name="torch",
        when="nothing else has an answer",
        source="torch's reference; an error under `frozen` with `NXCORE_STRICT`",
        measures=NOTHING,
        answer=Query.torch,
    ),
)


def answered(query: Query) -> Choice:
    """Return the choice of the first rung that has one, with the rung's name."""
    for rung in LADDER:
        if query.policy in rung.policies and (found := rung.answer(query)) is not None:
            return replace(found, rung=rung.name)
    raise AssertionError("the last rung has an answer to everything")
