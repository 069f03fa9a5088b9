"""Facts about a device: the key under which measurements are stored."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nxcore.errors import InvalidInputError

TESTED_TORCH = ("2.10", "2.13")
"""The oldest and the newest release of torch that this version was tested with."""

LOOKS, LOOK_S, AT_WORK_S = 5, 0.005, 1e-3
"""Waits for a device that show whether it is at work, seconds between them, and the most of an idle one."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device as facts.

    Attributes
    ----------
    type : str
        torch's device type, ``"cpu"`` or ``"cuda"``.
    name : str
        The model, as the driver or the operating system gives it.
    capability : str
        ``"9.0"`` for CUDA; the instruction set torch uses (``"AVX512"``) on the CPU.
    units : int
        Multiprocessors on CUDA, threads that torch uses on the CPU.
    memory : int
        Bytes of device memory (of main memory on the CPU).
    l2 : int
        Bytes of last-level cache shared by all units; 0 if not known.
    """

    type: str
    name: str
    capability: str
    units: int
    memory: int
    l2: int

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return asdict(self)


def torch_note(version: str = torch.__version__) -> str:
    """Return a note for a torch that is newer than the tested releases; empty for others.

    Parameters
    ----------
    version : str
        A release of torch, such as ``"2.13.0+cpu"``. By default, the imported one.
    """
    newest = TESTED_TORCH[1]
    if _release(version) <= _release(newest):
        return ""
    major, minor = _release(newest)
    tested = f"nxcore was tested with torch {TESTED_TORCH[0]} to {newest}, found {version}"
    return f"{tested}; pip install 'torch<{major}.{minor + 1}'"


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


@functools.cache
def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


@functools.cache
def _cpu_cache() -> int:
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text(encoding="utf-8").strip()
    except OSError:
        return 0
    return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1) if text[:-1].isdigit() else 0


@functools.cache
def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


@functools.cache
def _cuda(index: int) -> Device:
    facts = torch.cuda.get_device_properties(index)
    return Device(
        type="cuda",
        name=facts.name,
        capability=f"{facts.major}.{facts.minor}",
        units=facts.multi_processor_count,
        memory=facts.total_memory,
        l2=getattr(facts, "L2_cache_size", 0),
    )


def describe(device: torch.device | str) -> Device:
    """Return the facts of ``device``; never initialises CUDA for a CPU device."""
    device = torch.device(device)
    if device.type == "cuda":
        return _cuda(device.index if device.index is not None else torch.cuda.current_device())
    return _host(device.type, torch.get_num_threads())


@functools.cache
def _host(kind: str, threads: int) -> Device:
    return Device(
        type=kind,
        name=_cpu_name() if kind == "cpu" else kind,
        capability=torch.backends.cpu.get_cpu_capability(),
        units=threads,
        memory=_memory(),
        l2=_cpu_cache(),
    )


def properties(device: torch.device) -> dict[str, Any]:
    """Return the properties of a CUDA device as torch names them: numbers and strings."""
    found = torch.cuda.get_device_properties(device)
    values = {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}
    return {name: value for name, value in values.items() if isinstance(value, int | str)}


def pretend(facts: dict[str, Any]) -> None:
    """Have torch report these properties for every CUDA device, in a process that has none."""
    found: Any = types.SimpleNamespace(**facts)
    torch.cuda.get_device_properties = lambda *_, **__: found


def available(name: str | None = None) -> torch.device:
    """Return the named device; without a name, CUDA where there is one, else the CPU.

    Raises
    ------
    InvalidInputError
        If the name is not a device of torch, or this machine lacks the device.
    """
    cuda = torch.cuda.is_available()
    try:
        device = torch.device(name or ("cuda" if cuda else "cpu"))
    except RuntimeError as error:
        raise InvalidInputError(f"device must be cpu or cuda, got {name!r}", argument="device") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidInputError(f"device must be cpu or cuda, got {name!r}", argument="device")
    if device.type == "cuda" and (not cuda or (device.index or 0) >= torch.cuda.device_count()):
        count = torch.cuda.device_count()
        raise InvalidInputError(
            f"device {name!r} is missing: torch sees {count} CUDA devices", argument="device"
        )
    return device


def current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make ``device`` the current device in a ``with`` block, for streams and events."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


CAPTURES = threading.RLock()
"""Held while nxcore captures a CUDA graph, and while a thread waits for a whole device.

A wait for a whole device ends every capture on it, whichever thread waits; one for a stream doesn't.
"""

LOCK_S = 60.0
"""The most seconds that one waits for the other, and a fork for background work: two that wait for each other
go on then."""


@contextlib.contextmanager
def no_capture_beside() -> Iterator[None]:
    """Keep captures, and waits for a whole device, of other threads out of this block."""
    held = CAPTURES.acquire(timeout=LOCK_S)
    try:
        yield
    finally:
        if held:
            CAPTURES.release()


def synchronize(device: torch.device) -> None:
    """Wait until all work on ``device`` is done, and before that for a capture's end; a no-op on the CPU."""
    if device.type == "cuda":
        with no_capture_beside():
            torch.cuda.synchronize(device)


def occupied(device: torch.device) -> bool:
    """Return whether the program keeps ``device`` at work, so that a race beside it shows nothing.

    Each of its calls waits for the program's work, and the program for it.
    """
    if device.type != "cuda":
        return False
    waited = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        synchronize(device)
        waited.append(time.perf_counter() - began)
        time.sleep(LOOK_S)
    return sorted(waited)[LOOKS // 2] > AT_WORK_S


def heed_no_capture() -> None:
    """Let this thread use CUDA while another thread captures a graph, without breaking that graph."""
    thread_local = ctypes.c_int(1)  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    with contextlib.suppress(OSError, AttributeError):  # no driver of that name, such as on ROCm
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(thread_local))
