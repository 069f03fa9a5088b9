"""Crossing: a call that needs a gradient goes by torch's own autograd while torch serves both ways.

Over the bridge to our backward operator goes what other kernels serve, where they save more than the bridge
costs, and what takes turns. Torch's own is the slower there: a function of Python's is called each way, and
the backward operator's reference says what a gradient means, not how torch computes it.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from nxcore.call.wrappers import unless_capturing
from nxcore.choose.contenders import Choice, regimes
from nxcore.choose.learn.budget import Pace
from nxcore.choose.learn.exploration import MET, Call, Switch, exploration
from nxcore.context import capturing
from nxcore.measure.race import Clock
from nxcore.spec.problem import Problem

BRIDGE_US: Mapping[str, float] = MappingProxyType({"cpu": 13.0, "cuda": 32.0})
"""What the host needs for the bridge, there and back, by the type of device.

An addition of (4, 16) and its gradients over the bridge, by a backward operator that does nothing, beside
torch's own autograd. On one core of an AMD EPYC with torch 2.13: 12.4 and 13.1 us more (of 22) in two
processes, medians of 40 interleaved blocks of 100. On the host of an H200 with torch 2.11, where autograd has
a thread of its own for the device: 31.4, 32.0 and 38.7 us more (of 84), medians of 5 blocks of 200, while
other work was going on there (benchmarks/results/nvidia-h200/2026-11-22-bridge.txt).
"""

SCOUTS = 8
"""Calls over the bridge, at most, before one of them comes back and tells the backward operator's problem."""


class Crossing:
    """A call that is the reference or the bridge, by what is known of its backward operator.

    Parameters
    ----------
    problem : Problem
        What the call is of.
    forward : Choice
        Who serves it: torch's reference, all in turn, or a kernel that saves less than the bridge costs.
    bridge : callable
        ``bridge(backward)``: the call over the bridge, differentiated by ``backward``.
    backward : callable
        The backward operator.
    find : callable
        Given that one's arguments, returns who was chosen for them; None if nobody was.
    pace : Pace
        Is charged with what crossings cost that are made for turns only.
    clock : callable
        Nanoseconds; a test may bring its own.

    Attributes
    ----------
    call : callable
        Takes the operator's arguments, all positional.
    """

    def __init__(
        self,
        problem: Problem,
        forward: Choice,
        *,
        bridge: Callable[[Call], Call],
        backward: Call,
        find: Callable[..., Choice | None],
        pace: Pace,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self.problem, self.reference, self.pace, self.clock = problem, problem.spec.reference, pace, clock
        self._forward, self._backward, self._find = forward, backward, find
        self._half_us = one_way_us(problem)
        self._there, self._for_turns = bridge(backward), bridge(self._back)
        explored = exploration(forward.call)
        self._explored = [explored] if explored else []
        self._settled, self._lock = False, threading.Lock()
        self._met, self._scouts = 0, SCOUTS
        # Kept: what a switch goes to must outlive the call that another thread is in.
        self._steps = (self._meet, self._scout, self._cross)
        self._switch = Switch(self, self._steps[0 if explored else 1])
        self.call = self._switch.call

    def settle(self, backward: Choice) -> None:
        """Serve by what is known of the backward operator, from now on."""
        if explored := exploration(backward.call):
            self._explored.append(explored)
        self._settled = True
        eager = explored is None and sum(gain_us(c, self._half_us) for c in (self._forward, backward)) > 0
        captured = eager
        if "captured" in regimes(self.problem):  # a replay knows neither host nor bridge
            torchs = alone(self._forward) or bool(self._explored)
            captured = explored is None and not (torchs and alone(backward.captured or backward))
        apart = self._there if self._explored else None  # what takes turns crosses either way
        target = {  # by whether the bridge pays in eager mode, and in a capture
            (True, True): self._there,
            (True, False): apart or unless_capturing(self._there, self.reference),
            (False, True): apart or unless_capturing(self.reference, self._there),
        }.get((eager, captured))
        if target is not None:
            self._switch.to(target)
        else:
            for found in self._explored:
                found.watch(self)
            self.turn()
        for found in self._explored:
            found.met(MET)

    def turn(self) -> None:
        """Cross while calls of the forward or the backward operator take turns, or go to another for good."""
        with self._lock:
            engaged = [found for found in self._explored if found.engaged]
            if any(found.over for found in engaged):
                self._switch.to(self._there)
            else:
                self._switch.to(self._steps[2] if engaged else self.reference)

    def _meet(self, *args: Any) -> Any:
        self._met += 1
        if self._met >= MET - 1:
            self._switch.to(self._steps[1])
        return self.reference(*args)

    def _scout(self, *args: Any) -> Any:
        if capturing(self.problem):
            return self.reference(*args)
        self._scouts -= 1
        if self._scouts == 0:
            self._switch.to(self.reference)
        return self._for_turns(*args)

    def _cross(self, *args: Any) -> Any:
        if capturing(self.problem) or not self.pace.affords:
            return self.reference(*args)
        began = self.clock()
        try:
            return self._for_turns(*args)
        finally:
            self.pace.charge((self.clock() - began) * 1e-9)

    def _back(self, *arguments: Any) -> Any:
        began = self.clock()
        result = self._backward(*arguments)
        if self._settled:
            self.pace.charge((self.clock() - began) * 1e-9)
        elif found := self._find(*arguments):
            self.settle(found)
        return result


def gain_us(choice: Choice, half_us: float) -> float:
    """Return what a choice saves over its half of the bridge, which the host alone pays for.

    It is held to the fastest of torch's ways, as ever; infinite where a kernel is wanted that wasn't timed.
    """
    timed = {c.label: c.timing for c in choice.decision.candidates if c.timing}
    if (mine := timed.get(choice.decision.chosen)) is None:
        return -half_us if alone(choice) or exploration(choice.call) else math.inf
    # Another of torch's ways is held to what its autograd would record.
    natives = (c for c in choice.decision.candidates if c.native and c.timing)
    rivals = [
        c.timing.median_us for c in natives if c.timing and (c.label == "torch" or c.timing is not mine)
    ]
    return min(rivals) - max(mine.device_median_us, statistics.median(mine.host_us) + half_us)


def pays(choice: Choice, half_us: float) -> bool:
    """Tell whether a forward choice pays for all of the bridge, whoever serves the backward operator."""
    return gain_us(choice, half_us) > half_us


def one_way_us(problem: Problem) -> float:
    """Return what the host needs for one way over the bridge."""
    return BRIDGE_US.get(problem.device.type, BRIDGE_US["cpu"]) / 2


def alone(choice: Choice) -> bool:
    """Tell whether torch's own serves, and not another of torch's ways."""
    return choice.native and choice.decision.chosen == "torch"
