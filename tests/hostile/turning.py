"""Plugins that are right until they have passed their gate; ``leaving`` has those of settings.

Each is the reference in disguise until ``turn`` is called; from then on it is wrong in its own way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.kernel import Backend
from nxcore.spec.problem import leaves
from tests.null import fakes
from tests.null.fakes import SPECS

Call = Callable[..., Any]

FAR = 10_000
"""The elements that one of them gets right."""


@dataclass
class Turning:
    """A kernel that turns bad.

    Attributes
    ----------
    bad : callable
        From a reference to what computes in its place once it has turned.
    reason : str
        A part of the reason that it must be convicted for.
    """

    bad: Callable[[Call], Call]
    reason: str
    turned: set[str] = field(default_factory=set, init=False)

    def turn(self, op: str) -> None:
        """Be wrong from now on."""
        self.turned.add(op)

    def backend(self, *ops: str) -> Backend:
        """Return it as a backend of these operators, as yet right."""
        self.turned.clear()
        return fakes.backend("hostile", *(fakes.kernel(op, self._kernel(op)) for op in ops))

    def _kernel(self, op: str) -> Call:
        reference = SPECS[op].reference
        bad = self.bad(reference)

        def call(*args: Any) -> Any:
            return (bad if op in self.turned else reference)(*args)

        return call


def _lately(change: Callable[[Any], Any]) -> Callable[[Call], Call]:
    """Change the right result."""

    def disguise(reference: Call) -> Call:
        def compute(*args: Any) -> Any:
            result = reference(*args)
            return tuple(map(change, result)) if isinstance(result, tuple) else change(result)

        return compute

    return disguise


def viewing(reference: Call) -> Call:
    """Write the right result into the first input that it fits into, and return a view of that."""

    def compute(*args: Any) -> Any:
        result = reference(*args)
        whole = next(t for t in leaves(args) if t.shape == result.shape)
        return whole.data.copy_(result).view(result.shape)

    return compute


def reusing(reference: Call) -> Call:
    """Return the same buffer every time: the next call changes the last result."""
    buffers: dict[Any, Tensor] = {}

    def compute(*args: Any) -> Any:
        result = reference(*args)
        return buffers.setdefault(tuple(result.shape), torch.empty_like(result)).copy_(result)

    return compute


def mutating(reference: Call) -> Call:
    """Write into the first element of the first input, once the result is there."""

    def compute(*args: Any) -> Any:
        result = reference(*args)
        next(leaves(args)).data.view(-1)[0] += 1
        return result

    return compute


def _strided(right: Tensor) -> Tensor:
    return torch.stack([right, right], dim=-1)[..., 0]


def _far_off(right: Tensor) -> Tensor:
    right.view(-1)[FAR:] += 1
    return right


TURNING = {
    "view_of_an_input": Turning(viewing, "a result must not share memory with an input"),
    "buffer_used_again": Turning(
        reusing, "a result must not share memory with the result of the previous call"
    ),
    "dtype": Turning(_lately(torch.Tensor.double), "dtype must be torch's torch.float32, got torch.float64"),
    "strides": Turning(_lately(_strided), "strides must be torch's"),
    "none": Turning(_lately(lambda right: None), "must be a plain tensor, got NoneType"),
    "input_mutated": Turning(mutating, "inputs must be left unchanged"),
    "wrong_past_10000": Turning(_lately(_far_off), "elementwise error is"),
}
"""By name. Each is found in its first watched calls."""
