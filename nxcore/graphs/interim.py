"""Interim: a network's calls by torch's own kernels, replayed until its problems are measured.

A search step waits for the host, so a replay of the kernels that torch launches takes less than half of its
time. That pays for the process that measures beside the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.graphs.capture import Capture
from nxcore.graphs.recorder import MAKING
from nxcore.graphs.replay import replay
from nxcore.interop import autocast
from nxcore.session import default
from nxcore.spec.device import synchronize

ROOM = 2.0
"""The device's free memory, relative to what the program holds, that permits a second pool of it."""

STEP = 0.5
"""The time of a call relative to a run: of what a replay saves, the process that measures has the device for
the rest. It takes twice as long where the device is never left to it.
"""


class Interim:
    """Replays one signature of a network's call by torch's own kernels.

    Parameters
    ----------
    make : callable
        Returns the capture of a call that torch serves; of a module and its tensors.

    Attributes
    ----------
    state : str
        What it replays, or why it doesn't; empty before the first call.
    """

    def __init__(self, make: Callable[[nn.Module, Sequence[Tensor]], Capture]) -> None:
        self._make, self._over = make, False
        self._capture: Capture | None = None
        self.state = ""

    def call(self, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Return the result of a replay; None if the call must run."""
        capture = self._capture or self._made(module, tensors)
        if capture is None:
            return None
        survey, ran, replayed = default().chooser.survey, capture.ran_ms / 1e3, capture.replayed_ms / 1e3
        rest = max(0.0, STEP * ran - replayed)
        if rest:
            synchronize(tensors[0].device)
            time.sleep(rest)
        with capture.lock:
            if not capture.may_begin():
                return None
            if not capture.begin(tensors):
                if not capture.inside.holds():
                    self.end("the network was changed")
                return None
            found = replay(capture, module, *tensors, *capture.inside.parameters)
        if found is not None:
            survey.pay(ran - replayed - rest, rest)
        return found

    def end(self, why: str = "it is over") -> None:
        """Replay no more, and free the memory."""
        held, self._capture, self._over, self.state = self._capture is not None, None, True, why
        if held and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _made(self, module: nn.Module, tensors: Sequence[Tensor]) -> Capture | None:
        """Make the capture at the first call; a call that can't be captured is never tried again."""
        if self._over or not MAKING.acquire(blocking=False):
            return None
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
            MAKING.release()
        if made.gain <= 1:
            self.end(f"replaying is no faster: {made.figures}")
            return None
        self._capture, self.state = made, made.figures
        return made


def roomy(device: torch.device) -> bool:
    """Return whether a device has memory for another pool of what the program holds."""
    if device.type != "cuda":
        return True
    return torch.cuda.mem_get_info(device)[0] >= ROOM * torch.cuda.memory_reserved(device)
