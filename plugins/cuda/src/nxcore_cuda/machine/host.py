"""The host that compiles, loads and launches a plan's kernels: this plugin, or one that shares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nxcore.plugin import Verdict, host


@dataclass(frozen=True)
class Host:
    """Another plugin that runs these kernels on CUDA tensors.

    Attributes
    ----------
    device : callable
        ``device(index) -> Verdict`` answers for a CUDA device.
    handle : callable
        Takes what ``native.prepare`` takes, and returns what a ``Launch`` is there: its calls are a
        ``handle.CtypesHandle``'s, and so is its ``launch``.
    """

    device: Callable[[int], Verdict]
    handle: Callable[..., Any]


def current() -> Host | None:
    """Return the plugin that ``accepts`` and ``plan`` work for at present; None is this one."""
    found = host()
    return found if isinstance(found, Host) else None
