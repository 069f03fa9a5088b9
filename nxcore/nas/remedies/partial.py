"""``partial``: operations see a quarter of a state's channels; edges have logits of their own.

"PC-DARTS", Xu et al. 2020, arXiv:1907.05737, eq. 2 to 4 and its code. The other channels go by, at stride 2
through a max pool of 2x2, and channels are shuffled. The quarter of a state is cut out once for all of its
edges, and the edges' factors are part of those of their operations, so a node's blend is that of a cell of a
quarter of the channels; the rest of a node is a weighted sum of states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nxcore import session
from nxcore.nas.architecture import SCALE, ArchitectureParameters
from nxcore.nas.genotype import Genotype, dominant, edges
from nxcore.nas.remedies.remedy import Remedy, Weighed, WeighedCell


def factors(rows: Tensor, steps: int) -> Tensor:
    """Return the factors of operations, times those of their edges, and the latter in the last column.

    Parameters
    ----------
    rows : Tensor
        Shape (edges, operations + 1): logits of an edge's operations, and the edge's own.
    steps : int
        The number of nodes; the factors of a node's edges have the sum 1.
    """
    own = torch.cat([torch.softmax(rows[node[0] : node[-1] + 1, -1:], 0) for node in edges(steps)])
    return torch.cat((torch.softmax(rows[:, :-1], -1) * own, own), -1)


class EdgeLogits(ArchitectureParameters):
    """Logits of operations, and in the last column those of edges."""

    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)
        own = self.logits.detach()
        of_edges = SCALE * torch.randn(*own.shape[:2], 1, generator=options.get("generator"))
        self.logits = nn.Parameter(torch.cat((own, of_edges), -1))

    def entropies(self) -> Tensor:
        """Return the entropy of each edge's operations."""
        found: Tensor = session.default().op("entropy")(self.logits[..., :-1].float().contiguous())
        return found

    def genotype(self) -> Genotype:
        """Return the discrete architecture by the products of both factors."""
        concat = tuple(range(2 + self.steps - self.multiplier, self.steps + 2))
        normal, reduce = (
            dominant(factors(rows, self.steps)[:, :-1], self.primitives, self.steps)
            for rows in self.logits.detach().float().cpu()
        )
        return Genotype(normal, concat, reduce, concat)


class PartialCell(WeighedCell):
    """A cell whose operations see the first quarter of the channels of a state."""

    divides = 4

    def blended(self, s0: Tensor, s1: Tensor, weights: Tensor, active: Any = None) -> Tensor:  # noqa: ARG002  all run
        """Return the concatenated nodes; the last column of ``weights`` has the edges' factors."""
        own, seen = weights[:, -1], self.C // self.divides
        states = [self.preprocess0(s0), self.preprocess1(s1)]
        parts: list[Tensor] = []
        rests: list[Tensor] = []
        for node in edges(self._steps):
            for state in states[len(parts) :]:
                parts.append(state[:, :seen].contiguous())
                rest = state[:, seen:]
                strided = self.reduction and len(rests) < 2
                rests.append(functional.max_pool2d(rest, 2) if strided else rest.contiguous())
            blend = sum(self._ops[row](x, weights[row]) for row, x in zip(node, parts, strict=True))
            factor = own[node[0] : node[-1] + 1]
            rest = session.default().op("weighted_sum")(rests, factor)
            states.append(self._shuffled(torch.cat([blend, rest], 1)))
        return torch.cat(states[-self._multiplier :], dim=1)

    def _shuffled(self, x: Tensor) -> Tensor:
        """Return the channels in the order 0, C/4, 2C/4, 3C/4, 1, and so on."""
        rows: Tensor = x.unflatten(1, (self.divides, -1))
        return rows.transpose(1, 2).flatten(1, 2)


class PartialNetwork(Weighed):
    """A search network of such cells."""

    cell = PartialCell

    def weights(self, logits: Tensor) -> Tensor:
        """Return the factors of operations and of edges."""
        return factors(logits, self.steps)


class Partial(Remedy):
    """A quarter of the channels."""

    architecture, network = EdgeLogits, PartialNetwork
