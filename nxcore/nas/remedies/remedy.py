"""Remedy: what a search does so that skip connections don't win by being easy; by itself, nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.nas.architecture import ArchitectureParameters
from nxcore.nas.cells import Cell
from nxcore.nas.networks import SearchNetwork
from nxcore.nas.rule import Selection

if TYPE_CHECKING:
    from nxcore.nas.genotype import Genotype
    from nxcore.nas.preset import Preset
    from nxcore.nas.trainer import Trainer


class Remedy:
    """The search of the paper, and what others change in it.

    Attributes
    ----------
    architecture, network
        What is called for an architecture and for a search network.
    skips : int, optional
        The search ends before a cell of the genotype has more skip connections than this.
    selects : bool
        Whether ``selected`` chooses the genotype.
    """

    architecture: ClassVar[type[ArchitectureParameters]] = ArchitectureParameters
    network: ClassVar[type[SearchNetwork]] = SearchNetwork
    skips: int | None = None
    selects: ClassVar[bool] = False

    def __init__(self, preset: Preset) -> None:
        if self.network is not SearchNetwork and (preset.mutations or preset.mode != "exact"):
            got = "mutations" if preset.mutations else f"mode {preset.mode!r}"
            raise InvalidInputError(
                f"remedy {preset.remedy!r} needs mode 'exact' and a network that doesn't grow, got {got}",
                argument="remedy",
            )

    def anneal(self, net: Any, done: float) -> None:
        """Prepare an epoch of the search, of which the share ``done`` is over."""

    def selected(self, trainer: Trainer) -> Genotype:
        """Return the genotype at the end of the search."""
        raise NotImplementedError


class WeighedCell(Cell):
    """A cell that is called with the factors of its operations, not with logits."""

    def forward(self, s0: Tensor, s1: Tensor, logits: Tensor, plan: Selection | None = None) -> Tensor:
        """Return the concatenated nodes; ``logits`` are factors, a row for each edge."""
        del plan  # all operations run
        return self.blended(s0, s1, logits)


class Weighed(SearchNetwork):
    """A search network that makes the factors of its operations by itself."""

    cell = WeighedCell

    def forward(self, x: Tensor, normal: Tensor, reduce: Tensor) -> Tensor:
        """Return the class scores for the architecture's rows of both kinds of cell."""
        return self.weighed(x, self.weights(normal), self.weights(reduce))

    def weights(self, logits: Tensor) -> Tensor:
        """Return the factors of a kind of cell, a row for each edge."""
        return torch.softmax(logits, -1)

    def weighed(self, x: Tensor, normal: Tensor, reduce: Tensor) -> Tensor:
        """Return the class scores for the factors of both kinds of cell."""
        kinds = normal, reduce
        return self._scores(x, lambda cell, s0, s1: self._through(cell, s0, s1, kinds[cell.reduction]))
