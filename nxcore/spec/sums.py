"""Sums: gradients of weights that a kernel leaves in shares, where all weights of a call have one sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from nxcore.spec.launched import noted

Gradients = tuple[Tensor, ...]

SUMS = "nxcore_sums"
"""The attribute of an autograd node that gives weights to kernels and gets all their gradients."""


class Sums(Protocol):
    """Adds up the gradients of many weights together."""

    def leave(self, shares: Tensor, weights: Sequence[Tensor], finish: Callable[[], Gradients]) -> Gradients:
        """Return the gradients of ``weights``, or tensors that stand for them until all are added up.

        Parameters
        ----------
        shares : Tensor
            (rows, columns), row-major. The sums of its columns are the gradients, one weight after another,
            each in row-major order and of the weight's shape.
        weights : sequence of Tensor
            The weights, as the kernel got them.
        finish : callable
            Adds up these shares alone, and returns the gradients.
        """


def sums_of(*weights: Tensor) -> Sums | None:
    """Return what adds up the gradients of ``weights`` with those of others; None where each kernel does.

    The kernel of a backward operator calls it, with all weights whose gradients take it a further launch.

    >>> sums_of(torch.nn.Parameter(torch.ones(2))) is None
    True
    """
    if (launches := noted()) is not None:
        launches.weights.extend(weights)
        return None
    node = weights[0].grad_fn
    if node is None:
        return None
    found: Sums | None = getattr(node, SUMS, None)
    return found if all(weight.grad_fn is node for weight in weights) else None
