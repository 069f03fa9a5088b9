"""A loopback backend, which is the reference in disguise, and two that need a process or a device."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nxcore.registry.registry import Registry
from nxcore.spec.kernel import Backend
from nxcore.spec.spec import OpSpec
from nxcore.trust.truth import without_out
from tests.null import fakes
from tests.null.fakes import SPECS

Call = Callable[..., Any]

OPS = ("add", "sum", "softmax_sum")
PLAIN = {"add": "last_block_partly_filled", "sum": "inner_axis", "softmax_sum": "last_block_partly_filled"}

HUNG = "NXCORE_TEST_HUNG"
"""Names a file that appears once a kernel hangs."""


@dataclass(frozen=True)
class Hostile:
    """One way to be wrong.

    Attributes
    ----------
    disguise : callable
        From a reference, which takes no ``out``, to what computes in its place.
    """

    disguise: Callable[[Call], Call]

    def kernel(self, op: str) -> Call:
        """Return it as a kernel of ``op``."""
        return _with_out(SPECS[op], self.disguise(SPECS[op].reference))

    def backend(self, *ops: str) -> Backend:
        """Return it as a backend of these operators, a kernel each."""
        kernels = (fakes.kernel(op, self.kernel(op), dtypes=(torch.float32,)) for op in ops or OPS)
        return fakes.backend("hostile", *kernels)


def _with_out(spec: OpSpec, compute: Call) -> Call:
    """Return ``compute`` as a kernel that writes into ``out`` where one is given."""

    def call(*args: Any) -> Any:
        inputs = without_out(spec, args)
        result = compute(*inputs)
        out = next((a for a, i in zip(args, inputs, strict=True) if a is not i), None)
        return result if out is None else out.copy_(result)

    return call


def on_a_side_stream(reference: Call) -> Call:
    """Leave the current stream, and nobody waits."""

    def compute(*args: Any) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            return reference(*args)

    return compute


def hanging(reference: Call) -> Call:
    """Never return, and never say so."""

    def compute(*args: Any) -> Any:
        if HUNG in os.environ:
            Path(os.environ[HUNG]).touch()
        while True:
            time.sleep(60)

    return compute


LOOPBACK = Hostile(lambda reference: lambda *args: reference(*args))

SIDE_STREAM = Hostile(on_a_side_stream)
HANGS = Hostile(hanging)


def hangs() -> Registry:
    """Return the registry of what hangs, for a process of its own."""
    return fakes.registry(HANGS.backend("sum"))
