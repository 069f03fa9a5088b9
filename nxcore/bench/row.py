"""Row: the result of one kernel in one cell, a line of a record; and the rules of verdicts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from nxcore.measure.decision import MARGIN, Interval
from nxcore.measure.timing import Timing

Record = Literal["row", "again", "choice"]
Verdict = Literal["BASE", "FAST", "SAME", "SLOW", "AMBG", "WRONG", "DECLINED", "BELOW_FLOOR"]

BAD = frozenset({"WRONG", "BELOW_FLOOR"})
"""Verdicts that fail a run: a wrong result, and a time that is impossible."""

ALIKE = 1.1
"""Times further apart than this ratio are never ``SAME``, however noisy the race."""

Ratio = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a record.

    Attributes
    ----------
    record : str
        ``row`` for a kernel; ``again`` for the A/A row, torch's fastest idiom a second time; ``choice`` for
        the chooser's winner by the same timings.
    op, sample, dtype : str
        The cell.
    label : str
        The kernel.
    verdict : str
        ``BASE`` (torch's own), ``FAST`` (a winner by the rule), ``SAME`` or ``SLOW`` (the interval lies
        within the margin, or below it), ``AMBG`` (neither), ``WRONG``, ``DECLINED``, or ``BELOW_FLOOR``:
        faster than the device can be, hence a measurement error.
    reason : str
        Why it was not timed.
    error : float, optional
        Relative error against float64 in the 2-norm, on this cell.
    precision : str
        The precision class of this error, in float32.
    noise : float, optional
        The A/A noise: half the width of the A/A row's interval.
    bytes, flops : int, optional
        The fewest bytes that a call must move, and operations that it must do.
    floor_us : float, optional
        The shortest time possible on the device, in microseconds.
    floor_unsure : bool, optional
        True if torch itself exceeded the measured ceilings, because other work ran during their measurement.
        The floor is then torch's time.
    device_us, host_us, call_us : float, optional
        Median time of a call on the device, on the host, and in eager mode (the larger of both).
    ratio : (float, float, float), optional
        Times as fast as torch's fastest idiom, from pairs of blocks: median, low, high.
    p : float, optional
        p value of the test that it is faster by the margin.
    share_of_floor : float, optional
        The floor over the device's time.
    gb_per_s, tflop_per_s : float, optional
        ``bytes`` and ``flops`` over the device's time.
    blocks : int, optional
        Number of blocks measured.
    device_blocks_us, host_blocks_us : tuple of float
        Time of each block. The host's are omitted if equal to the device's, as on the CPU.
    compile_s : float, optional
        Seconds until a kernel's first call on the cell returned in that process: verification, compilation,
        the call. Short if verdict and compiled code were on disk.
    repeats : str
        Of the A/A row: the idiom of torch that it repeats.
    chosen : str
        Of a choice: the winner.
    regret : float, optional
        Of a choice: its time over that of the best eligible kernel, minus one.
    dispatch_us : float, optional
        Of a choice: the microseconds that a call through the operator adds to a direct call.
    ratio_called : (float, float, float), optional
        Of a choice: the ratio that includes ``dispatch_us``.
    clocks : dict, optional
        The device's clocks after the race, if it reports them.
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
    repeats: str = ""
    chosen: str = ""
    regret: float | None = None
    dispatch_us: float | None = None
    ratio_called: Ratio | None = None
    clocks: dict[str, Any] | None = None

    @property
    def call_blocks_us(self) -> tuple[float, ...]:
        """Microseconds of a call in eager mode, for each block."""
        return Timing(self.device_blocks_us, self.host_blocks_us or self.device_blocks_us).call_us

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data. Missing values are omitted, except the error."""
        return {k: v for k, v in asdict(self).items() if k == "error" or v not in (None, "", ())}


def verdict(ratio: Interval, noise: float) -> Verdict:
    """Return the verdict of an interval of a kernel that did not win."""
    margin = 1 + max(MARGIN, 2 * noise)
    if ratio.high < 1 / margin:
        return "SLOW"
    alike = min(margin, ALIKE)
    return "SAME" if 1 / alike <= ratio.low and ratio.high <= alike else "AMBG"


def rounded(ratio: Interval | None) -> Ratio | None:
    """Return an interval as a tuple, rounded for a row."""
    return None if ratio is None else (round(ratio.median, 4), round(ratio.low, 4), round(ratio.high, 4))
