"""Timing: one measurement as a value."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Timing:
    """What one candidate took, block by block; blocks of candidates measured together are paired.

    Attributes
    ----------
    device_us : tuple of float
        Microseconds that the device was busy with one call, one value a block.
    host_us : tuple of float
        Microseconds that the host needed to issue one call, one value a block. On the CPU both
        are the same time.
    """

    device_us: tuple[float, ...]
    host_us: tuple[float, ...]

    @property
    def call_us(self) -> tuple[float, ...]:
        """Microseconds a call costs in eager mode: the slower of host and device, block by block."""
        return tuple(max(pair) for pair in zip(self.device_us, self.host_us, strict=True))

    @property
    def median_us(self) -> float:
        """The median of ``call_us``; never the mean, never the minimum."""
        return statistics.median(self.call_us)

    @property
    def device_median_us(self) -> float:
        """The median of ``device_us``."""
        return statistics.median(self.device_us)

    def paced(self, then: Timing, now: Timing) -> Timing:
        """Return these times as if they had been taken beside ``then`` instead of ``now``, block by block.

        The ratio to the one beside it stays; there are as many blocks as all three have.
        """
        rows = list(zip(self.call_us, then.call_us, now.call_us, strict=False))
        scale = [old / new for _, old, new in rows]
        device, host = (
            tuple(t * k for t, k in zip(times, scale, strict=False))
            for times in (self.device_us, self.host_us)
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
