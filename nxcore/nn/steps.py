"""Steps: a model's steps are timed, plain ones among them, and modules that don't pay are given back.

A step lasts from one call of the model to the next. Blocks of plain steps, in which modules run torch's
``forward``, are compared with the steps around them (``nxcore.nn.trial``). They cost at most 1% of the time.
Where plain steps are faster, torch serves the modules from then on; a group of them that pays is taken back.
Nothing is compared again until another choice is made.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nxcore.interop import internals
from nxcore.nn import exchange
from nxcore.nn.blocks import APART, TURNS, WARM, WITHIN, Pair
from nxcore.nn.groups import REPLAYS, Groups
from nxcore.nn.marks import (
    Clock,
    Shapes,
    alike,
    clock_for,
    differentiated,
    mode_of,
    refusal,
    requested,
    saved_s,
    unfit,
)
from nxcore.nn.patience import Patience
from nxcore.nn.programs import ModelProgram
from nxcore.nn.served import Changes
from nxcore.nn.trial import CLEARLY, LOOKS, TORCHS, Mode, Trial
from nxcore.nn.whole import ModelWhole
from nxcore.program.compilers.entrants import Entrants
from nxcore.session import Session

SHARE, AHEAD_S = 0.01, 60.0
"""The share of the time that blocks may cost, and the seconds whose share may be spent from the start.

A program has its first comparison early, however long its steps take.
"""

FIRST = 0.5
"""The cost that the first block is taken to have at least, as a share of the time of its steps."""

TRIES = 64
"""Steps in a row without a backward pass before them, after which a trial or a block ends."""

STRANGERS = 2
"""How often another thread may go on with the calls."""

_log = logging.getLogger(__name__)


class Steps:
    """The watch over one model's steps.

    Parameters
    ----------
    model : torch.nn.Module
        The model; no reference to it is kept.
    session : Session
        Its choices decide when a trial may begin.
    now : callable
        Returns seconds.
    whole : ModelWhole or ModelProgram, optional
        What replays the model's calls in training.
    ended : str, optional
        Why no step is compared.
    """

    def __init__(
        self,
        model: nn.Module,
        session: Session,
        now: Callable[[], float] = time.perf_counter,
        whole: ModelWhole | ModelProgram | None = None,
        ended: str = "",
    ) -> None:
        self.ended = ended
        self._of, self._now = weakref.ref(model), now
        self._session, self._chooser = session, session.chooser
        self.whole, self._groups, self._modes = whole, Groups(whole), dict[tuple[bool, bool], Mode]()
        self._entrants = Entrants(()) if whole is None else whole.entrants
        self._replays = self._groups.recorded
        self._mode: Mode | None = None
        self._clock: Clock | None = None
        self._lock, self._dice = threading.Lock(), random.Random(0)
        self._still = threading.RLock()  # held while modules are exchanged, and no call runs
        self._thread, self._strangers, self._disturbed = 0, 0, False
        self._woken, self._moved = Changes.woken, Changes.moved
        self._patience, self._spent = Patience(session), 0.0
        self._shapes = Shapes(self._groups.look)
        self._pair: Pair | None = None
        self._pending: deque[Pair] = deque()
        self._seen: Callable[[], bool] | None = None

    def run(
        self, model: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the model's result; note the step, and exchange modules before it."""
        if self.ended or model is not self._of():
            return call(*args, **kwargs)
        new = self._shapes.new(model, args)
        result = call(*args, **kwargs) if self._idle(model) else self._noted(model, call, args, kwargs)
        if new:
            self._shapes.ran(result)
        return result

    def _noted(
        self, model: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the model's result; note the step."""
        if not self._lock.acquire(blocking=False):  # another thread calls it, or it calls itself
            self._disturbed = True
            return call(*args, **kwargs)
        try:
            with self._still:
                if not self.ended:  # by another thread, since the call began
                    self._begin(model, args, kwargs)
            interrupted = 0 if self.whole is None else self.whole.interrupted
            try:
                result = call(*args, **kwargs)
            except BaseException as error:
                with self._still:
                    self._failed(model, error)
                raise
            if self.whole is not None and self.whole.interrupted != interrupted:
                self._disturbed = True  # a step that says nothing of the others
            if self._pair is not None and not self.ended:
                self._seen = differentiated(result) if torch.is_grad_enabled() else None
            return result
        finally:
            self._lock.release()

    @property
    def report(self) -> list[str]:
        """The present state or the result, a line a mode."""
        whole = [] if self.whole is None else self.whole.report
        if self.ended:
            return [f"not compared: {self.ended}", *whole]
        found = [
            f"{'training' if training else 'evaluation'}{' under autocast' * cast}: {mode.state}"
            for (training, cast), mode in self._modes.items()
        ]
        return [*(found or ["waits for calls"]), *whole]

    @property
    def open(self) -> bool:
        """Whether there is anything left to compare."""
        return not self.ended and not all(mode.over for mode in self._modes.values() or [Mode()])

    def pause(self) -> None:
        """Leave the present block: the modules are as between blocks."""
        with self._still:
            if (model := self._of()) is not None and self._mode is not None and self._pair is not None:
                self._drop()
                self._apply(model, self._mode.given)

    def end(self, why: str = "the watch was taken away") -> None:
        """Take all modules back, and compare no more."""
        with self._still:
            self.ended = why
            if self.whole is not None:
                self.whole.end(why)
            self._drop()
            if (model := self._of()) is not None:
                self._apply(model, frozenset())

    def _idle(self, model: nn.Module) -> bool:
        """Return whether there is nothing to do for this call."""
        mode = self._mode
        if mode is None or self._disturbed or mode is not self._modes.get(mode_of(model)) or self._turned:
            return False
        if Changes.moved != self._moved or Changes.woken != self._woken or (mode.given and requested()):
            return False
        if not mode.over:
            return mode.trial is None and self._now() < self._patience.poll
        return self._rests(mode) and not self._entrants.ready(mode_of(model))

    @property
    def _turned(self) -> bool:
        """Whether replays have begun or ended, or were recorded again, since the modes were cleared."""
        return self._groups.recorded != self._replays

    def _rests(self, mode: Mode) -> bool:
        """Return whether all is compared, and no other choice was made since."""
        return mode.over and mode.made == self._chooser.made and self._now() <= mode.again

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the beginning of a step."""
        # A checkpoint runs it again: as it ran before.
        if internals.backward_pass() != -1 or torch.compiler.is_compiling():
            self._disturbed = True
        elif id(model) in exchange.COMPILED:
            self.end("torch.compile has traced it")
        elif requested():
            self._drop()
            self._apply(model, frozenset())
            self._disturbed = True
        elif not self._alone():
            self.end("several threads call it")
        else:
            mode = self._entered(model)
            if self._rests(mode) and not self._entrants.ready(mode_of(model)):
                return
            if unfit():
                self.pause()
            elif (mode.trial and not mode.over) or self._opened(model, mode, (args, kwargs)):
                self._step(model, mode, alike(args, kwargs))

    def _alone(self) -> bool:
        """Return whether one thread makes the calls."""
        if self._thread != (thread := threading.get_ident()):
            self._strangers += self._thread != 0
            self._thread, self._disturbed = thread, True
        return self._strangers <= STRANGERS

    def _entered(self, model: nn.Module) -> Mode:
        """Return the mode of this call; exchange modules if it has changed, or something else has."""
        if Changes.moved != self._moved or self._turned:  # maybe another model's
            self._moved, self._clock, self._disturbed = Changes.moved, None, True
            self._replays = self._groups.recorded
            for mode in self._modes.values():
                mode.clear()
            self._entrants.won.clear()
        mode = self._modes.setdefault(mode_of(model), Mode())
        woken, self._woken = self._woken, Changes.woken
        if mode is not self._mode or self._disturbed or not (woken == Changes.woken or self._groups.holds):
            self._mode, self._disturbed = mode, False
            self._drop()
            self._apply(model, mode.given)
        return mode

    def _opened(self, model: nn.Module, mode: Mode, given: Any) -> bool:
        """Begin a trial, if choices have been left alone for long enough and there is anything to compare."""
        if not self._ready(model, mode):
            return False
        self._drop()
        if why := refusal(model, self._session):
            self._close(mode, f"not compared: {why}")
            return False
        self._clock = clock_for(model, given, self._now)
        groups = self._groups.present(model)
        entrant = self._entrants.ready(mode_of(model)) if self._rests(mode) else ""
        if not (groups or mode.given or entrant):
            self._close(mode, TORCHS)
            return False
        other, margin = (frozenset[str](), 0.0) if mode.given else (groups, self._patience.margin)
        if entrant:
            other, margin = frozenset((entrant,)), 0.0
        clearly = LOOKS[0] if REPLAYS in other else CLEARLY  # what ends replays ends them for good
        mode.begin(Trial(mode.given, other, margin=margin, clearly=clearly), self._chooser.made)
        return True

    def _ready(self, model: nn.Module, mode: Mode) -> bool:
        if not self._patience.look(now := self._now()):
            return False
        if not mode.over:
            mode.state = "waits: choices are still being made"
        return self._patience.over(now, lambda: self._groups.due(model))

    def _close(self, mode: Mode, state: str) -> None:
        """End the mode's trials."""
        if state.startswith("not compared") and (model := self._of()) is not None:
            self._entrants.settle(mode_of(model), self._entrants.names, frozenset(), state)
        mode.again = self._patience.again(self._now(), mode.trial)
        mode.end(state)
        mode.made = self._chooser.made
        self._drop()

    def _drop(self) -> None:
        """Drop the present pair, and those that are not judged yet."""
        self._pair, self._seen = None, None
        self._pending.clear()
        TURNS.leave(self)

    def _apply(self, model: nn.Module, given: frozenset[str]) -> None:
        """Let torch serve exactly these groups of modules."""
        self._groups.rest(model, given)
        self._woken = Changes.woken

    def _failed(self, model: nn.Module, error: BaseException) -> None:
        """Drop the pair of a step that raised; no more blocks after one without memory."""
        pair, mode = self._pair, self._mode
        self._drop()
        if pair is not None and mode is not None:
            self._apply(model, mode.given)
            if isinstance(error, torch.OutOfMemoryError):
                self._close(mode, "not compared: a step ran out of memory")

    def _step(self, model: nn.Module, mode: Mode, key: Any) -> None:
        """Note a step of a trial: end the one before, judge pairs, exchange modules where a phase ends."""
        clock, trial = self._clock, mode.trial
        if clock is None or trial is None:
            return
        if TURNS.taken(self, self._now()):
            self._drop()
            return
        mark = clock.mark()
        pair = self._pair = self._pair or Pair(self._dice.randint(0, APART))
        pair.end(mark)
        self._judge(model, mode, trial, clock)
        if self._pair is pair and pair.complete:
            self._turn(model, mode, trial, clock)
        if self._pair is not None:
            self._pair.begin(key, mark)

    def _turn(self, model: nn.Module, mode: Mode, trial: Trial, clock: Clock) -> None:
        """Begin the next phase of the pair, if nothing speaks against it."""
        if (pair := self._pair) is None:
            return
        if pair.phase == "after":
            self._pending.append(pair)
            self._pair = pair.next(self._dice.randint(0, APART))
            return
        pair.tries += 1
        free = self._seen is None or self._seen()  # else a checkpoint may run the last step again
        if not free and pair.tries < TRIES:
            return
        if pair.phase == "within":
            self._apply(model, trial.present)
            pair.leave()
            TURNS.leave(self)
        elif not free:
            self._close(mode, "not compared: its steps share backward passes")
        elif not clock.room(self.whole.pool if self.whole else 0):
            self._close(mode, "not compared: plain steps may need more memory than is free")
        elif not self._affords(model, mode, pair, clock):
            pair.tries = 0
        elif not (
            mode.given or self._groups.present(model) or self._entrants.raced(trial.present, trial.other)
        ):
            self._close(mode, TORCHS)  # its modules have come to rest since the trial began
        else:
            self._patience.aside((WARM + WITHIN) * self._step_s(pair, clock))
            self._apply(model, trial.other)
            pair.enter()
            TURNS.take(self, self._now())

    def _affords(self, model: nn.Module, mode: Mode, pair: Pair, clock: Clock) -> bool:
        """Return whether a block is within the share; at first a plain step lacks what replays save."""
        if mode.extra is None:  # once: to look at all modules takes milliseconds
            saved = saved_s(model) + (self.whole.saved_ms / 1e3 if self.whole else 0.0)
            mode.extra = (WARM + WITHIN) * max(FIRST * self._step_s(pair, clock), saved)
        # Blocks of our steps, after all were given back, may be slower than plain ones.
        ahead = 0.0 if mode.given else AHEAD_S
        elapsed = max(self._now() - self._patience.began, ahead)
        return self._spent + max(mode.extra, 0.0) <= SHARE * elapsed

    def _step_s(self, pair: Pair, clock: Clock) -> float:
        """Return the seconds of a step, as the host sees them."""
        return (self._now() - clock.wall(pair.steps[0].began)) / len(pair.steps)

    def _judge(self, model: nn.Module, mode: Mode, trial: Trial, clock: Clock) -> None:
        """Judge the pairs that are complete, and follow a verdict."""
        while self._pending and clock.passed(self._pending[0].steps[-1].ended):
            found = self._pending.popleft().found(clock.seconds)
            trial.add(found)
            mode.extra, self._spent = found.extra, self._spent + max(0.0, found.extra)
            mode.state = f"compares: {len(trial.ratios)} blocks so far"
            if trial.verdict:
                self._follow(model, mode, trial)
                return
            if self._patience.paused(self._now(), trial):
                mode.trial = trial = replace(trial, ratios=[], fruitless=0)

    def _follow(self, model: nn.Module, mode: Mode, trial: Trial) -> None:
        """Give back or take back what a verdict says; after all were given back, try each group alone."""
        if trial.verdict == "other":
            mode.given = trial.other
            if not trial.present and len(trial.other) > 1:
                mode.queue = sorted(trial.other - {REPLAYS})
        key, raced = mode_of(model), self._entrants.raced(trial.present, trial.other)
        mode.state = next(map(trial.against, raced), trial.summary)
        self._entrants.settle(key, raced, mode.given, mode.state)
        if self.whole is not None and REPLAYS in mode.given and not self._entrants.open(key):
            self.whole.end("the model's steps are faster without it")
            self._replays = self._groups.recorded
        _log.info("steps: %s: %s", type(model).__name__, mode.state)
        self._drop()
        self._apply(model, mode.given)
        if mode.queue:
            mode.begin(Trial(mode.given, mode.given - {mode.queue.pop(0)}), mode.made)
        else:
            self._close(mode, mode.state)
