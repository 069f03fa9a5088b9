"""Page: the measurements of one problem in one environment, and the document that they are stored as."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nxcore.measure.decision import Candidate, Decision, Interval
from nxcore.measure.timing import Timing
from nxcore.spec.kernel import Code, Refusal
from nxcore.store.files import Document

FOREIGN = "foreign"
"""The name of the mark of an imported page."""

TORCH = "torch"
"""The label of torch's reference, which every page has."""

RULES = ("measured", "reference")

MOST, LATEST = 1e12, 1e11
"""The largest figure of a page, and the last date: larger ones are no measurement."""

LEAST_US = 1e-4
"""The shortest time, in microseconds: a page is written to a tenth of a nanosecond."""

AHEAD = 1.05
"""How much faster than torch's best a winner of another device or size must be, by the interval's low end."""


@dataclass(frozen=True, slots=True)
class Page:
    """The measurements of one problem in one environment.

    Attributes
    ----------
    decision : Decision
        The decision, with every candidate that was timed or failed.
    again : Timing, optional
        The A/A row.
    makes : Mapping
        Label -> the kernel's identity.
    late : tuple of str
        Labels of kernels that accepted the problem and failed later, for example in verification.
    policy : str
        The policy that measured it.
    date : float
        The time of measurement, in seconds since the epoch.
    versions : Mapping
        The versions of torch and the driver: a change makes the figures stale, not wrong.
    foreign : bool
        Whether it comes with the package or from an imported file.
    device : str
        The name of the related device that it was measured on; empty if it is the problem's own.
    """

    decision: Decision
    again: Timing | None
    makes: Mapping[str, str]
    late: tuple[str, ...] = ()
    policy: str = "measure"
    date: float = field(default_factory=time.time)
    versions: Mapping[str, Any] = field(default_factory=dict)
    foreign: bool = False
    device: str = ""

    @property
    def promising(self) -> bool:
        """Whether one kernel beat torch by a margin, eager and captured, so that it may win elsewhere too."""
        decision = self.decision
        won, captured = decision[decision.chosen], (decision.captured or decision).chosen
        clear = won.ratio is not None and won.ratio.low >= AHEAD
        return clear and captured == decision.chosen and not won.native

    @property
    def pruned(self) -> bool:
        """Whether a kernel was left out since others promised more."""
        return any(c.refusal and c.refusal.code is Code.PRUNED for c in self.decision.candidates)

    def to_dict(self) -> dict[str, Any]:
        """Return the page as plain data."""
        decision = self.decision.to_dict()
        for candidate, of in zip(decision["candidates"], self.decision.candidates, strict=True):
            candidate["timing"] = _kept(of.timing)
        return {
            "decision": decision,
            "again": _kept(self.again),
            "makes": dict(self.makes),
            "late": list(self.late),
            "policy": self.policy,
            "date": self.date,
            "versions": dict(self.versions),
        } | ({FOREIGN: True} if self.foreign else {})


def page(document: Document) -> Page | None:
    """Return the page that a document describes, or None."""
    try:
        decided = document["decision"]
        candidates = tuple(_candidate(c) for c in _list(decided["candidates"]))
        decision = Decision(
            _text(decided["chosen"]),
            decided["rule"],
            _text(decided["reason"]),
            candidates,
            _number(decided["noise"]),
            _captured(decided.get("captured")),
        )
        again = _timing(document["again"])
        makes = {_text(label): _text(make) for label, make in document["makes"].items()}
        versions = dict(document["versions"])
        late = tuple(map(_text, _list(document["late"])))
        policy, date = _text(document["policy"]), _number(document["date"], most=LATEST)
        foreign = bool(document.get(FOREIGN))
        found = Page(decision, again, makes, late, policy, date, versions, foreign)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return None
    labels = {c.label for c in candidates}
    both = (decision, decision.captured or decision)
    sound = all(d.chosen in labels and d.rule in RULES for d in both) and TORCH in labels
    return found if sound and len(labels) == len(candidates) else None


def _captured(data: Mapping[str, Any] | None) -> Decision | None:
    if data is None:
        return None
    return Decision(_text(data["chosen"]), data["rule"], _text(data["reason"]))


def _candidate(data: Mapping[str, Any]) -> Candidate:
    error, ratio, p_value, timing = data["error"], data["ratio"], data["p_value"], data["timing"]
    if error is ratio is p_value is timing is None:
        return _left_out(
            data["label"],
            data["backend"],
            data["refusal"],
            data.get("code"),
            data["simulated"],
            data.get("graph_safe"),
        )
    if timing is None and not (ratio is p_value is None):
        raise ValueError("a ratio needs a timing")
    return Candidate(
        label=_name(data["label"]),
        backend=_name(data["backend"]),
        refusal=_refusal(data["refusal"], data.get("code")),
        simulated=bool(data["simulated"]),
        graph_safe=bool(data.get("graph_safe")),
        error=None if error is None else _error(error),
        timing=_timing(timing),
        ratio=None if ratio is None else Interval(*map(_number, _list(ratio))),
        p_value=None if p_value is None else _number(p_value, most=1.0),
    )


@functools.lru_cache(maxsize=256)
def _left_out(
    label: Any, backend: Any, refusal: Any, code: Any, simulated: Any, graph_safe: Any
) -> Candidate:
    """Return a candidate without figures; all pages of an operator share the same object."""
    why = _refusal(refusal, code)
    return Candidate(_name(label), _name(backend), why, bool(simulated), bool(graph_safe))


def _refusal(reason: Any, code: Any) -> Refusal | None:
    """Return a recorded refusal: old pages have no code."""
    return Refusal(Code(code), _text(reason)) if _text(reason) else None


def _kept(timing: Timing | None) -> Document | None:
    """Return a timing as it is stored: to a tenth of a nanosecond; host times only where they differ.

    A process reads it before the first call of the problem.
    """
    if timing is None:
        return None
    kept: Document = {"device_us": [round(us, 4) for us in timing.device_us]}
    if timing.host_us != timing.device_us:
        kept["host_us"] = [round(us, 4) for us in timing.host_us]
    return kept | ({"repeats": timing.repeats} if timing.repeats else {})


def _timing(data: Mapping[str, Any] | None) -> Timing | None:
    if data is None:
        return None
    device_us = tuple(map(_time, _list(data["device_us"])))
    host_us = tuple(map(_time, _list(data["host_us"]))) if "host_us" in data else device_us
    if not device_us or len(device_us) != len(host_us):
        raise ValueError("a timing needs equally many device and host values, at least one")
    return Timing(device_us, host_us, _text(data.get("repeats", "")))


def _number(value: Any, least: float = 0.0, most: float = MOST) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"expected a number from {least:g} to {most:g}")
    return float(value)


def _time(value: Any) -> float:
    return _number(value, LEAST_US)


def _error(value: Any) -> float:
    """Return an error; that of a wrong result may be infinite, or NaN."""
    return value if isinstance(value, float) and not value < 0 else _number(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return list(value)


def _name(value: Any) -> str:
    if not _text(value):
        raise ValueError("expected a name, got an empty text")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value
