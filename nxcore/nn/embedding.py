"""Embedding, computed by the operator of torch's function."""

from __future__ import annotations

from torch import Tensor, nn

from nxcore import session
from nxcore.nn.served import Served, by_kernel, with_rest

_embedding = session.default().op("embedding")  # looked up once, not in every call


@with_rest
class Embedding(nn.Embedding, Served):
    """``torch.nn.Embedding``, computed by the operator ``embedding``, but with ``max_norm`` or ``sparse``.

    >>> nxcore.nn.Embedding(3, 2)(torch.tensor([0, 2])).shape
    torch.Size([2, 2])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows that an index names."""
        settings = self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        found: Tensor | None = by_kernel(self, _embedding, input, self.weight, self.padding_idx, *settings)
        return nn.Embedding.forward(self, input) if found is None else found
