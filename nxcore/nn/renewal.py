"""Renewal: a model captured while problems were learnt is captured again. The faster capture stays.

Kernels that were learnt may lead to new problems, such as those of several layers together. In the new
capture torch's references of these serve, which may take longer than all that a plain model runs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from nxcore.graphs.buffers import untouched
from nxcore.graphs.capture import Capture
from nxcore.graphs.dice import thrown
from nxcore.graphs.outcome import compared
from nxcore.graphs.recorder import Recorder

ROOM = 2.0
"""The device's free memory, relative to what a capture keeps, that permits a second one and its run."""


def roomy(device: torch.device, pool: int) -> bool:
    """Return whether there is memory for a capture beside one that keeps ``pool`` bytes."""
    if device.type != "cuda":
        return True
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0] >= ROOM * pool


def faster(new: Capture, old: Capture, tensors: Sequence[Tensor], recorder: Recorder) -> bool:
    """Return whether replays of ``new`` take less time than those of ``old``."""
    if not old.may_begin():  # what its last replay saved is still needed
        return new.replayed_ms <= old.replayed_ms
    with new.lock, torch.no_grad(), untouched(new.inside.buffers), thrown(recorder, recorder.dice()):
        before, after = compared(recorder, *(functools.partial(_replay, c, tensors) for c in (old, new)))
    return after <= before


def _replay(capture: Capture, tensors: Sequence[Tensor]) -> None:
    """Replay both graphs."""
    capture.backward(torch.ones_like(capture.forward(tensors)))
