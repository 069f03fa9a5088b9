"""Softmax, its logarithm, and the loss that is made of it, computed by the operators of these names."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nxcore import session
from nxcore.nn.served import Served, by_kernel, with_rest

# Looked up once, not in every call.
_softmax = session.default().op("softmax")
_log_softmax = session.default().op("log_softmax")
_cross_entropy = session.default().op("cross_entropy")


class Rows(Served):
    """A module that normalises the rows along one axis."""

    @staticmethod
    def refusal(module: Any) -> str:
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        return "its dim is None: torch chooses the axis, and warns" if module.dim is None else ""


@with_rest
class Softmax(nn.Softmax, Rows):
    """``torch.nn.Softmax``, computed by the operator ``softmax``.

    >>> nxcore.nn.Softmax(-1)(torch.zeros(2, 4)).tolist()
    [[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the exponentials of each row, divided by their sum."""
        found: Tensor | None = None if self.dim is None else by_kernel(self, _softmax, input, self.dim, None)
        return nn.Softmax.forward(self, input) if found is None else found


@with_rest
class LogSoftmax(nn.LogSoftmax, Rows):
    """``torch.nn.LogSoftmax``, computed by the operator ``log_softmax``.

    >>> nxcore.nn.LogSoftmax(-1)(torch.zeros(1, 4)).exp()
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the logarithm of the softmax of each row."""
        found: Tensor | None = None
        if self.dim is not None:
            found = by_kernel(self, _log_softmax, input, self.dim, None)
        return nn.LogSoftmax.forward(self, input) if found is None else found


@with_rest
class CrossEntropyLoss(nn.CrossEntropyLoss, Served):
    """``torch.nn.CrossEntropyLoss``, computed by the operator ``cross_entropy`` for class indices.

    >>> nxcore.nn.CrossEntropyLoss()(torch.eye(2), torch.tensor([0, 1]))
    tensor(0.3133)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss; of classes' probabilities torch's own."""
        settings = self.weight, self.ignore_index, self.reduction, self.label_smoothing
        found: Tensor | None = by_kernel(self, _cross_entropy, input, target, *settings)
        return nn.CrossEntropyLoss.forward(self, input, target) if found is None else found
