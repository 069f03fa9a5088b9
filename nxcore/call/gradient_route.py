"""Crossing: calls that need a gradient use torch's own autograd while torch serves both ways.

Calls use our autograd function if other kernels serve them and both ways together are faster with it.
With torch's own kernels the function is slower: each way calls a Python function, and
the backward operator's reference defines the gradient, but isn't how torch computes it. Whether both ways
together are faster is measured (``pairs``), and until then predicted from the halves' figures.
"""

from __future__ import annotations

import functools
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

from nxcore.call.wrappers import unless_capturing
from nxcore.choose.contenders import Choice, regimes
from nxcore.choose.learn.budget import Heat
from nxcore.choose.learn.exploration import MET, Call, Switch, exploration
from nxcore.choose.pairs import TORCH, Half, Pair, Pairs
from nxcore.context import announce, capturing, in_force
from nxcore.interop import internals
from nxcore.interop.autograd import Differentiable
from nxcore.measure.lane import Clock
from nxcore.spec.problem import Problem

BRIDGE_US: Mapping[str, float] = MappingProxyType({"cpu": 13.0, "cuda": 32.0})
"""The host's cost of our autograd function, forward and backward, by device type, beyond torch's own.

It was measured with an addition of (4, 16) and a backward operator that does nothing: 12.4 and 13.1 us on
one core of an AMD EPYC with torch 2.13, and 31.4 to 38.7 us on the host of an H200 with torch 2.11, where
autograd has a separate thread for the device.
"""

COMPILED_US: Mapping[str, float] = MappingProxyType({"cpu": 2.0, "cuda": 8.0})
"""The same with the compiled call path.

Measured as above on one core of an AMD EPYC with torch 2.13: 0.8, 1.6 and 1.7 us more in three processes. On
CUDA it wasn't measured: a quarter of the Python path's cost is assumed, while on the CPU it is a seventh.
"""

DOUBT = 2.0
"""A predicted gain below this many times the function's cost is doubtful: the pair is measured.

The cost above is that of one machine, and of an operator that does nothing.
"""

ASKED = ("pinned", "preferred")
"""Rules of a choice that a call or its context made: nothing is looked up or measured for it."""

SCOUTS = 8
"""The most calls of the autograd function before a backward pass gives the backward operator's problem."""


class Crossing:
    """A call of the reference or of our autograd function, depending on the backward operator's choice.

    ``mask`` says which tensors need a gradient; ``forward`` is the problem and choice of the operator that
    runs. ``bridge(backward)`` returns the autograd function, ``unobserved`` is ``backward`` for a race, and
    ``find`` returns the problem and choice of the backward operator's arguments. ``pairs`` measures both ways
    together: each under the policy ``measure``, a doubtful one in the background under ``auto``. With
    ``only_captured`` eager calls go to another crossing. ``call`` takes the operator's arguments.
    """

    def __init__(
        self,
        problem: Problem,
        mask: tuple[bool, ...],
        forward: Half,
        *,
        bridge: Callable[[Call], Call],
        backward: Call,
        unobserved: Call,
        find: Callable[..., Half | None],
        pairs: Pairs,
        policy: str,
        later: Callable[[Callable[[], None]], None],
        aside: Callable[[], AbstractContextManager[None]],
        met: int = 0,
        only_captured: bool = False,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self.beside: Crossing | None = None  # that of captured calls, if they have a choice of their own
        self._only_captured = only_captured
        self.problem, self.reference, self.clock = problem, problem.spec.reference, clock
        self._mask, self._half, self._forward = mask, forward, forward[1]
        self._backward, self._find = backward, find
        self._pairs, self._policy, self._later, self._aside = pairs, policy, later, aside
        self._pair: Pair | None = None
        self._captured: bool | None = None  # where nothing can be captured
        self._there, self._scouting = bridge(backward), bridge(self._back)
        self._half_us = one_way_us(problem, by_python=isinstance(self._there, Differentiable))
        self._alone = functools.partial(bridge, unobserved)
        explored = exploration(self._forward.call)
        self._explored = [explored] if explored else []
        self._settled, self._lock = False, threading.Lock()
        self._met, self._scouts, self._heat = met, SCOUTS, Heat()
        # Kept, since a switch's target must outlive calls of it in other threads.
        self._steps = (self._meet, self._scout, self._race, self._measure)
        self._switch = Switch(self, self._steps[0 if explored else 1])
        self.call = self._switch.call

    @property
    def over(self) -> bool:
        """Whether the route is final, unless a pair is measured in the background, which is announced."""
        return self._settled and all(found.over for found in self._explored)

    def settle(self, backward: Half) -> None:
        """Choose the route by the backward operator's choice, from now on."""
        if self.beside is not None:
            self.beside.settle(backward)
        choice = backward[1]
        if self._only_captured:  # which never have a backward pass before the capture, and no host cost
            unknown = exploration(choice.call) or self._explored
            torchs = self._forward.alone and (choice.captured or choice).alone
            self._settled = not unknown
            self._switch.to(self.reference if unknown or torchs else self._there)
            return
        if explored := exploration(choice.call):
            self._explored.append(explored)
        self._settled = True
        gain = sum(gain_us(c, self._half_us) for c in (self._forward, choice))
        eager = explored is None and gain > 0
        if "captured" in regimes(self.problem):  # a replay has no host cost
            torchs = self._forward.alone or bool(self._explored)
            self._captured = explored is None and not (torchs and (choice.captured or choice).alone)
        pair = Pair(self.problem, self._mask, self._half, backward)
        rules = {c.decision.rule for c in (self._forward, choice)}
        if not (self._explored or rules & {*ASKED} or pair.torchs):
            locked = "locked" in rules  # then whatever was measured doesn't count
            if decision := self._pairs.locked(pair) or (None if locked else self._pairs.find(pair)):
                eager = decision.chosen != TORCH
            elif self._policy in ("measure", "auto") and not (
                locked or self._pairs.certain(self.problem, gain)
            ):
                self._pair = pair
        self._route(eager)
        if self._pair and self._policy == "measure":
            self._pairs.waiting += 1
            self._switch.to(self._steps[3])
        elif self._pair and -math.inf < gain < 2 * DOUBT * self._half_us:
            self._later(self._measure_alone)
        for found in self._explored:
            found.heat = self._heat
            found.met(MET)

    def _route(self, eager: bool) -> None:
        """Use the autograd function in eager mode, or torch's own."""
        captured = eager if self._captured is None else self._captured
        apart = self._there if self._explored else None  # an exploration needs the function either way
        target = {  # by whether the function pays in eager mode, and in a capture
            (True, True): self._there,
            (True, False): apart or unless_capturing(self._there, self.reference),
            (False, True): apart or unless_capturing(self.reference, self._there),
        }.get((eager, captured))
        if target is not None:
            self._switch.to(target)
            return
        for found in self._explored:
            found.watch(self)
        self.turn()

    def turn(self) -> None:
        """Race while either operator does."""
        with self._lock:
            engaged = any(found.engaged for found in self._explored)
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
        if self._scouts == 0:  # nobody differentiates these calls
            self._switch.to(self._there if pays(self._forward, self._half_us) else self.reference)
        return self._scouting(*args)

    def _race(self, *args: Any) -> Any:
        if engaged := next((found for found in self._explored if found.engaged), None):
            engaged.race()
        return self.reference(*args)

    def _measure(self, *args: Any) -> Any:
        """Measure the pair before this call, and then run the faster way."""
        # A race would call the program's hooks on saved tensors. A checkpoint counts them.
        if capturing(self.problem) or internals.saved_tensor_hooks():
            return self.reference(*args)
        self._decided(args)
        target = self._switch.target  # still this function while another thread measures
        return (self.reference if target == self._steps[3] else target)(*args)

    def _measure_alone(self) -> None:
        """Measure the pair in the background, on arguments of its own, if the device has room for it."""
        if not self._pairs.delayed(self.problem):
            self._decided(None)

    def _decided(self, args: tuple[Any, ...] | None) -> None:
        with self._lock:
            pair, self._pair = self._pair, None
        if pair is not None:  # otherwise another thread measures it
            self._pairs.waiting -= self._policy == "measure"
            with self._aside(), in_force(observers=()):  # its calls aren't the program's
                decision = self._pairs.measure(pair, self._alone(), args)
            self._route(decision.chosen != TORCH)
            announce()

    def _back(self, *arguments: Any) -> Any:
        result = self._backward(*arguments)
        if not self._settled and (found := self._find(*arguments)):
            self.settle(found)
        return result


def gain_us(choice: Choice, half_us: float) -> float:
    """Return the saving of a choice, minus its half of the autograd function's host cost.

    The saving is relative to torch's fastest way, at this size or at those around it; infinite for a
    requested kernel that wasn't timed.
    """
    timed = {c.label: c.timing for c in choice.decision.candidates if c.timing}
    if (mine := timed.get(choice.decision.chosen)) is None:
        if choice.saves_us is not None:
            return choice.saves_us - half_us
        return -half_us if choice.alone or exploration(choice.call) else math.inf
    # Torch's idioms are compared with the reference, which autograd would record.
    natives = (c for c in choice.decision.candidates if c.native and c.timing)
    rivals = [
        c.timing.median_us for c in natives if c.timing and (c.label == "torch" or c.timing is not mine)
    ]
    return min(rivals) - max(mine.device_median_us, statistics.median(mine.host_us) + half_us)


def pays(choice: Choice, half_us: float) -> bool:
    """Return whether a forward choice pays for the autograd function alone, without the backward operator."""
    return gain_us(choice, half_us) > half_us


def one_way_us(problem: Problem, *, by_python: bool) -> float:
    """Return the host's cost of the autograd function for one way: Python's, or that of the extension."""
    costs = BRIDGE_US if by_python else COMPILED_US
    return costs.get(problem.device.type, costs["cpu"]) / 2
