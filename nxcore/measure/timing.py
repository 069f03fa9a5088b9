"""Timing: one measurement as a value."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Literal

Regime = Literal["eager", "captured"]
"""How a call is made: issued by the host each time, or replayed in a CUDA graph."""

REGIMES: tuple[Regime, ...] = ("eager", "captured")


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one candidate, block by block; blocks of candidates in one race are paired.

    Times are microseconds of a call, of the device and to issue it; on the CPU both are the same. The A/A row
    ``repeats`` a label, empty for the reference. ``lost`` is the share of the race's time in which others had
    the processors, ``fault`` why its times say nothing; empty if they do.
    """

    device_us: tuple[float, ...]
    host_us: tuple[float, ...]
    repeats: str = ""
    lost: float = 0.0
    fault: str = ""

    @property
    def call_us(self) -> tuple[float, ...]:
        """The cost of an eager call in microseconds: the slower of host and device, block by block."""
        return tuple(max(pair) for pair in zip(self.device_us, self.host_us, strict=True))

    def us(self, regime: Regime) -> tuple[float, ...]:
        """Return the cost of a call in microseconds, block by block; a replay costs device time alone."""
        return self.call_us if regime == "eager" else self.device_us

    def median(self, regime: Regime) -> float:
        """Return the median of ``us(regime)``; never the mean, never the minimum."""
        return statistics.median(self.us(regime))

    @property
    def median_us(self) -> float:
        """The median of ``call_us``."""
        return self.median("eager")

    @property
    def device_median_us(self) -> float:
        """The median of ``device_us``."""
        return self.median("captured")

    def paced(self, then: Timing, now: Timing) -> Timing:
        """Return these times as if they had been measured together with ``then`` instead of ``now``.

        The ratios of device time and of call time are kept, block by block. The result has as many blocks as
        all three timings have.
        """
        device, host = (
            tuple(mine * old / new for mine, old, new in zip(*rows, strict=False))
            for rows in (
                (self.device_us, then.device_us, now.device_us),
                (self.host_us, then.call_us, now.call_us),
            )
        )
        return Timing(device, host)

    def to_dict(self) -> dict[str, Any]:
        """Return the medians and all blocks as plain data."""
        return {
            "median_us": self.median_us,
            "device_median_us": self.device_median_us,
            "host_median_us": statistics.median(self.host_us),
            "device_us": list(self.device_us),
            "host_us": list(self.host_us),
        }


def duration(us: float) -> str:
    """Return microseconds as text, in a fitting unit. All times are written this way."""
    if us < 1e3:
        return f"{us:,.1f} us"
    return f"{us / 1e3:,.2f} ms" if us < 1e6 else f"{us / 1e6:,.2f} s"
