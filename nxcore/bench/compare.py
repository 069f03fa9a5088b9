"""Compare two records cell by cell: a kernel's ratio to torch in the new one, over that in the old one.

Times of two processes are not comparable, since clocks, memory and other load differ. Both races include
torch, so the ratios to torch are compared. Each process also has a bias that no number of blocks within it
shows; the margin allows for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nxcore.bench.record import key_of, rows
from nxcore.bench.row import BAD, rounded, verdict
from nxcore.errors import InvalidInputError
from nxcore.measure.decision import MARGIN, Interval

PROCESS = 0.05
"""The margin between two processes: two runs of the same code differ by this much."""

Found = dict[str, Any]


def compare(old: Sequence[Found], new: Sequence[Found], margin: float = PROCESS) -> list[Found]:
    """Return one line for each kernel and cell of either record.

    Parameters
    ----------
    old, new : sequence of dict
        The lines of two records.
    margin : float
        A change must exceed this, and also ``MARGIN`` and twice the A/A noise of both records.

    Returns
    -------
    list of dict
        The cell, ``label``, ``verdict``, ``old`` and ``new`` (ratios to torch, or None), and ``change``:
        new over old, with an interval that covers every pair of values of both intervals. Verdicts:
        ``FAST``, ``SAME``, ``SLOW`` and ``AMBG`` as in a row; ``WRONG`` and ``BELOW_FLOOR`` of the new
        record; ``GONE`` and ``NEW`` if only one record has a time.

    Raises
    ------
    InvalidInputError
        If the records are of different devices, or have no row in common.
    """
    _require_one_device(old, new)
    before, now = (
        {(*key_of(r), r["label"]): r for r in rows(lines) if r["record"] == "row"} for lines in (old, new)
    )
    if not before.keys() & now.keys():
        raise InvalidInputError(
            f"the records must have rows in common, got {len(before)} and {len(now)} without one",
            argument="compare",
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
    # The extremes of both intervals: this assumes no distribution.
    change = Interval(came[0] / was[0], came[1] / was[2], came[2] / was[1])
    noise = max(r.get("noise") or 0.0 for r in (old, new))
    least = max(margin, MARGIN, 2 * noise)
    said = "FAST" if change.low > 1 + least else verdict(change, least / 2)
    return line | {"change": rounded(change), "verdict": said, "reason": ""}


def differences(old: Sequence[Found], new: Sequence[Found]) -> list[str]:
    """Return the differences between the heads: versions, threads, method."""
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
            f"both records must be of one device, got {before} and {now}", argument="compare"
        )
