"""Beforehand: kernels of a network that are verified in a thread, while torch serves its first calls.

A first step loads torch's own kernels, for which the interpreter isn't needed. The capture that follows needs
it for two thirds of its time to verify kernels. Which ones is on record.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from nxcore.choose.recall import Recall
from nxcore.errors import FOREIGN
from nxcore.spec.compiling import on_disk_alone
from nxcore.spec.device import heed_no_capture
from nxcore.store.problems import described, moved
from nxcore.store.wisdom import environment
from nxcore.trust.gate import short

_log = logging.getLogger(__name__)

DEVICES = ("cuda",)
"""The types of devices for whose kernels this is done."""


SWITCH_S = 2e-4
"""Seconds after which the thread gives the interpreter to the program, which wants it after each launch.

Python's own 5 ms would be added to many of a step's thousands of launches.
"""


@contextlib.contextmanager
def _switching(seconds: float) -> Iterator[None]:
    """Let threads have the interpreter for so long within this block, unless the program sets that itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(seconds, before))
    mine = sys.getswitchinterval()
    try:
        yield
    finally:
        if sys.getswitchinterval() == mine:
            sys.setswitchinterval(before)


class Beforehand:
    """Verifies the kernels that win on record for a network's sizes, once a process.

    Parameters
    ----------
    recall : Recall
        Has the record, and the gate.

    Attributes
    ----------
    thread : Thread, optional
        In which that is done, once it has begun.
    """

    def __init__(self, recall: Recall) -> None:
        self._recall, self._over = recall, threading.Event()
        self.thread: threading.Thread | None = None

    def begin(self, like: Tensor) -> None:
        """Begin, for a network that is called with a tensor like this one."""
        if self.thread is None and like.device.type in DEVICES and like.ndim and not self._over.is_set():
            self.thread = threading.Thread(
                target=self._verify, args=(like.detach(),), name="nxcore beforehand"
            )
            self.thread.start()

    def end(self) -> None:
        """End after the kernel that is being verified: from now on a caller does that."""
        self._over.set()

    def _verify(self, like: Tensor) -> None:
        if like.is_cuda:
            heed_no_capture()
        with _switching(SWITCH_S):
            for op, label, of in _expected(self._recall, like):
                if self._over.is_set() or not threading.main_thread().is_alive():
                    return
                try:
                    self._verify_one(op, label, of, like.device)
                except FOREIGN as error:  # the call that needs it finds what is wrong with it
                    _log.debug("beforehand: %s of %s isn't verified: %s", label, op, error)

    def _verify_one(self, op: str, label: str, of: Mapping[str, Any], device: torch.device) -> None:
        """Verify a kernel that needs no compiler."""
        tuner = self._recall.tuner
        problem = moved(described(tuner.registry.spec(op), of), device)
        for backend, kernel in tuner.registry.kernels(op):
            if backend.label(kernel) == label and not tuner.refusal(backend, kernel, problem):
                with on_disk_alone():
                    tuner.gate.verify(backend, kernel, problem)


def _expected(recall: Recall, like: Tensor) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield operators with the kernel that wins most of an operator's problems, and one of these.

    Operators come first most of whose problems fit.
    """
    wisdom, registry, facts = recall.wisdom, recall.tuner.registry, environment(like.device)
    known, fit = Counter[str](), Counter[str]()
    for of in wisdom.keys(like.device.type):
        known[str(of.get("op"))] += 1
        fit[str(of.get("op"))] += _fits(of, like)
    for op in sorted((op for op in +fit if op in registry.ops), key=lambda op: -fit[op] / known[op]):
        backends = {b.label(k): b.name for b, k in registry.kernels(op)}
        labels, examples = Counter[str](), dict[str, Mapping[str, Any]]()
        for of, page in list(wisdom.shelf(facts, op).values()):
            label = (page.decision.captured or page.decision).chosen
            if backends.get(label, "torch") != "torch" and _fits(of, like):
                labels[label] += 1
                examples.setdefault(label, of)
        yield from ((op, label, examples[label]) for label, _ in labels.most_common(1))


def _fits(of: Mapping[str, Any], like: Tensor) -> bool:
    """Return whether a recorded problem may be one of a network's: of its batch, and of its image reduced."""
    first, dtype = next(_tensors(of), None), short(like.dtype)
    return bool(first and first.get("dtype") == dtype) and any(
        len(shape) == like.ndim and shape[0] == like.shape[0] and shape[-1] and not like.shape[-1] % shape[-1]
        for shape in (tensor["shape"] for tensor in _tensors(of))
    )


def _tensors(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the descriptions of tensors in the key of a page."""
    if isinstance(value, Mapping):
        if isinstance(value.get("shape"), list):
            yield value
        else:
            for item in value.values():
                yield from _tensors(item)
    elif isinstance(value, list):
        for item in value:
            yield from _tensors(item)
