"""Ceilings: the measured limits of a device."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nxcore.measure.race import Effort, race
from nxcore.spec.spec import Cost

UNSURE = 0.2  # relative excess of the median block over the fastest one, above which a ceiling is unsure


TRIES = 2  # repeated measurements of ceilings that are unsure, or slower than a row of a table


SLACK = 0.97  # ceilings are noisy too, so a row may be below the floor by this factor


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The measured limits of a device.

    Attributes
    ----------
    t0_us : float
        Time of the smallest operation, in microseconds.
    bandwidths : tuple of (int, float)
        Bytes in flight -> bytes per second, read plus written: small tensors live in caches.
    flops : float
        Floating-point operations per second in float32.
    noise : float
        Relative excess of the median block over the fastest one, the median of all measurements.
    """

    t0_us: float
    bandwidths: tuple[tuple[int, float], ...]
    flops: float
    noise: float = 0.0

    @property
    def unsure(self) -> bool:
        """Whether other work ran beside the measurement, so that the device may be able to do more."""
        return self.noise > UNSURE

    def bandwidth(self, size: int) -> float:
        """Return the bytes per second for ``size`` bytes: the best at the next smaller and all larger sizes.

        A small tensor could reach the bandwidth of a large one: its own figure contains launch overhead.
        """
        below = [n for n, _ in self.bandwidths if n <= size][-1:]
        least = below[0] if below else 0
        return max(b for n, b in self.bandwidths if n >= least)

    def floor_us(self, cost: Cost) -> float:
        """Return the lower bound of the time for ``cost``, in microseconds: t0 + max(bytes, operations)."""
        return self.t0_us + 1e6 * max(cost.bytes / self.bandwidth(cost.bytes), cost.flops / self.flops)

    def raised(self, other: Ceilings) -> Ceilings:
        """Return the better of both, figure by figure: a rate that was reached once can be reached again."""
        bandwidths = zip(self.bandwidths, other.bandwidths, strict=True)
        return Ceilings(
            min(self.t0_us, other.t0_us),
            tuple((size, max(ours, theirs)) for (size, ours), (_, theirs) in bandwidths),
            max(self.flops, other.flops),
            min(self.noise, other.noise),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the ceilings as plain data."""
        bandwidths = [list(b) for b in self.bandwidths]
        return {"t0_us": self.t0_us, "bandwidths": bandwidths, "flops": self.flops, "noise": self.noise}


@functools.cache
def ceilings(device: torch.device) -> Ceilings:
    """Return the limits of ``device``, measured once per process, and again while they are unsure."""
    found = ceilings_now(device)
    for _ in range(TRIES):
        if found.unsure:
            found = found.raised(ceilings_now(device))
    return found


def ceilings_now(device: torch.device) -> Ceilings:
    """Measure the limits of ``device``, in about a second.

    Bandwidth is the best of a copy, an addition in place and a dot product (reads only) over as many bytes;
    operations are counted on a matrix product in strict float32.
    """
    effort = Effort(looks=(5,), warm_s=0.02, budget_s=1.0)
    one = torch.zeros(1, device=device)
    t0, noise = _best_us({"t0": one.zero_}, device, effort)
    noises = [noise]
    top = 30 if device.type == "cuda" else 28
    sizes = [1 << p for p in range(14, top + 1, 2)]
    bandwidths = []
    for size in sizes:
        rate, noise = _bandwidth(device, size, t0, effort)
        bandwidths.append((size, rate))
        noises.append(noise)
    n = 4096 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device)
    product_us, noise = _best_us({"product": lambda: torch.mm(a, a)}, device, effort)
    flops = 2 * n**3 / (product_us * 1e-6)
    return Ceilings(t0, tuple(bandwidths), flops, statistics.median([*noises, noise]))


def _best_us(
    calls: Mapping[str, Callable[[], Any]], device: torch.device, effort: Effort
) -> tuple[float, float]:
    """Return the least microseconds of any block of any call, and the relative excess of its median block.

    The minimum counts, since a ceiling only has to be reached once.
    """
    timings = race(calls, device, effort=effort, suspect=False).values()
    fastest = min(timings, key=lambda t: min(t.device_us))
    least = min(fastest.device_us)
    return least, fastest.device_median_us / least - 1


def _bandwidth(device: torch.device, size: int, t0: float, effort: Effort) -> tuple[float, float]:
    """Return the best bytes per second over ``size`` bytes, and its noise.

    ``t0``, the time of the smallest operation, is subtracted: it is launch overhead.
    """
    half = size // 8
    source, target = torch.randn(half, device=device), torch.empty(half, device=device)
    calls = {
        "copy": lambda: target.copy_(source),
        "dot": lambda: torch.dot(source, target),
        "add": lambda: torch.add(source, target, out=target),
    }
    target.copy_(source)
    fastest, noise = _best_us(calls, device, effort)
    return size / (max(fastest - t0, fastest / 4) * 1e-6), noise
