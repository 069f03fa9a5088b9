"""Row: what became of one kernel in one cell, as a record keeps it; and how verdicts are given."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from nxcore.measure.decision import MARGIN, Interval
from nxcore.measure.timing import Timing

Record = Literal["row", "again", "choice"]
Verdict = Literal["BASE", "FAST", "SAME", "SLOW", "AMBG", "WRONG", "DECLINED", "BELOW_FLOOR"]

BAD = frozenset({"WRONG", "BELOW_FLOOR"})
"""Verdicts that fail a run: a wrong answer, and a time that can't be."""

ALIKE = 1.1
"""What is further apart is never called the same, however noisy the race."""

Ratio = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a record.

    Attributes
    ----------
    record : str
        ``row`` for a kernel; ``again`` for the A/A row, torch's fastest way once more; ``choice`` for what
        the chooser would take by the rule from the same timings.
    op, sample, dtype : str
        The cell.
    label : str
        The kernel.
    verdict : str
        ``BASE`` (torch's own), ``FAST`` (by the rule), ``SAME`` and ``SLOW`` (the interval lies within the
        margin, or beyond it), ``AMBG`` (neither), ``WRONG``, ``DECLINED``, or ``BELOW_FLOOR``: faster than
        the device can be, so an error of the measurement.
    reason : str
        Why, where it was not timed.
    error : float, optional
        Relative error against float64 in the 2-norm, on this very cell.
    precision : str
        The precision class that this error belongs to, in float32.
    noise : float, optional
        The half-width of the A/A row.
    bytes, flops : int, optional
        The least that a call must move and compute.
    floor_us : float, optional
        The least microseconds that the device allows.
    floor_unsure : bool, optional
        True where torch itself was faster than the measured ceilings allow, and its time is the floor: they
        were measured beside other work.
    device_us, host_us, call_us : float, optional
        Medians of what a call costs the device, the host, and the caller in eager mode: the larger of both.
    ratio : (float, float, float), optional
        How many times as fast as torch's best, block by block: median, low, high.
    p : float, optional
        Of the test that it is faster by the margin.
    share_of_floor : float, optional
        The floor over the device's time.
    gb_per_s, tflop_per_s : float, optional
        The least bytes and operations over the device's time.
    blocks : int, optional
        How many were measured.
    device_blocks_us, host_blocks_us : tuple of float
        All of them; the host's are left out where they are the device's, as on the CPU.
    compile_s : float, optional
        Seconds until a kernel first had served the cell in that process: its verdict, what was compiled,
        a first call. Little, where verdict and compiled code were on disk.
    chosen : str
        Of a choice: the kernel.
    regret : float, optional
        Of a choice: its time over the best eligible one's, less one.
    dispatch_us : float, optional
        Of a choice: what a call through the operator costs above a direct one.
    ratio_called : (float, float, float), optional
        Of a choice: the ratio with that cost.
    clocks : dict, optional
        The device's clocks after the race, where it tells.
    """

    record: Record
    op: str
    sample: str
    dtype: str
    label: str
    verdict: Verdict
    reason: str = ""
    error: float | None = None
    precision: str = ""
    noise: float | None = None
    bytes: int | None = None
    flops: int | None = None
    floor_us: float | None = None
    floor_unsure: bool | None = None
    device_us: float | None = None
    host_us: float | None = None
    call_us: float | None = None
    ratio: Ratio | None = None
    p: float | None = None
    share_of_floor: float | None = None
    gb_per_s: float | None = None
    tflop_per_s: float | None = None
    blocks: int | None = None
    device_blocks_us: tuple[float, ...] = ()
    host_blocks_us: tuple[float, ...] = ()
    compile_s: float | None = None
    chosen: str = ""
    regret: float | None = None
    dispatch_us: float | None = None
    ratio_called: Ratio | None = None
    clocks: dict[str, Any] | None = None

    @property
    def call_blocks_us(self) -> tuple[float, ...]:
        """Microseconds a call costs in eager mode, block by block."""
        return Timing(self.device_blocks_us, self.host_blocks_us or self.device_blocks_us).call_us

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data; what it doesn't have is left out, but for the error."""
        return {k: v for k, v in asdict(self).items() if k == "error" or v not in (None, "", ())}


def verdict(ratio: Interval, noise: float) -> Verdict:
    """Return the verdict of an interval that was not enough to win."""
    margin = 1 + max(MARGIN, 2 * noise)
    if ratio.high < 1 / margin:
        return "SLOW"
    alike = min(margin, ALIKE)
    return "SAME" if 1 / alike <= ratio.low and ratio.high <= alike else "AMBG"


def rounded(ratio: Interval | None) -> Ratio | None:
    """Return an interval as a row keeps it."""
    return None if ratio is None else (round(ratio.median, 4), round(ratio.low, 4), round(ratio.high, 4))
