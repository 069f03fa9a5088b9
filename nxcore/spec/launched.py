"""Launches as data, which the compiled call path repeats without the interpreter.

A plan is made once more, with launches that are noted instead of made. One call of it says what all calls do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from nxcore.spec.planning import PLANNING


class Launched(NamedTuple):
    """One launch of a kernel on a GPU, or one call of a function of machine code on the CPU.

    Attributes
    ----------
    function, context : int
        The kernel, and its context, as the driver has them; a context of 0 is that of the thread that notes
        the launch. Or the address of ``int function(...)``, which returns 0.
    shape : tuple of int
        Grid and block, x first, and the bytes of dynamic shared memory. Empty for a function.
    block : bytes
        The values of the parameters. Those of a function are integers and addresses of 64 bits, without the
        floating numbers.
    parameters : tuple of int
        Where in ``block`` each parameter begins.
    pointers : tuple of (int, int)
        Where in ``block`` there are addresses, and which: of a tensor of the call or of one that the plan
        makes. A function may get others, which stay as they are.
    tickets : tuple of (int, int)
        Of pointers to int32 zeros that the kernel puts back, where they lie, and how many zeros there are.
    inside : tuple of (int, int)
        Of pointers into ``block`` itself, where they lie, and to where they point.
    floats : bytes
        A function's floating numbers, at most 8, each in 8 bytes.
    team : tuple of int
        How a function gets its threads: the addresses of ``int threads()`` and ``void set_threads(int)`` for
        the calling thread, and the most that it may have. It runs with as many as torch has. Empty for a
        function that runs on the calling thread.
    driver : tuple of int
        The addresses of what takes the place of the driver's functions; empty for the driver.
    keep : object
        What must live as long as the plan: code, and memory behind addresses.

    Examples
    --------
    >>> nxcore.plugin.Launched(1, 2, (8, 1, 1, 256, 1, 1, 0), bytes(8), (0,), ((0, 4096),)).tickets
    ()
    """

    function: int
    context: int
    shape: tuple[int, ...]
    block: bytes
    parameters: tuple[int, ...]
    pointers: tuple[tuple[int, int], ...]
    tickets: tuple[tuple[int, int], ...] = ()
    inside: tuple[tuple[int, int], ...] = ()
    floats: bytes = b""
    team: tuple[int, ...] = ()
    driver: tuple[int, ...] = ()
    keep: object = None


class Noted(list[Launched]):
    """The launches of the plan that is being recorded.

    Attributes
    ----------
    weights : list of Tensor
        Arguments with whose node the plan may leave sums (``nxcore.plugin.sums_of``).
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []


def noted() -> Noted | None:
    """Return the launches of the plan that is being recorded; None outside of a recording."""
    return PLANNING.get().noted


def note(launch: Launched) -> None:
    """Note a launch of the plan that is being recorded.

    >>> nxcore.plugin.note(nxcore.plugin.Launched(1, 2, (1,) * 7, b"", (), ()))  # outside of a recording
    """
    if (launches := noted()) is not None:
        launches.append(launch)


def recording() -> bool:
    """Return whether the calls of a plan are to note their launches.

    >>> nxcore.plugin.recording()
    False
    """
    return noted() is not None


Recorded = Callable[[Callable[..., Any], Callable[[], Callable[..., Any]]], Callable[..., Any]]
"""Makes a callable of a plan's, and of a function that plans again so that launches are noted."""

_runs: list[Recorded] = []


def run_by(make: Recorded | None) -> None:
    """Set what repeats launches; None leaves them to the plans."""
    _runs[:] = [] if make is None else [make]


def repeats() -> bool:
    """Return whether launches are repeated without the interpreter."""
    return bool(_runs)


def recorded(call: Callable[..., Any], again: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a planned callable whose launches are repeated without the interpreter, or ``call``.

    Parameters
    ----------
    call : callable
        The plan.
    again : callable
        Returns the same plan with launches that are noted (``nxcore.plugin.note``) instead of made.
    """
    return _runs[0](call, again) if _runs else call


Planner = Callable[..., Callable[..., Any]]


def repeating(plan: Planner, again: Planner) -> Planner:
    """Return a planner whose plans are ``recorded``; ``again`` plans so that launches are noted."""

    @functools.wraps(plan)
    def planned(*given: Any) -> Callable[..., Any]:
        return recorded(plan(*given), lambda: again(*given))

    return planned
