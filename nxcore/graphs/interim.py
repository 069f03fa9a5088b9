"""Interim: a network's calls by torch's own kernels, replayed until its problems are measured.

A search step waits for the host, so a replay of the kernels that torch launches takes less than half of its
time. That pays for the process that measures beside the program.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.graphs.capture import Capture
from nxcore.graphs.ledger import Ledger
from nxcore.graphs.recorder import MAKING, Recorder
from nxcore.graphs.replay import replay
from nxcore.interop import autocast
from nxcore.session import default
from nxcore.spec.device import synchronize

ROOM = 2.0
"""The device's free memory, relative to what the program holds, that permits a second pool of it."""

STEP = 0.8
"""The time of steps, relative to torch's, up to which the process that measures has the device for races."""

RACE_S = 0.5
"""Seconds after which a call goes on though a race isn't over."""

STAY, STAY_S = 0.7, 0.05
"""The time of steps, relative to torch's, up to which a call waits for the process's next race too; and the
seconds for which it does, in which the process verifies most problems.

A process that has to wait for a replay waits longer than a call that waits for it.
"""

RECENT = 0.2
"""The weight of the last step in the mean of what recent ones have left."""


class ByTorch(Capture):
    """The capture of a call that torch serves, in a program that knows how long its steps take.

    Attributes
    ----------
    between : callable
        Called before each backward pass.
    """

    between: Callable[[], object] = staticmethod(lambda: None)

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        """Replay the backward graph."""
        self.between()
        return super().backward(grad)

    def _times(
        self,
        recorder: Recorder,
        _run_once: Callable[[], object],
        replay_once: Callable[[], object],
        least_ms: float,
    ) -> list[float]:
        """Return the times of a step and of a replay, in ms: no run is timed."""
        return [least_ms, 1e3 * recorder.seconds(functools.partial(recorder.aside, replay_once))]


class Interim:
    """Replays one signature of a network's call by torch's own kernels.

    The process that measures beside the program has the device for its races, before a pass that isn't begun.

    Parameters
    ----------
    make : callable
        Returns the capture of a call that torch serves; of a module and its tensors.
    ledger : Ledger
        The time of the steps, which knows that of torch's own.

    Attributes
    ----------
    state : str
        What it replays, or why it doesn't; empty before the first call.
    """

    def __init__(self, make: Callable[[nn.Module, Sequence[Tensor]], ByTorch], ledger: Ledger) -> None:
        self._make, self._ledger, self._over = make, ledger, False
        self._capture: ByTorch | None = None
        self._before = (0, 0.0)  # the steps until the first replay, and their seconds
        self._left, self._usual = 0.0, 0.0  # seconds of the present step, and the mean of recent ones
        self.state = ""

    @property
    def replays(self) -> bool:
        """Whether calls are replayed."""
        return self._capture is not None

    def call(self, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Return the result of a replay; None if the call must run."""
        capture = self._capture or self._made(module, tensors)
        if capture is None:
            return None
        self._leave(capture, tensors[0].device)
        left, self._left = self._left, 0.0
        self._usual += RECENT * (left - self._usual)
        with capture.lock:
            if not capture.may_begin():
                return None
            if not capture.begin(tensors):
                if not capture.inside.holds():
                    self.end("the network was changed")
                return None
            found = replay(capture, module, *tensors, *capture.inside.parameters)
        if found is not None:
            default().chooser.survey.pay((capture.ran_ms - capture.replayed_ms) / 1e3, left)
        return found

    def _leave(self, capture: ByTorch, device: torch.device) -> None:
        """Leave the device to the process if it waits for it, and steps aren't slow for that."""
        survey, ledger = default().chooser.survey, self._ledger
        turns = survey.turns
        if not turns.asked:
            return
        steps, seconds = ledger.steps + 1 - self._before[0], ledger.elapsed_s - self._before[1]
        if seconds > STEP * ledger.plain_s * steps:
            return
        synchronize(device)
        self._left += turns.give(RACE_S)
        stays = survey.open and seconds <= STAY * ledger.plain_s * steps
        most_s = STAY * ledger.plain_s - capture.replayed_ms / 1e3 - STAY_S
        while stays and max(self._left, self._usual) <= most_s:
            began = time.monotonic()
            stays = turns.asked_within(STAY_S)
            self._left += time.monotonic() - began + (turns.give(RACE_S) if stays else 0.0)

    def end(self, why: str = "it is over") -> None:
        """Replay no more, and free the memory."""
        held, self._capture, self._over, self.state = self._capture is not None, None, True, why
        if held and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _made(self, module: nn.Module, tensors: Sequence[Tensor]) -> ByTorch | None:
        """Make the capture at the first call; a call that can't be captured is never tried again."""
        if self._over or not MAKING.acquire(blocking=False):
            return None
        began = time.perf_counter()
        try:
            if not roomy(tensors[0].device):
                self.end("the device has too little free memory")
                return None
            with torch.enable_grad(), autocast.uncached():
                made = self._make(module, tensors)
        except Exception as error:  # such a call runs as before
            self.end(f"{type(error).__name__}: {error}")
            return None
        finally:
            self._ledger.add(time.perf_counter() - began)
            MAKING.release()
        if made.gain <= 1:
            self.end(f"replaying is no faster: {made.figures}")
            return None
        made.between = functools.partial(self._leave, made, tensors[0].device)
        self._capture, self.state = made, made.figures
        self._before = self._ledger.steps + 1, self._ledger.elapsed_s
        return made


def roomy(device: torch.device) -> bool:
    """Return whether a device has memory for another pool of what the program holds."""
    if device.type != "cuda":
        return True
    return torch.cuda.mem_get_info(device)[0] >= ROOM * torch.cuda.memory_reserved(device)
