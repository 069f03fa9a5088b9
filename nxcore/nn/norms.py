"""Norms of rows and of groups of channels, computed by the operators of torch's functions."""

from __future__ import annotations

from torch import Tensor, nn

from nxcore import session
from nxcore.nn.served import Served, by_kernel, with_rest
from nxcore.program.passes.operators import FORMATS

# Looked up once, not in every call.
_layer_norm = session.default().op("layer_norm")
_group_norm = session.default().op("group_norm")
_rms_norm = session.default().op("rms_norm")


@with_rest
class LayerNorm(nn.LayerNorm, Served):
    """``torch.nn.LayerNorm``, computed by the operator ``layer_norm``.

    >>> nxcore.nn.LayerNorm(2, eps=0.0)(torch.tensor([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return each row less its mean, divided by its deviation."""
        rest = (self.normalized_shape, self.weight, self.bias, self.eps)
        found: Tensor | None = by_kernel(self, _layer_norm, input, *rest)
        return nn.LayerNorm.forward(self, input) if found is None else found


@with_rest
class RMSNorm(nn.RMSNorm, Served):
    """``torch.nn.RMSNorm``, computed by the operator ``rms_norm``.

    >>> nxcore.nn.RMSNorm(2)(torch.tensor([[3.0, -3.0]])).tolist()
    [[1.0, -1.0]]
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return each row divided by the root of the mean of its squares."""
        rest = (self.normalized_shape, self.weight, self.eps)
        found = by_kernel(self, _rms_norm, input, *rest) if FORMATS["rms_norm"](input) else None
        return nn.RMSNorm.forward(self, input) if found is None else found


@with_rest
class GroupNorm(nn.GroupNorm, Served):
    """``torch.nn.GroupNorm``, computed by the operator ``group_norm``.

    >>> nxcore.nn.GroupNorm(1, 2, eps=0.0)(torch.tensor([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return each group of channels less its mean, divided by its deviation."""
        rest = (self.num_groups, self.weight, self.bias, self.eps)
        found = by_kernel(self, _group_norm, input, *rest) if FORMATS["group_norm"](input) else None
        return nn.GroupNorm.forward(self, input) if found is None else found
