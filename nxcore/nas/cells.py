"""Cells and networks: of a search, and of the architecture that it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.errors import InvalidInputError
from nxcore.nas.genotype import Gene, Genotype, edges
from nxcore.nas.mixed import MixedOp, Mode
from nxcore.nas.operations import OPS, PRIMITIVES, FactorizedReduce, Identity, ReLUConvBN
from nxcore.nas.pools import pooled


class Cell(nn.Module):
    """A cell of the search: every node sums mixed operations of all states before it.

    In training, the pools of all edges that leave a state are computed once (see ``nxcore.nas.pools``).

    Parameters
    ----------
    steps : int
        Nodes.
    multiplier : int
        How many of the last nodes are concatenated.
    C_prev_prev, C_prev, C : int
        Channels of the two inputs, and of every state.
    reduction : bool
        The edges that leave the inputs have stride 2.
    reduction_prev : bool
        The cell before was a reduction, so the input before it is twice as large.
    primitives, mode
        As in ``MixedOp``.
    """

    def __init__(
        self,
        steps: int,
        multiplier: int,
        C_prev_prev: int,
        C_prev: int,
        C: int,
        reduction: bool,
        reduction_prev: bool,
        primitives: Sequence[str] = PRIMITIVES,
        mode: Mode = "exact",
    ) -> None:
        super().__init__()
        self.reduction, self._steps, self._multiplier = reduction, steps, multiplier
        self.preprocess0 = _preprocess(C_prev_prev, C, reduction_prev, affine=False)
        self.preprocess1 = ReLUConvBN(C_prev, C, 1, 1, 0, affine=False)
        self._ops = nn.ModuleList(
            MixedOp(C, 2 if reduction and state < 2 else 1, primitives, mode)
            for node in range(steps)
            for state in range(node + 2)
        )

    def forward(self, s0: Tensor, s1: Tensor, logits: Tensor) -> Tensor:
        """Return the concatenated nodes.

        Parameters
        ----------
        s0, s1 : Tensor
            Outputs of the two cells before.
        logits : Tensor
            Shape (edges, operations), before softmax.
        """
        states = [self.preprocess0(s0), self.preprocess1(s1)]
        rows = logits.unbind(0)
        outputs = self._pooled(states[0], 0) | self._pooled(states[1], 1)
        for node in edges(self._steps):
            edge = zip(node, states, strict=True)
            parts = [self._ops[row](x, rows[row], outputs=outputs.get(row)) for row, x in edge]
            states.append(_summed(parts))
            outputs |= self._pooled(states[-1], len(states) - 1)
        return torch.cat(states[-self._multiplier :], dim=1)

    def _pooled(self, x: Tensor, state: int) -> dict[int, dict[int, Tensor]]:
        """Return the pools of ``x`` for the edges that leave it; in training alone can they be shared."""
        rows = [node[state] for node in edges(self._steps) if state < len(node)] if self.training else []
        mixed: list[tuple[int, Any]] = [(row, self._ops[row]) for row in rows]
        whole = [(row, m.candidates) for row, m in mixed if m.mode == "exact"]
        return pooled(x, [((row, i), op) for row, ops in whole for i, op in enumerate(ops)])


class SearchNetwork(nn.Module):
    """The network of a search: a stem, cells of two kinds, and a classifier.

    Parameters
    ----------
    C : int
        Channels of the first cells; they double at each reduction.
    num_classes : int
    layers : int
        Cells; those at a third and two thirds are reductions.
    steps, multiplier, stem_multiplier : int
        Nodes of a cell, how many of them are concatenated, and the stem's channels over C.
    primitives, mode
        As in ``MixedOp``.
    in_channels : int
        Of the images.

    Notes
    -----
    The architecture is no parameter of the module: ``ArchitectureParameters`` holds it, and ``forward``
    takes it. So weights and architecture have optimizers of their own, and a published supernet's
    state_dict loads as it is.
    """

    def __init__(
        self,
        C: int = 16,
        num_classes: int = 10,
        layers: int = 8,
        steps: int = 4,
        multiplier: int = 4,
        stem_multiplier: int = 3,
        primitives: Sequence[str] = PRIMITIVES,
        mode: Mode = "exact",
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        C_curr = stem_multiplier * C
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, C_curr, 3, padding=1, bias=False), nn.BatchNorm2d(C_curr)
        )
        C_prev_prev, C_prev, C_curr = C_curr, C_curr, C
        self.cells = nn.ModuleList()
        reduction_prev = False
        for i in range(layers):
            reduction = i in (layers // 3, 2 * layers // 3)
            C_curr *= 2 if reduction else 1
            self.cells.append(
                Cell(
                    steps,
                    multiplier,
                    C_prev_prev,
                    C_prev,
                    C_curr,
                    reduction,
                    reduction_prev,
                    primitives,
                    mode,
                )
            )
            reduction_prev = reduction
            C_prev_prev, C_prev = C_prev, multiplier * C_curr
        self.global_pooling = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(C_prev, num_classes)

    def forward(self, x: Tensor, normal: Tensor, reduce: Tensor) -> Tensor:
        """Return the class scores, shape (N, num_classes).

        Parameters
        ----------
        x : Tensor
            Images, shape (N, in_channels, H, W).
        normal, reduce : Tensor
            Architecture logits of the two kinds of cell, shape (edges, operations).
        """
        s0 = s1 = self.stem(x)
        for cell in self.cells:
            s0, s1 = s1, cell(s0, s1, reduce if cell.reduction else normal)
        out: Tensor = self.classifier(self.global_pooling(s1).flatten(1))
        return out


class EvalCell(nn.Module):
    """A cell of a found architecture: two operations a node.

    Parameters
    ----------
    genes : sequence of (str, int)
        Operation and source state, two a node.
    concat : sequence of int
        The states that are concatenated.
    C_prev_prev, C_prev, C, reduction, reduction_prev
        As in ``Cell``.
    """

    def __init__(
        self,
        genes: Sequence[Gene],
        concat: Sequence[int],
        C_prev_prev: int,
        C_prev: int,
        C: int,
        reduction: bool,
        reduction_prev: bool,
    ) -> None:
        super().__init__()
        if len(genes) % 2:
            raise InvalidInputError(f"genes must be two a node, got {len(genes)}", argument="genes")
        self.preprocess0 = _preprocess(C_prev_prev, C, reduction_prev, affine=True)
        self.preprocess1 = ReLUConvBN(C_prev, C, 1, 1, 0)
        self._sources, self._concat = tuple(s for _, s in genes), tuple(concat)
        self._ops = nn.ModuleList(
            OPS[name](C, 2 if reduction and source < 2 else 1, True) for name, source in genes
        )

    def forward(self, s0: Tensor, s1: Tensor, drop_prob: float = 0.0) -> Tensor:
        """Return the concatenated states; whole paths are dropped with ``drop_prob`` in training."""
        states = [self.preprocess0(s0), self.preprocess1(s1)]
        for first in range(0, len(self._ops), 2):
            pair = [self._path(i, states, drop_prob) for i in (first, first + 1)]
            states.append(pair[0] + pair[1])
        return torch.cat([states[i] for i in self._concat], dim=1)

    def _path(self, i: int, states: list[Tensor], drop_prob: float) -> Tensor:
        op = self._ops[i]
        out: Tensor = op(states[self._sources[i]])
        if not self.training or drop_prob <= 0.0 or isinstance(op, Identity):
            return out
        keep = 1.0 - drop_prob
        mask = torch.empty(out.shape[0], 1, 1, 1, device=out.device, dtype=out.dtype).bernoulli_(keep)
        return out / keep * mask


class EvalNetwork(nn.Module):
    """The network of a genotype.

    Parameters
    ----------
    genotype : Genotype
    C, num_classes, layers, stem_multiplier, in_channels
        As in ``SearchNetwork``.
    """

    def __init__(
        self,
        genotype: Genotype,
        C: int = 36,
        num_classes: int = 10,
        layers: int = 20,
        stem_multiplier: int = 3,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        C_curr = stem_multiplier * C
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, C_curr, 3, padding=1, bias=False), nn.BatchNorm2d(C_curr)
        )
        self.drop_path_prob = 0.0
        C_prev_prev, C_prev, C_curr = C_curr, C_curr, C
        self.cells = nn.ModuleList()
        reduction_prev = False
        for i in range(layers):
            reduction = i in (layers // 3, 2 * layers // 3)
            C_curr *= 2 if reduction else 1
            genes, concat = (
                (genotype.reduce, genotype.reduce_concat)
                if reduction
                else (genotype.normal, genotype.normal_concat)
            )
            self.cells.append(EvalCell(genes, concat, C_prev_prev, C_prev, C_curr, reduction, reduction_prev))
            reduction_prev = reduction
            C_prev_prev, C_prev = C_prev, len(concat) * C_curr
        self.global_pooling = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(C_prev, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores, shape (N, num_classes)."""
        s0 = s1 = self.stem(x)
        for cell in self.cells:
            s0, s1 = s1, cell(s0, s1, self.drop_path_prob)
        out: Tensor = self.classifier(self.global_pooling(s1).flatten(1))
        return out


def _preprocess(C_in: int, C: int, reduction_prev: bool, *, affine: bool) -> nn.Module:
    return FactorizedReduce(C_in, C, affine) if reduction_prev else ReLUConvBN(C_in, C, 1, 1, 0, affine)


def _summed(parts: Sequence[Tensor]) -> Tensor:
    out = parts[0]
    for part in parts[1:]:
        out = out + part
    return out
