"""Dice: whether a call draws random numbers, of the device or of the host."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from nxcore.errors import CaptureError
from nxcore.graphs.recorder import Recorder

DRAWS = "it draws random numbers"

Result = TypeVar("Result")


def with_dice(recorder: Recorder, work: Callable[[], Result], *, may: bool) -> tuple[Result, bool]:
    """Return the result of ``work``, and whether it draws from the device's generator, if it ``may``.

    Raises
    ------
    CaptureError
        If a generator has another state afterwards: of torch on the host, of Python or of numpy, or of the
        device. The generators are as before then.
    """
    device, host = recorder.dice(), hosts()
    result = work()
    drawn = not torch.equal(recorder.dice(), device)
    if drawn and recorder.on_host:
        host[1] = _torchs()
    refused = drawn and not may
    if not refused and differ(hosts(), host):  # a choice of kernels may draw, but not twice
        put_hosts_back(host)
        recorder.put_back(device)
        result = work()
        refused = differ(hosts(), host)
    if refused:
        put_hosts_back(host)
        recorder.put_back(device)
        raise CaptureError(DRAWS)
    return result, drawn


@contextlib.contextmanager
def thrown(recorder: Recorder, dice: Tensor | None) -> Iterator[None]:
    """Let the device's random generator have the state ``dice`` within the block, if that isn't None."""
    if dice is None:
        yield
        return
    before = recorder.dice()
    recorder.put_back(dice)
    try:
        yield
    finally:
        recorder.put_back(before)


def hosts() -> list[Any]:
    """Return the states of the host's random generators: Python's, torch's and numpy's."""
    numpy = sys.modules.get("numpy")  # who hasn't imported it draws nothing from it
    return [random.getstate(), _torchs(), numpy and _drawn(numpy)]


def _torchs() -> bytes:
    return bytes(torch.get_rng_state().numpy().tobytes())


def _drawn(numpy: Any) -> Any:
    kind, keys, *rest = numpy.random.get_state()
    return kind, keys.tolist(), *rest


def differ(states: list[Any], others: list[Any]) -> bool:
    """Return whether a generator has another state."""
    return any(state != other for state, other in zip(states, others, strict=True) if other is not None)


def put_hosts_back(host: list[Any]) -> None:
    """Set these states."""
    random.setstate(host[0])
    torch.set_rng_state(torch.frombuffer(bytearray(host[1]), dtype=torch.uint8))
    if host[2] is not None:
        sys.modules["numpy"].random.set_state(host[2])
