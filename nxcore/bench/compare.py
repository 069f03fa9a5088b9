"""Two records against each other, cell by cell: a kernel's ratio to torch in one, over that in the other.

Times of two processes are not comparable: clocks, memory and neighbours differ. Both races hold torch, so
the ratio to torch is what is compared. A process has a bias of its own besides, which no number of blocks
within it shows; the margin is there for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nxcore.bench.record import key_of, rows
from nxcore.bench.row import BAD, rounded, verdict
from nxcore.errors import InvalidInputError
from nxcore.measure.decision import MARGIN, Interval

PROCESS = 0.05
"""The margin that two processes need: what two runs of the same code differ by."""

Found = dict[str, Any]


def compare(old: Sequence[Found], new: Sequence[Found], margin: float = PROCESS) -> list[Found]:
    """Return a line for each kernel and cell of either record.

    Parameters
    ----------
    old, new : sequence of dict
        The lines of two records.
    margin : float
        What must be exceeded; at least, or twice the half-width of either A/A row.

    Returns
    -------
    list of dict
        The cell, ``label``, ``verdict``, ``old`` and ``new`` (each a ratio to torch, or None), and
        ``change``: new over old, with an interval that holds whatever is in both intervals. ``FAST``,
        ``SAME``, ``SLOW`` and ``AMBG`` as in a row; ``WRONG`` and ``BELOW_FLOOR`` of the new one; ``GONE``
        and ``NEW`` where only one has a time.

    Raises
    ------
    InvalidInputError
        If they were measured on different devices.
    """
    _require_one_device(old, new)
    before, now = (
        {(*key_of(r), r["label"]): r for r in rows(lines) if r["record"] == "row"} for lines in (old, new)
    )
    return [_line(key, before.get(key), now.get(key), margin) for key in dict.fromkeys((*before, *now))]


def _line(key: tuple[str, ...], old: Found | None, new: Found | None, margin: float) -> Found:
    op, sample, dtype, label = key
    was, came = (r.get("ratio") if r else None for r in (old, new))
    line = {
        "op": op,
        "sample": sample,
        "dtype": dtype,
        "label": label,
        "old": was,
        "new": came,
        "change": None,
    }
    if new and new["verdict"] in BAD:
        return line | {"verdict": new["verdict"], "reason": new.get("reason", "")}
    if old is None or new is None or not (was and came):
        gone = was or (old and not new)
        said = "GONE" if gone else "NEW" if came or not old else "DECLINED"
        return line | {"verdict": said, "reason": (new or {}).get("reason", "")}
    # Any ratio in the one interval over any in the other: no assumption on how the two are spread.
    change = Interval(came[0] / was[0], came[1] / was[2], came[2] / was[1])
    noise = max(r.get("noise") or 0.0 for r in (old, new))
    least = max(margin, MARGIN, 2 * noise)
    said = "FAST" if change.low > 1 + least else verdict(change, least / 2)
    return line | {"change": rounded(change), "verdict": said, "reason": ""}


def differences(old: Sequence[Found], new: Sequence[Found]) -> list[str]:
    """Return what the heads say differently: versions, threads, method."""
    before, now = (_head(lines) for lines in (old, new))
    found = []
    for what in ("versions", "machine", "effort", "method", "cuda"):
        one, two = before.get(what), now.get(what)
        if isinstance(one, dict) and isinstance(two, dict):
            names = sorted(n for n in {*one, *two} if one.get(n) != two.get(n))
            found += [f"{n}: {one.get(n)} before, {two.get(n)} now" for n in names]
        elif one != two and one is not None:
            found.append(f"{what}: {one} before, {two} now")
    return found


def _head(lines: Sequence[Found]) -> Found:
    heads = [line for line in lines if line["record"] == "head"]
    return heads[-1] if heads else {}


def _require_one_device(old: Sequence[Found], new: Sequence[Found]) -> None:
    before, now = (_head(lines).get("device", {}).get("name") for lines in (old, new))
    if before != now:
        raise InvalidInputError(
            f"records of one device can be compared, got {before} and {now}", argument="compare"
        )
