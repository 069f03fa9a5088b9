"""Dice: whether a call draws random numbers, of the device or of the host."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from nxcore.errors import CaptureError
from nxcore.graphs.recorder import Recorder

Result = TypeVar("Result")


def without_dice(recorder: Recorder, work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, if it draws nothing; the generators are as before in any case.

    Raises
    ------
    CaptureError
        If a generator has another state afterwards: of the device, of torch on the host, of Python or of
        numpy.
    """
    device, host = recorder.dice(), _host()
    result = work()
    if drawn := not torch.equal(recorder.dice(), device):
        recorder.put_back(device)
    elif _differ(_host(), host):  # a choice of kernels may draw, but not twice
        _put_back(host)
        work()
        drawn = _differ(_host(), host)
    if drawn:
        _put_back(host)
        raise CaptureError("it draws random numbers")
    return result


def _host() -> list[Any]:
    numpy = sys.modules.get("numpy")  # who hasn't imported it draws nothing from it
    return [random.getstate(), torch.get_rng_state().numpy().tobytes(), numpy and _drawn(numpy)]


def _drawn(numpy: Any) -> Any:
    kind, keys, *rest = numpy.random.get_state()
    return kind, keys.tolist(), *rest


def _differ(states: list[Any], others: list[Any]) -> bool:
    return any(state != other for state, other in zip(states, others, strict=True) if other is not None)


def _put_back(host: list[Any]) -> None:
    random.setstate(host[0])
    torch.set_rng_state(torch.frombuffer(bytearray(host[1]), dtype=torch.uint8))
    if host[2] is not None:
        sys.modules["numpy"].random.set_state(host[2])
