"""Bench: cells -> rows. The kernels of a cell run interleaved, on inputs out of cache; torch runs twice."""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nxcore.bench.cells import Cell
from nxcore.bench.entrants import Entrant, Entry, Guest
from nxcore.bench.head import clocks, head
from nxcore.bench.row import Row, Verdict, rounded, verdict
from nxcore.call.maker import make_operator
from nxcore.call.operator import Plan
from nxcore.choose.contenders import AGAIN
from nxcore.errors import DeviceLostError, present
from nxcore.measure import busy, race
from nxcore.measure import ceilings as limits
from nxcore.measure.ceilings import SLACK, TRIES, Ceilings, ceilings
from nxcore.measure.cold import CACHES, rotating, rotation
from nxcore.measure.decision import Candidate, Interval, compare, decide, interval, settled, winners
from nxcore.measure.race import Effort
from nxcore.measure.timing import Timing
from nxcore.session import Session
from nxcore.spec.device import describe
from nxcore.spec.kernel import Code, Refusal
from nxcore.spec.precision import precision_class
from nxcore.spec.problem import Problem, leaves
from nxcore.spec.spec import Cost, OpSpec
from nxcore.trust.gate import brief

FULL = Effort()
FAST = Effort(looks=(12,), warm_s=0.03, budget_s=0.5)
ROUNDS, CALLS = 7, 200  # of the cost of a call


class Bench:
    """Measures cells on one device.

    Parameters
    ----------
    session : Session
        The session whose kernels are measured.
    device : torch.device
    effort : Effort
        Bounds on the time of a cell.
    backends : collection of str
        Only these and torch; all if empty.
    peers : collection of str
        Backends on request that take part too, such as ``inductor`` and ``jax``.

    Raises
    ------
    UnknownBackendError
        If there is no backend of that name.
    """

    def __init__(
        self,
        session: Session,
        device: torch.device,
        effort: Effort = FULL,
        backends: Collection[str] = (),
        peers: Collection[str] = (),
    ) -> None:
        for name in (*backends, *peers):
            session.registry.backend(name)
        self.session, self.device, self.effort = session, device, effort
        self.backends, self.peers = tuple(backends), tuple(peers)
        self.entry = Entry(session.tuner, self.backends, self.peers)

    @functools.cached_property
    def head(self) -> dict[str, Any]:
        """The record's head."""
        filters = {"backends": sorted(self.backends), "peers": sorted(self.peers)}
        return head(self.session.registry, self.device, self.effort, filters)

    @functools.cached_property
    def ceilings(self) -> Ceilings:
        """The highest bandwidth and throughput of the device measured so far."""
        return ceilings(self.device)

    def labels(self, cell: Cell) -> list[str]:
        """Return the labels of all rows that a cell will have."""
        return [b.label(k) for b, k in self.entry.named(cell.spec.name)]

    def rivals(self, cell: Cell) -> list[str]:
        """Return the labels of what torch's idioms would race: kernels that run here, and peers."""
        asked, probe = {*self.backends, *self.entry.requested}, self.session.registry.probe
        return [
            b.label(k)
            for b, k in self.entry.named(cell.spec.name)
            if (b.name in asked or (b.name != "torch" and not b.on_request))
            and (machine := probe(b, k))
            and not machine.simulated
        ]

    def measure(
        self, cell: Cell, guests: Sequence[Guest] = (), only: Collection[str] | None = None
    ) -> list[Row]:
        """Race the kernels of a cell.

        Parameters
        ----------
        cell : Cell
        guests : sequence of Guest
            Kernels that are not registered.
        only : collection of str, optional
            Labels of the kernels to run. Torch's own always run.

        Returns
        -------
        list of Row
            One for each kernel, including those that failed or declined; then the A/A row and the choice.

        Raises
        ------
        DeviceLostError
            If a kernel destroyed the CUDA context. Nothing can be measured after that.
        """
        try:
            return list(self._rows(cell, guests, only))
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001  e.g. out of memory: the next cell may fit
            return [_row(cell, "torch", "DECLINED", reason=f"not measured: {brief(error)}")]
        finally:
            gc.collect()  # a cell may hold much of the memory

    def check(self, cell: Cell, label: str, guests: Sequence[Guest] = ()) -> Row:
        """Check one kernel against the float64 reference on a cell, without timing it."""
        args = cell.build()
        problem = Problem.of(cell.spec, args)
        for entrant in self.entry.entrants(problem, args, guests, only={label}):
            if entrant.candidate.label == label:
                found = entrant.candidate
                return _row(cell, label, _unraced(found) if found.refusal else "AMBG", **_known(cell, found))
        raise AssertionError(f"{cell.spec.name} has no kernel {label!r}")

    def _rows(self, cell: Cell, guests: Sequence[Guest], only: Collection[str] | None) -> Iterator[Row]:
        args = cell.build()
        problem = Problem.of(cell.spec, args)
        if problem.view:
            yield _row(cell, "torch", "DECLINED", reason="a view: there is nothing to run")
            return
        found = list(self.entry.entrants(problem, args, guests, only))
        started = {e.candidate.label: round(e.compile_s, 3) for e in found if e.compile_s is not None}
        sets = rotation(args, describe(self.device).l2)
        able = {e.candidate.label: e.call for e in found if e.call}
        cost = cell.spec.cost(*args)
        timings, failures = self._raced(rotating(able, sets), [e.candidate for e in found], cost)
        known = [
            replace(
                e.candidate,
                timing=timings.get(e.candidate.label),
                refusal=failures.get(e.candidate.label, e.candidate.refusal),
            )
            for e in found
        ]
        judged, noise = compare(known, timings[AGAIN])
        won = {c.label for c in winners(judged)}
        work_us = self._work_us(cost, sets)
        fastest = min(t.device_median_us for t in timings.values())
        for _ in range(TRIES):
            if fastest < SLACK * work_us:  # other work may have used part of the bandwidth
                self.ceilings = self.ceilings.raised(limits.ceilings_now(self.device))
                work_us = self._work_us(cost, sets)
        # Torch's own time is certainly possible: if it exceeds the ceilings, the ceilings are wrong.
        torchs = min(c.timing.device_median_us for c in known if c.native and c.timing)
        unsure = torchs < SLACK * work_us
        floor: dict[str, Any] = {"bytes": cost.bytes, "flops": cost.flops, "floor_unsure": unsure or None}
        floor["floor_us"] = torchs if unsure else self.ceilings.t0_us + work_us
        floor |= {"noise": noise}
        reading = clocks(self.device) if self.device.type == "cuda" else None
        for c in judged:
            if c.timing is None:
                yield _row(cell, c.label, _unraced(c), **_known(cell, c), **floor)
                continue
            said: Verdict = "BASE" if c.native else "FAST" if c.label in won else "AMBG"
            if said == "AMBG" and c.ratio:
                said = verdict(c.ratio, noise)
            if c.timing.device_median_us < SLACK * work_us and not unsure:
                said = "BELOW_FLOOR"
            times = _times(c.timing, cost, floor["floor_us"])
            more = {"ratio": rounded(c.ratio), "p": c.p_value, "clocks": reading}
            more["compile_s"] = started.get(c.label)
            yield _row(cell, c.label, said, **_known(cell, c), **floor, **times, **more)
        repeats = timings[AGAIN].repeats
        again = _against(timings[AGAIN], timings[repeats])
        times = _times(timings[AGAIN], cost, floor["floor_us"])
        found_again = _row(cell, AGAIN, "BASE", **floor, **times, ratio=rounded(again), repeats=repeats)
        yield replace(found_again, record="again")
        yield _choice(cell, found, known, timings, dispatch_us(cell.spec, args))

    def _work_us(self, cost: Cost, sets: Sequence[tuple[Any, ...]]) -> float:
        """Return the shortest time of a call in microseconds, without the launch time t0."""
        moving_s = _moving_s(self.ceilings, cost.bytes, sets, describe(self.device).l2)
        return 1e6 * max(moving_s, cost.flops / self.ceilings.flops)

    def _raced(
        self, calls: Mapping[str, Callable[[], Any]], candidates: list[Candidate], cost: Cost
    ) -> tuple[dict[str, Timing], dict[str, Refusal]]:
        failures: dict[str, Refusal] = {}

        def clear(seen: Mapping[str, Timing]) -> bool:
            timed = [replace(c, timing=seen.get(c.label)) for c in candidates]
            return settled(timed, seen.get(AGAIN))

        with torch.no_grad():
            timings = race.race(
                calls,
                self.device,
                effort=self.effort,
                rivals=frozenset(c.label for c in candidates if c.native),
                again=AGAIN,
                settled=clear,
                failed=lambda label, error: failures.update(
                    {label: Refusal(Code.RAISED, f"raised {brief(error)}")}
                ),
                cost=cost,
            )
        return timings, failures


def _moving_s(best: Ceilings, size: int, sets: Sequence[tuple[Any, ...]], cache: int) -> float:
    """Return the shortest time, in seconds, to read a call's inputs from memory and to write its result.

    The result may stay in cache, because torch's allocator reuses memory. So may inputs that are so small
    that all their copies fit into the cache.
    """
    read = min(size, sum(t.numel() * t.element_size() for t in leaves(sets[0])))
    cold = read * len(sets) >= CACHES * cache
    reading = max(b for _, b in best.bandwidths[-2:]) if cold else best.bandwidth(read * len(sets))
    return read / reading + (size - read) / best.bandwidth(size - read)


def _row(cell: Cell, label: str, said: Verdict, **more: Any) -> Row:
    op, sample, dtype = cell.key
    return Row("row", op, sample, dtype, label, said, **more)


def _unraced(c: Candidate) -> Verdict:
    return "WRONG" if c.refusal and c.refusal.code is Code.WRONG else "DECLINED"


def _known(cell: Cell, c: Candidate) -> dict[str, Any]:
    of_float32 = cell.dtype is torch.float32 and c.error is not None
    return {
        "reason": str(c.refusal or ""),
        "error": c.error,
        "precision": precision_class(c.error) if of_float32 and c.error is not None else "",
    }


def _times(timing: Timing, cost: Cost, floor_us: float) -> dict[str, Any]:
    device, host = (tuple(round(t, 4) for t in us) for us in (timing.device_us, timing.host_us))
    return {
        "device_us": round(timing.device_median_us, 3),
        "host_us": round(statistics.median(timing.host_us), 3),
        "call_us": round(timing.median_us, 3),
        "blocks": len(device),
        "device_blocks_us": device,
        "host_blocks_us": () if device == host else host,
        "share_of_floor": round(floor_us / timing.device_median_us, 4),
        "gb_per_s": round(cost.bytes / timing.device_median_us * 1e-3, 1),
        "tflop_per_s": round(cost.flops / timing.device_median_us * 1e-6, 4),
    }


def _against(timing: Timing, baseline: Timing) -> Interval:
    pairs = zip(timing.call_us, baseline.call_us, strict=False)  # a dropped one has fewer blocks
    return interval([theirs / mine for mine, theirs in pairs])


def _choice(
    cell: Cell, found: Sequence[Entrant], known: Sequence[Candidate], timings: Mapping[str, Timing], us: float
) -> Row:
    """Return the chooser's winner by the rule, of the kernels that run without being requested."""
    eligible = [c for e, c in zip(found, known, strict=True) if e.eligible]
    aside = {e.candidate.label for e in found if e.aside}
    decision = busy.judged(decide(eligible, timings[AGAIN]))
    native = [c for c in decision.candidates if c.native and c.timing]
    best = min(native, key=_median)
    serving = [c for c in decision.candidates if c.timing and c.ratio and c.label not in aside]
    chosen = decision[decision.chosen]
    if chosen.label in aside:  # its result differs from the operator's: torch's fastest idiom runs
        chosen = min((c for c in serving if c.native), key=_median)
    timing, fastest = present(chosen.timing, "chosen.timing"), present(best.timing, "best.timing")
    called = Timing(timing.device_us, tuple(h + us for h in timing.host_us))
    if timing.device_us == timing.host_us:  # on the CPU both are one time
        called = replace(called, device_us=called.host_us)
    by_rule = decision.rule == "measured" and not chosen.native
    return replace(
        _row(cell, "nxcore", "FAST" if by_rule else "SAME", reason=decision.reason),
        record="choice",
        chosen=chosen.label,
        noise=decision.noise,
        ratio=rounded(chosen.ratio),
        ratio_called=rounded(_against(called, fastest)),
        regret=round(_median(chosen) / min(map(_median, serving)) - 1, 4),
        dispatch_us=round(us, 3),
        call_us=round(called.median_us, 3),
    )


def _median(c: Candidate) -> float:
    return c.timing.median_us if c.timing else float("inf")


def _nothing(*args: Any) -> Any:
    return args


def dispatch_us(spec: OpSpec, args: tuple[Any, ...]) -> float:
    """Return the microseconds that a call through the operator adds to a direct call: a median of pairs."""
    operator = make_operator(spec, lambda *_: Plan(_nothing, "nothing"))
    keywords = {p.name: a for p, a in zip(spec.params, args, strict=True) if p.keyword}
    through = functools.partial(operator, *args[: len(args) - len(keywords)], **keywords)
    direct = functools.partial(_nothing, *args)
    through()
    return max(0.0, statistics.median(_round_us(through) - _round_us(direct) for _ in range(ROUNDS)))


def _round_us(call: Callable[[], Any]) -> float:
    started = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - started) / CALLS * 1e-3
