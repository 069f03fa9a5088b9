"""Launch: a kernel bound to its grid and its values, so that a call decides nothing but where data lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore_cuda.machine import handle, host, toolkit
from nxcore_cuda.machine.instance import Instance

if toolkit.EMULATED:
    from nxcore_cuda.emulator.emulate import EmulatedHandle as Handle
    from nxcore_cuda.emulator.emulate import prepare
    from nxcore_cuda.machine.handle import Guarded as OwnGuarded
else:
    from nxcore_cuda.machine.native import Guarded as OwnGuarded
    from nxcore_cuda.machine.native import Handle, prepare

__all__ = ["Guarded", "Launch", "Launcher", "ticket", "tickets"]

Launcher = Callable[..., None]
"""The launchers that ``Launch`` and ``Guarded`` return: ``launcher(*tensors, tail=None)``."""

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
TICKETS = 64

_tickets: dict[tuple[int, int], Tensor] = {}


def Launch(  # noqa: N802  named as what it returns
    instance: Instance,
    device: torch.device,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None = None,
    shared: int = 0,
    *,
    pointers: int,
    layout: str = "",
    values: tuple[Any, ...] = (),
) -> Launcher:
    """Return a kernel of one device with its grid, its block and its values.

    It is compiled and loaded here. A call, ``launch(*tensors, tail=None)``, passes tensors (None: a null
    pointer) in the order of the struct's pointers, and launches on torch's current stream; a ``tail``
    replaces ``values`` for that call.

    Parameters
    ----------
    grid, block : int or sequence of int
        Up to three each, x first.
    shared : int
        Bytes of dynamic shared memory.
    pointers : int
        How many pointers the kernel's struct begins with.
    layout : str
        What follows them, as the struct module writes it: ``"qf"`` is a ``long long`` and a ``float``.
    values : tuple
        Of that layout.
    """
    blocks = _three(instance, "grid", grid, MAX_GRID)
    threads = _three(instance, "block", instance.threads if block is None else block, MAX_BLOCK)
    if (total := threads[0] * threads[1] * threads[2]) > instance.threads:
        raise ValueError(f"{instance.symbol} takes blocks of at most {instance.threads} threads, got {total}")
    args = (instance, device, (*blocks, *threads), shared, pointers, layout, values)
    other = host.current()
    return Handle(*prepare(*args)) if other is None else other.handle(*args)


def Guarded(vector: Launcher | None, scalar: Launcher) -> Launcher:  # noqa: N802  named as what it returns
    """Return what calls ``vector`` where every tensor's data is 16-byte aligned, and ``scalar`` elsewhere."""
    return (OwnGuarded if host.current() is None else handle.Guarded)(vector, scalar)


def _three(instance: Instance, what: str, given: int | Sequence[int], most: Sequence[int]) -> tuple[int, ...]:
    sizes = (given,) if isinstance(given, int) else tuple(given)
    shape = (*sizes, 1, 1)[: max(len(sizes), 3)]
    if len(shape) != 3 or any(not 1 <= n <= m for n, m in zip(shape, most, strict=False)):
        raise ValueError(f"{instance.symbol}: needs a {what} of 1 to {tuple(most)}, got {sizes}")
    return shape


def ticket(device: torch.device, count: int = TICKETS) -> Tensor:
    """Return int32 zeros that the blocks of a launch count their arrivals in.

    The last block to arrive puts 0 back, so one tensor serves all launches of one stream, which don't
    overlap. In a graph, whose launches may overlap others, it is a fresh one that the graph clears.

    Parameters
    ----------
    count : int
        How many are wanted.
    """
    if device.type != "cuda":
        index, stream = -1, 0
    elif torch.cuda.is_current_stream_capturing():
        return torch.zeros(count, dtype=torch.int32, device=device)
    else:
        index = torch.cuda.current_device() if device.index is None else device.index
        stream = torch._C._cuda_getCurrentRawStream(index)  # noqa: SLF001  as at the launch
    found = _tickets.get((index, stream))
    if found is None or found.numel() < count:
        found = torch.zeros(max(count, TICKETS), dtype=torch.int32, device=device)
        _tickets[index, stream] = found
    return found


def tickets() -> dict[int, int]:
    """Return the address of every ticket there is, and its count."""
    return {found.data_ptr(): found.numel() for found in _tickets.values()}
