"""The architecture under search: one tensor for all edges of all kinds of cell."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nxcore.nas.genotype import Genotype, dominant, edges
from nxcore.nas.operations import PRIMITIVES
from nxcore.nas.rule import above_zero, perturbed, straight_through

SCALE = 1e-3
"""The standard deviation of fresh logits, as in the paper's code."""


class ArchitectureParameters(nn.Module):
    """Logits of every edge, before softmax.

    Parameters
    ----------
    steps : int
        Nodes of a cell.
    primitives : sequence of str
        The operations.
    multiplier : int
        How many of the last nodes a cell concatenates.
    generator : torch.Generator, optional
        Of the fresh logits.

    Attributes
    ----------
    logits : Parameter
        Shape (2, edges, operations): of normal cells and of reductions.
    """

    def __init__(
        self,
        steps: int = 4,
        primitives: Sequence[str] = PRIMITIVES,
        multiplier: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.steps, self.multiplier, self.primitives = steps, multiplier, tuple(primitives)
        count = edges(steps)[-1][-1] + 1
        self.logits = nn.Parameter(SCALE * torch.randn(2, count, len(primitives), generator=generator))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the logits of normal cells and of reductions, each (edges, operations)."""
        normal, reduce = self.logits.unbind(0)
        return normal, reduce

    def sample(
        self, tau: float | Tensor = 1.0, *, hard: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return Gumbel-softmax weights of all edges, drawn at once: Jang, Gu, Poole 2017, arXiv:1611.01144.

        Parameters
        ----------
        tau : float or Tensor
            The temperature, above 0; a tensor may change under a captured graph.
        hard : bool
            One-hot in the forward pass; the gradient is that of the soft weights (straight-through).
        generator : torch.Generator, optional
            Of the noise.

        Raises
        ------
        InvalidInputError
            If ``tau`` is a number that isn't above 0.
        """
        above_zero(tau)
        noisy = perturbed(self.logits, generator)
        soft = torch.softmax(noisy / tau, dim=-1)
        if hard:
            soft = straight_through(soft, noisy.argmax(-1, keepdim=True))
        normal, reduce = soft.to(self.logits.dtype).unbind(0)
        return normal, reduce

    def entropy(self) -> Tensor:
        """Return the mean entropy of the edges' softmax, in nats: a scalar; log(operations) at most."""
        log_p = torch.log_softmax(self.logits.float(), dim=-1)
        return -(log_p.exp() * log_p).sum(-1).mean()

    def genotype(self) -> Genotype:
        """Return the discrete architecture: two edges a node, ``none`` excluded; reads the device once."""
        normal, reduce = torch.softmax(self.logits.detach().float(), dim=-1).cpu().unbind(0)
        concat = tuple(range(2 + self.steps - self.multiplier, self.steps + 2))
        return Genotype(
            dominant(normal, self.primitives, self.steps),
            concat,
            dominant(reduce, self.primitives, self.steps),
            concat,
        )
