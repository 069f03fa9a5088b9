"""Crossing: calls that need a gradient use torch's own autograd while torch serves both ways.

Calls use our autograd function if other kernels serve them and save more than the function costs, or while
they take turns. With torch's own kernels the function is slower: each way calls a Python function, and the
backward operator's reference defines the gradient, but isn't how torch computes it.
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
from nxcore.choose.learn.budget import Heat, Pace
from nxcore.choose.learn.exploration import MET, Call, Switch, exploration
from nxcore.context import capturing
from nxcore.measure.race import Clock
from nxcore.spec.problem import Problem

BRIDGE_US: Mapping[str, float] = MappingProxyType({"cpu": 13.0, "cuda": 32.0})
"""The host's cost of our autograd function, forward and backward, by device type.

It was measured with an addition of (4, 16) and its gradients, with a backward operator that does nothing,
relative to torch's own autograd. On one core of an AMD EPYC with torch 2.13: 12.4 and 13.1 us more (of 22) in
two processes, medians of 40 interleaved blocks of 100. On the host of an H200 with torch 2.11, where autograd
has a separate thread for the device: 31.4, 32.0 and 38.7 us more (of 84), medians of 5 blocks of 200, with
other load on the machine (benchmarks/results/nvidia-h200/2026-11-22-bridge.txt).
"""

SCOUTS = 8
"""The most calls of the autograd function before a backward pass gives the backward operator's problem."""


class Crossing:
    """A call of the reference or of our autograd function, depending on the backward operator's choice.

    Parameters
    ----------
    problem : Problem
        The problem of the call.
    forward : Choice
        Its choice: torch's reference, an exploration, or a kernel that saves less than the function costs.
    bridge : callable
        ``bridge(backward)`` returns the autograd function with the gradient ``backward``.
    backward : callable
        The backward operator.
    find : callable
        Returns the choice for the backward operator's arguments, or None.
    pace : Pace
        Charged with the cost of calls that use the autograd function only to explore.
    clock : callable
        Returns nanoseconds; a test may replace it.

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
        self._met, self._scouts, self._heat = 0, SCOUTS, Heat()
        # Kept, since a switch's target must outlive calls of it in other threads.
        self._steps = (self._meet, self._scout, self._cross)
        self._switch = Switch(self, self._steps[0 if explored else 1])
        self.call = self._switch.call

    def settle(self, backward: Choice) -> None:
        """Choose the route by the backward operator's choice, from now on."""
        if explored := exploration(backward.call):
            self._explored.append(explored)
        self._settled = True
        eager = explored is None and sum(gain_us(c, self._half_us) for c in (self._forward, backward)) > 0
        captured = eager
        if "captured" in regimes(self.problem):  # a replay has no host cost
            torchs = alone(self._forward) or bool(self._explored)
            captured = explored is None and not (torchs and alone(backward.captured or backward))
        apart = self._there if self._explored else None  # an exploration needs the function either way
        target = {  # by whether the function pays in eager mode, and in a capture
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
            found.heat = self._heat
            found.met(MET)

    def turn(self) -> None:
        """Use the autograd function while either operator takes turns, or after another kernel has won."""
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
        began = self.clock()
        result = self.reference(*args)
        self._heat.note(began, self.clock())
        return result

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
    """Return the saving of a choice, minus its half of the autograd function's host cost.

    The saving is relative to torch's fastest way; infinite for a requested kernel that wasn't timed.
    """
    timed = {c.label: c.timing for c in choice.decision.candidates if c.timing}
    if (mine := timed.get(choice.decision.chosen)) is None:
        return -half_us if alone(choice) or exploration(choice.call) else math.inf
    # Torch's idioms are compared with the reference, which autograd would record.
    natives = (c for c in choice.decision.candidates if c.native and c.timing)
    rivals = [
        c.timing.median_us for c in natives if c.timing and (c.label == "torch" or c.timing is not mine)
    ]
    return min(rivals) - max(mine.device_median_us, statistics.median(mine.host_us) + half_us)


def pays(choice: Choice, half_us: float) -> bool:
    """Return whether a forward choice pays for the autograd function alone, without the backward operator."""
    return gain_us(choice, half_us) > half_us


def one_way_us(problem: Problem) -> float:
    """Return the host's cost of the autograd function for one way."""
    return BRIDGE_US.get(problem.device.type, BRIDGE_US["cpu"]) / 2


def alone(choice: Choice) -> bool:
    """Return whether torch's reference serves, not one of its idioms."""
    return choice.native and choice.decision.chosen == "torch"
