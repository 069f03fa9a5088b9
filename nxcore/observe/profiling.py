"""Profiles by operator and kernel: torch's profiler with a region around each call."""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from torch.autograd.profiler import record_function

from nxcore.spec.problem import Problem

if TYPE_CHECKING:
    from torch.profiler import profile as TorchProfile  # noqa: N812  a class with a function's name

PREFIX = "nxcore::"
"""The prefix of all region names, as ``aten::`` is that of torch's operators."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Spent:
    """The times of the calls of one name.

    Attributes
    ----------
    name : str
        The operator, or the name given to ``profile_op``.
    kernel : str
        The kernel that served the calls; empty for a region of ``profile_op``.
    count : int
    total_us, mean_us : float
        Wall time of the host, including the profiler's own cost.
    device_us : float
        Total GPU time of all calls.
    peak_bytes : int
        The largest allocation of one call above the allocation at its start.
    """

    name: str
    kernel: str
    count: int
    total_us: float
    mean_us: float
    device_us: float
    peak_bytes: int


class Regions:
    """Wraps the calls of every plan in a region of torch's profiler."""

    sees_both_ways = False

    def paired(self, forward: Problem, backward: Problem, *, guessed: bool = False) -> None:
        """Do nothing: torch's profiler covers gradients by itself."""

    def observing(self, problem: Problem, label: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` in a region named after operator and kernel."""
        name = f"{PREFIX}{problem.op} [{label}]"

        def observed(*args: Any) -> Any:
            with record_function(name):
                return call(*args)

        return observed


class Profile:
    """A report, complete once the ``with`` block of ``nxcore.profile`` has ended.

    Parameters
    ----------
    torchs : torch.profiler.profile
        The profiler; with ``profile_memory``.
    """

    def __init__(self, torchs: TorchProfile) -> None:
        self.torchs = torchs

    @functools.cached_property
    def rows(self) -> tuple[Spent, ...]:
        """The times by operator and kernel, the most expensive first.

        Raises
        ------
        RuntimeError
            If the ``with`` block hasn't ended.
        """
        if self.torchs.profiler is None or self.torchs.profiler.kineto_results is None:
            raise RuntimeError("a profile has rows only after its with block has ended")
        peaks = _peaks(self.torchs.profiler.kineto_results.events())
        ours = [event for event in self.torchs.key_averages() if event.key.startswith(PREFIX)]
        device_us: dict[str, float] = defaultdict(float)
        for event in ours:  # a row of the host and one of the device; only one of them may have the time
            device_us[event.key] = max(device_us[event.key], float(event.device_time_total))
        found = []
        for event in ours:
            if not (total := float(event.cpu_time_total)):
                continue  # the device's row
            name, _, rest = event.key.removeprefix(PREFIX).partition(" [")
            kernel, mean, on_device = rest.removesuffix("]"), total / event.count, device_us[event.key]
            peak = peaks.get(event.key, 0)
            found.append(Spent(name, kernel, event.count, total, mean, on_device, peak))
        return tuple(sorted(found, key=lambda row: -max(row.total_us, row.device_us)))

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as plain data."""
        return {"rows": [asdict(row) for row in self.rows]}

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write all events of torch's profiler, for ``chrome://tracing`` or Perfetto."""
        self.torchs.export_chrome_trace(str(path))

    def __str__(self) -> str:
        head = ("name", "kernel", "calls", "mean us", "total ms", "device ms", "peak MiB")
        lines = [head, *map(_cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(_line(cells, widths) for cells in lines)


def profile_op(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give the calls of a function their own row in ``nxcore.profile``.

    Parameters
    ----------
    name : str
        The name of the row.

    Examples
    --------
    >>> @nxcore.profile_op("double")
    ... def double(x):
    ...     return 2 * x
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def named(*args: P.args, **kwargs: P.kwargs) -> R:
            with record_function(f"{PREFIX}{name}"):
                return function(*args, **kwargs)

        return named

    return decorate


def _cells(row: Spent) -> tuple[str, ...]:
    times = (f"{row.mean_us:.1f}", f"{row.total_us / 1e3:.2f}", f"{row.device_us / 1e3:.2f}")
    return (row.name, row.kernel, str(row.count), *times, f"{row.peak_bytes / 2**20:.1f}")


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:2], widths, strict=False)]
    right = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return "  ".join((*left, *right)).rstrip()


def _peaks(events: Iterable[Any]) -> dict[str, int]:
    """Return the peak allocation of a call of each region, on one device and in its own thread."""
    regions: list[tuple[str, int, int, int]] = []
    memory: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event.name() == "[memory]":
            place = f"{event.device_type()}:{event.device_index()}"
            memory[event.start_thread_id(), place].append((event.start_ns(), event.nbytes()))
        elif event.name().startswith(PREFIX) and str(event.device_type()).endswith("CPU"):
            begun = event.start_ns()
            regions.append((event.name(), event.start_thread_id(), begun, begun + event.duration_ns()))
    for changes in memory.values():
        changes.sort()
    peaks: dict[str, int] = defaultdict(int)
    for name, thread, begun, ended in regions:
        for (of, _), changes in memory.items():
            if of == thread:
                peaks[name] = max(peaks[name], *_running(changes, begun, ended))
    return peaks


def _running(changes: list[tuple[int, int]], begun: int, ended: int) -> Iterator[int]:
    """Yield 0, and the allocation since ``begun`` after each change up to ``ended``."""
    level = 0
    yield level
    first, last = bisect_left(changes, (begun, -(2**62))), bisect_right(changes, (ended, 2**62))
    for _, size in changes[first:last]:
        level += size
        yield level
