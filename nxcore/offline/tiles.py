"""Timings of a kernel's tiles, from which a plugin's author makes the table of its planner.

A kernel file may have ``sweep(problem)`` besides ``plan``: it yields values for ``plan(problem, tile)``. No
call of a user sweeps: the planner takes a tile from the plugin's own table, which is made from these timings.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.measure import ceilings, race
from nxcore.measure.cold import rotating, rotation
from nxcore.measure.decision import Interval, interval
from nxcore.measure.race import Effort
from nxcore.measure.timing import Timing
from nxcore.spec.device import describe
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem
from nxcore.spec.spec import OpSpec
from nxcore.trust.truth import Truth

CHOSEN = "chosen"
EFFORT = Effort(looks=(12, 20), warm_s=0.05, budget_s=10.0)

Advance = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one tile.

    Attributes
    ----------
    tile : str
        The tile as its plugin writes it; ``chosen`` for the planner's own choice.
    device_us : float, optional
        The median device time; None if it couldn't be timed.
    share : float, optional
        The ratio of the floor to that time.
    ratio : tuple of float, optional
        Its speed relative to the chosen tile, block by block: median, low, high.
    reason : str
        Why it wasn't timed: its exception, or how its result is wrong.
    wrong : bool
        Whether its result differs from the reference.
    """

    tile: str
    device_us: float | None = None
    share: float | None = None
    ratio: tuple[float, float, float] | None = None
    reason: str = ""
    wrong: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def swept(
    spec: OpSpec,
    backend: Backend,
    kernel: Kernel,
    args: tuple[Any, ...],
    *,
    most: int = 24,
    effort: Effort = EFFORT,
    advance: Advance = lambda *_: None,
) -> list[Row]:
    """Race the tiles of a kernel on one call; each is verified against float64 first.

    Parameters
    ----------
    spec : OpSpec
    backend : Backend
    kernel : Kernel
        The kernel with tiles.
    args : tuple
        The call's arguments, all positional.
    most : int
        The most tiles.
    effort : Effort
        The number of blocks and the time budget.
    advance : callable
        Called as ``advance(what, done, total)`` at every step.

    Returns
    -------
    list of Row
        The chosen tile first, the others sorted by time.

    Raises
    ------
    InvalidInputError
        If the kernel has no tiles to sweep.
    UnsupportedProblemError
        If it rejects the call.
    """
    if kernel.sweep is None or len(inspect.signature(kernel.plan).parameters) < 2:
        raise InvalidInputError(f"{backend.label(kernel)} has no tiles for {spec.name!r}", argument="backend")
    problem = Problem.of(spec, args)
    if not (verdict := kernel.takes(problem)):
        raise UnsupportedProblemError(spec.name, backend.name, [verdict.reason])
    tiles = [None, *itertools.islice(kernel.sweep(problem), most)]
    found, rows = _verified(kernel, problem, tiles, Truth.of(spec, args), args, advance)
    if CHOSEN not in found:
        return rows
    sets = rotation(args, describe(problem.device).l2)
    calls = rotating(found, sets)
    advance("racing", len(tiles), 2 * len(tiles))
    failures: dict[str, str] = {}
    with torch.no_grad():
        timings = race.race(
            calls,
            problem.device,
            effort=effort,
            failed=lambda name, error: failures.update({name: f"{type(error).__name__}: {error}"}),
        )
    advance("done", 2 * len(tiles), 2 * len(tiles))
    floor_us = ceilings.ceilings(problem.device).floor_us(spec.cost(*args))
    timed = [_row(name, timing, timings[CHOSEN], floor_us) for name, timing in timings.items()]
    rows += [Row(name, reason=why) for name, why in failures.items()]
    return sorted(timed, key=lambda r: (r.tile != CHOSEN, r.device_us)) + rows


def _verified(
    kernel: Kernel, problem: Problem, tiles: list[Any], truth: Truth, args: tuple[Any, ...], advance: Advance
) -> tuple[dict[str, Callable[..., Any]], list[Row]]:
    """Return the calls of the tiles that agree with float64, and a row for each other tile."""
    found: dict[str, Callable[..., Any]] = {}
    left: list[Row] = []
    for done, tile in enumerate(tiles):
        name = CHOSEN if tile is None else str(tile)
        advance(name, done, 2 * len(tiles))
        try:
            call = kernel.plan(problem) if tile is None else _plan(kernel, problem, tile)
            with torch.no_grad():
                agreed = truth.judge(call(*args))
        except Exception as error:  # noqa: BLE001  a tile may need more than the device has
            left.append(Row(name, reason=f"{type(error).__name__}: {error}"))
            continue
        if agreed.ok:
            found[name] = call
        else:
            left.append(Row(name, reason=f"wrong: {agreed.reason}", wrong=True))
    return found, left


def _plan(kernel: Kernel, problem: Problem, tile: Any) -> Callable[..., Any]:
    plan: Callable[..., Callable[..., Any]] = kernel.plan
    return plan(problem, tile)


def _row(name: str, timing: Timing, chosen: Timing, floor_us: float) -> Row:
    ratios: Interval = interval(
        [theirs / mine for mine, theirs in zip(timing.device_us, chosen.device_us, strict=False)]
    )
    median = timing.device_median_us
    return Row(name, median, floor_us / median, (ratios.median, ratios.low, ratios.high))
