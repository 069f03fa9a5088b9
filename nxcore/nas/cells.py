"""Cells and networks: of a search, and of the architecture that it found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nxcore.errors import InvalidInputError
from nxcore.nas.genotype import Gene, Genotype, edges
from nxcore.nas.mixed import MixedOp
from nxcore.nas.operations import OPS, PRIMITIVES, FactorizedReduce, Identity, ReLUConvBN
from nxcore.nas.pools import pooled
from nxcore.nas.rule import Mode, Plan, Rule, as_rule, read


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
        mode: Mode | Rule = "exact",
    ) -> None:
        super().__init__()
        self.rule, self.primitives = as_rule(mode), tuple(primitives)
        self.reduction, self._steps, self._multiplier = reduction, steps, multiplier
        self.preprocess0 = _preprocess(C_prev_prev, C, reduction_prev, affine=False)
        self.preprocess1 = ReLUConvBN(C_prev, C, 1, 1, 0, affine=False)
        self._ops = nn.ModuleList(
            MixedOp(C, 2 if reduction and state < 2 else 1, primitives, self.rule)
            for node in range(steps)
            for state in range(node + 2)
        )

    def forward(self, s0: Tensor, s1: Tensor, logits: Tensor, plan: Plan | None = None) -> Tensor:
        """Return the concatenated nodes, shape (N, multiplier * C, H', W').

        Parameters
        ----------
        s0, s1 : Tensor
            Outputs of the two cells before, shape (N, C_prev_prev, H0, W0) and (N, C_prev, H, W).
        logits : Tensor
            Shape (edges, operations), before softmax.
        plan : Plan, optional
            What runs, where the mode isn't ``exact``: a network makes it for all cells at once. Without it, a
            cell makes its own.

        Raises
        ------
        InvalidInputError
            If ``logits`` has another shape.
        """
        wanted = (len(self._ops), len(self.primitives))
        if tuple(logits.shape) != wanted:
            raise InvalidInputError(
                f"logits must be {wanted}, a row an edge, got {tuple(logits.shape)}", argument="logits"
            )
        if plan is None and self.rule.mode != "exact":
            plan = self.rule.plan(logits, self.primitives)
        rows = (logits if plan is None else plan.weights).unbind(0)
        states = [self.preprocess0(s0), self.preprocess1(s1)]
        outputs = self._pooled(states[0], 0, plan) | self._pooled(states[1], 1, plan)
        for node in edges(self._steps):
            parts = [
                self._ops[row](x, rows[row], outputs=outputs.get(row))
                if plan is None
                else self._ops[row](x, weights=rows[row], active=plan.active[row], outputs=outputs.get(row))
                for row, x in zip(node, states, strict=True)
            ]
            states.append(_summed(parts))
            outputs |= self._pooled(states[-1], len(states) - 1, plan)
        return torch.cat(states[-self._multiplier :], dim=1)

    def _pooled(self, x: Tensor, state: int, plan: Plan | None) -> dict[int, dict[int, Tensor]]:
        """Return the pools of ``x`` for the edges that leave it; in training alone can they be shared."""
        rows = [node[state] for node in edges(self._steps) if state < len(node)] if self.training else []
        every = range(len(self.primitives))
        mixed: list[Any] = list(self._ops)
        return pooled(
            x,
            [
                ((row, i), mixed[row].candidates[i])
                for row in rows
                for i in (every if plan is None else plan.active[row])
            ],
        )


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
        As in ``MixedOp``; what is kept or drawn is the same in all cells of a kind.
    in_channels : int
        Of the images.
    checkpoint : bool
        A cell keeps its inputs alone for the backward pass, which computes it again: less memory, more time,
        the same gradients. Running statistics are updated by the first computation alone.

    Attributes
    ----------
    choices, counted : Tensor
        What ``statistics`` reads: how many calls in training ran an operation, shape (2 * edges, operations),
        and how many there were. Not in the state_dict, nor is what was decided.

    Notes
    -----
    The architecture is no parameter of the module: ``ArchitectureParameters`` holds it, and ``forward``
    takes it. So weights and architecture have optimizers of their own, and a published supernet's
    state_dict loads as it is.
    """

    kept: Tensor | None
    choices: Tensor
    counted: Tensor

    def __init__(
        self,
        C: int = 16,
        num_classes: int = 10,
        layers: int = 8,
        steps: int = 4,
        multiplier: int = 4,
        stem_multiplier: int = 3,
        primitives: Sequence[str] = PRIMITIVES,
        mode: Mode | Rule = "exact",
        in_channels: int = 3,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.rule, self.primitives, self.checkpoint = as_rule(mode), tuple(primitives), checkpoint
        shape = (2 * (edges(steps)[-1][-1] + 1), len(self.primitives))
        self._active: tuple[tuple[int, ...], ...] = ()
        # Not persistent: a published supernet's state_dict has none of these.
        self.register_buffer("kept", None, persistent=False)
        self.register_buffer("choices", torch.zeros(shape, dtype=torch.int64), persistent=False)
        self.register_buffer("counted", torch.zeros((), dtype=torch.int64), persistent=False)
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
                    self.primitives,
                    self.rule,
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

        Raises
        ------
        InvalidInputError
            If the logits have another shape.
        """
        kinds = (normal, reduce)
        plans = self._plans(kinds)
        s0 = s1 = self.stem(x)
        cells: list[Any] = list(self.cells)
        for cell in cells:
            kind = int(cell.reduction)
            s0, s1 = s1, self._through(cell, s0, s1, kinds[kind], plans[kind])
        out: Tensor = self.classifier(self.global_pooling(s1).flatten(1))
        return out

    def _through(self, cell: nn.Module, *args: Any) -> Tensor:
        if not (self.checkpoint and torch.is_grad_enabled()):
            out: Tensor = cell(*args)
            return out
        # Nothing in a cell draws, what a plan drew is an argument: there is no generator to be kept.
        again: Tensor = torch.utils.checkpoint.checkpoint(
            cell,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), _statistics_aside(cell)),
        )
        return again

    def set_rule(self, mode: Mode | Rule) -> None:
        """Blend by another rule from now on: one for training and ``argmax`` for inference, for example."""
        self.rule, self.kept = as_rule(mode), None
        for module in self.modules():
            if isinstance(module, Cell | MixedOp):
                module.rule = self.rule

    @torch.no_grad()
    def decide(self, normal: Tensor, reduce: Tensor) -> None:
        """Decide what runs until the next decision, in the modes ``threshold``, ``top_k`` and ``argmax``.

        All edges are decided at once, in one read of the device; calls in between don't wait for it. In mode
        ``threshold``, all operations run until the first decision; the two other modes decide in each call
        until then. Call it every N steps. Modes ``exact`` and ``sampled`` have nothing to keep.

        Parameters
        ----------
        normal, reduce : Tensor
            As in ``forward``.
        """
        if self.rule.decides:
            self.kept = self.rule.keep(torch.cat((normal, reduce)), self.primitives, self.kept)
            self._active = read(self.kept)

    def statistics(self) -> Statistics:
        """Return what ran in training, where the mode isn't ``exact``: counted on the device, read here."""
        counted = torch.cat([self.counted.view(1), self.choices.flatten()]).cpu()
        return Statistics(int(counted[0]), counted[1:].view(2, -1, len(self.primitives)))

    def _plans(self, kinds: tuple[Tensor, Tensor]) -> tuple[Plan, Plan] | tuple[None, None]:
        """Return what runs in the two kinds of cell, in one read of the device at most."""
        if self.rule.mode == "exact":
            return None, None
        logits = torch.cat(kinds)
        if self.kept is None:
            plan = self.rule.plan(logits, self.primitives)
        else:
            plan = Plan(self.rule.factors(logits, self.kept), self._active, self.kept)
        if self.training:
            self.choices.add_(plan.kept)
            self.counted.add_(1)
        half = len(kinds[0])
        return plan.rows(slice(half)), plan.rows(slice(half, None))


class Statistics(NamedTuple):
    """What a search network ran.

    Attributes
    ----------
    steps : int
        Calls in training.
    choices : Tensor
        Shape (2, edges, operations), on the host: how many of these calls ran an operation, in normal
        cells and in reductions.
    """

    steps: int
    choices: Tensor

    @property
    def active(self) -> float:
        """How many operations ran on an edge, on the average; nan before the first call."""
        ran = self.choices.sum(-1).double().mean()
        return float(ran / self.steps) if self.steps else math.nan


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


@contextmanager
def _statistics_aside(module: nn.Module) -> Iterator[None]:
    """Have batch norms in training write their running statistics to a scratch tensor, which nobody reads.

    They aren't switched off: a computation that is done again must keep as many tensors as the first did.
    """
    norms: list[Any] = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.training]
    own = [dict(bn.named_buffers(recurse=False)) for bn in norms]
    scratch: dict[Any, Tensor] = {}
    try:
        for bn, buffers in zip(norms, own, strict=True):
            for name, buffer in buffers.items():
                key = name, buffer.shape, buffer.dtype, buffer.device
                if key not in scratch:
                    scratch[key] = torch.zeros_like(buffer)
                setattr(bn, name, scratch[key])
        yield
    finally:
        for bn, buffers in zip(norms, own, strict=True):
            for name, buffer in buffers.items():
                setattr(bn, name, buffer)


def _preprocess(C_in: int, C: int, reduction_prev: bool, *, affine: bool) -> nn.Module:
    return FactorizedReduce(C_in, C, affine) if reduction_prev else ReLUConvBN(C_in, C, 1, 1, 0, affine)


def _summed(parts: Sequence[Tensor]) -> Tensor:
    out = parts[0]
    for part in parts[1:]:
        out = out + part
    return out
