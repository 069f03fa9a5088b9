"""Cells of a search network, and cells of a found architecture."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.errors import InvalidInputError
from nxcore.nas.genotype import Gene, edges
from nxcore.nas.mixed import Blend
from nxcore.nas.operations import OPS, PRIMITIVES, FactorizedReduce, Identity, ReLUConvBN
from nxcore.nas.rule import Mode, Rule, Selection, as_rule


class Cell(nn.Module):
    """A cell of a search network: each node is the sum of mixed operations on all earlier states.

    The code is plain torch, and names are those of the paper's; ``nxcore.nas.patch`` makes it fast.

    Parameters
    ----------
    steps : int
        The number of nodes.
    multiplier : int
        The number of last nodes that are concatenated.
    C_prev_prev, C_prev, C : int
        Channels of the two inputs, and of every state.
    reduction : bool
        Whether the edges that leave the inputs have stride 2.
    reduction_prev : bool
        Whether the previous cell is a reduction, so that the input before it is twice as large.
    primitives, mode
        As in ``MixedOp``.

    Attributes
    ----------
    channels : int
        Channels of the output.

    Examples
    --------
    >>> cell = nas.Cell(1, 1, 4, 4, 4, False, False, ["none", "skip_connect"])
    >>> cell(torch.ones(1, 4, 8, 8), torch.ones(1, 4, 8, 8), torch.zeros(2, 2)).shape
    torch.Size([1, 4, 8, 8])
    """

    divides = 1
    """The channels of a state over those of its operations."""

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
        mode: Mode | Rule = "exact",
    ) -> None:
        super().__init__()
        self.rule, self.primitives = as_rule(mode), tuple(primitives)
        self.C_prev_prev, self.C_prev, self.C, self.channels = C_prev_prev, C_prev, C, multiplier * C
        self.reduction, self.reduction_prev = reduction, reduction_prev
        self._steps, self._multiplier = steps, multiplier
        self.preprocess0 = _preprocess(C_prev_prev, C, reduction_prev, affine=False)
        self.preprocess1 = ReLUConvBN(C_prev, C, 1, 1, 0, affine=False)
        self._ops = nn.ModuleList(
            Blend(C // self.divides, 2 if reduction and state < 2 else 1, primitives)
            for node in range(steps)
            for state in range(node + 2)
        )

    def forward(self, s0: Tensor, s1: Tensor, logits: Tensor, plan: Selection | None = None) -> Tensor:
        """Return the concatenated nodes, shape (N, multiplier * C, H', W').

        Parameters
        ----------
        s0, s1 : Tensor
            Outputs of the two previous cells, shape (N, C_prev_prev, H0, W0) and (N, C_prev, H, W).
        logits : Tensor
            Shape (edges, operations), before softmax.
        plan : Selection, optional
            The operations that run in modes other than ``exact``; a network selects for all cells at once.
            Without it, the cell selects by itself.

        Raises
        ------
        InvalidInputError
            If ``logits`` has another shape.
        """
        check_rows(logits, "logits", len(self._ops), len(self.primitives))
        if plan is None and self.rule.mode != "exact":
            plan = self.rule.plan(logits, self.primitives)
        if plan is None:
            return self.blended(s0, s1, torch.softmax(logits, -1))
        return self.blended(s0, s1, plan.weights, plan.active)

    def blended(self, s0: Tensor, s1: Tensor, weights: Tensor, active: Any = None) -> Tensor:
        """Return the cell's output for the factors of all operations; ``active`` are those that run."""
        states = [self.preprocess0(s0), self.preprocess1(s1)]
        for node in edges(self._steps):
            states.append(
                sum(
                    self._ops[row](x, weights[row], *(() if active is None else (active[row],)))
                    for row, x in zip(node, states, strict=True)
                )
            )
        return torch.cat(states[-self._multiplier :], dim=1)


class InsertedCell(Cell):
    """A cell inserted into a network: s1 + gate * cell(s0, s1), which is s1 while ``gate`` is 0.

    The next cell reads the same s0 as before the insertion. Parameters are those of ``Cell``; the output
    must have the shape of s1.

    Attributes
    ----------
    gate : Parameter
        A scalar, initially 0. It learns from the first step on, the rest of the cell once it is not 0.

    References
    ----------
    Bachlechner et al. 2020, arXiv:2003.04887.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, s0: Tensor, s1: Tensor, logits: Tensor, plan: Selection | None = None) -> Tensor:
        """Return a tensor of shape (N, C_prev, H, W), as ``s1``; see ``Cell.forward``."""
        return s1 + self.gate * super().forward(s0, s1, logits, plan)


class EvalCell(nn.Module):
    """A cell of a found architecture: two operations for each node.

    Parameters
    ----------
    genes : sequence of (str, int)
        Operation and source state, two for each node.
    concat : sequence of int
        The states that are concatenated.
    C_prev_prev, C_prev, C, reduction, reduction_prev
        As in ``Cell``.

    Attributes
    ----------
    channels : int
        Channels of the output.

    Raises
    ------
    InvalidInputError
        If the number of ``genes`` is odd.

    Examples
    --------
    >>> genes = [("skip_connect", 0), ("max_pool_3x3", 1)]
    >>> cell = nas.EvalCell(genes, [2], 4, 4, 4, False, False)
    >>> cell(torch.ones(2, 4, 8, 8), torch.ones(2, 4, 8, 8)).shape
    torch.Size([2, 4, 8, 8])
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
            raise InvalidInputError(f"genes must hold two for each node, got {len(genes)}", argument="genes")
        self.preprocess0 = _preprocess(C_prev_prev, C, reduction_prev, affine=True)
        self.preprocess1 = ReLUConvBN(C_prev, C, 1, 1, 0)
        self._sources, self._concat = tuple(s for _, s in genes), tuple(concat)
        self.channels = len(self._concat) * C
        self._ops = nn.ModuleList(
            OPS[name](C, 2 if reduction and source < 2 else 1, True) for name, source in genes
        )

    def forward(self, s0: Tensor, s1: Tensor, drop_prob: float | Tensor = 0.0) -> Tensor:
        """Return the concatenated states, shape (N, channels, H', W').

        Parameters
        ----------
        s0, s1 : Tensor
            As in ``Cell.forward``.
        drop_prob : float or Tensor
            In training, each path of an image except identities is dropped with this probability.
        """
        states = [self.preprocess0(s0), self.preprocess1(s1)]
        for first in range(0, len(self._ops), 2):
            pair = [self._path(i, states, drop_prob) for i in (first, first + 1)]
            states.append(pair[0] + pair[1])
        return torch.cat([states[i] for i in self._concat], dim=1)

    def _path(self, i: int, states: list[Tensor], drop_prob: float | Tensor) -> Tensor:
        op = self._ops[i]
        out: Tensor = op(states[self._sources[i]])
        held = isinstance(drop_prob, Tensor)  # on a device, whose value isn't read here
        if not self.training or isinstance(op, Identity) or not (held or drop_prob > 0.0):
            return out
        keep = 1.0 - drop_prob
        shape = out.shape[0], 1, 1, 1
        if isinstance(keep, Tensor):
            mask = (torch.rand(shape, device=out.device) < keep).to(out.dtype)
        else:
            mask = torch.empty(shape, device=out.device, dtype=out.dtype).bernoulli_(keep)
        return out / keep * mask


def check_rows(logits: Tensor, name: str, rows: int, operations: int) -> None:
    """Raise unless the logits have one row for each edge."""
    if tuple(logits.shape) != (rows, operations):
        raise InvalidInputError(
            f"{name} must be ({rows}, {operations}), one row for each edge, got {tuple(logits.shape)}",
            argument=name,
        )


def _preprocess(C_in: int, C: int, reduction_prev: bool, *, affine: bool) -> nn.Module:
    return FactorizedReduce(C_in, C, affine) if reduction_prev else ReLUConvBN(C_in, C, 1, 1, 0, affine)
