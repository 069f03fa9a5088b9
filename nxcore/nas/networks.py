"""Networks: of a search, and of the architecture that it found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nxcore.errors import InvalidInputError
from nxcore.nas.cells import Cell, EvalCell, InsertedCell, check_rows
from nxcore.nas.genotype import Genotype, edges
from nxcore.nas.mixed import MixedOp
from nxcore.nas.operations import PRIMITIVES
from nxcore.nas.rule import Mode, Rule, Selection, as_rule, read
from nxcore.nn import AdaptiveAvgPool2d, BatchNorm2d

CellOf = Callable[[int, int, int, bool, bool], Any]
"""C_prev_prev, C_prev, C, reduction, reduction_prev -> a cell, which tells its ``channels``."""


class Network(nn.Module):
    """What both networks are: a stem, cells whose channels double at a third and two thirds, a classifier."""

    def __init__(
        self, C: int, num_classes: int, layers: int, stem_multiplier: int, in_channels: int, cell: CellOf
    ) -> None:
        super().__init__()
        C_prev_prev = C_prev = stem_multiplier * C
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, C_prev, 3, padding=1, bias=False), BatchNorm2d(C_prev)
        )
        self.cells = nn.ModuleList()
        reduction_prev = False
        for i in range(layers):
            reduction = i in (layers // 3, 2 * layers // 3)
            C *= 2 if reduction else 1
            made = cell(C_prev_prev, C_prev, C, reduction, reduction_prev)
            self.cells.append(made)
            reduction_prev, C_prev_prev, C_prev = reduction, C_prev, made.channels
        self.global_pooling = AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(C_prev, num_classes)

    def _scores(self, x: Tensor, run: Callable[[Any, Tensor, Tensor], Tensor]) -> Tensor:
        """Return the class scores; ``run`` calls a cell with the outputs of the two before."""
        s0 = s1 = self.stem(x)
        for cell in self.cells:
            out = run(cell, s0, s1)
            s0, s1 = s0 if isinstance(cell, InsertedCell) else s1, out
        scores: Tensor = self.classifier(self.global_pooling(s1).flatten(1))
        return scores


class SearchNetwork(Network):
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
    inserted : sequence of int
        After which cells ``insert`` is called, in this order: a network that has grown can be made anew.

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

    inserted: tuple[int, ...]
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
        inserted: Sequence[int] = (),
    ) -> None:
        rule = as_rule(mode)
        super().__init__(
            C,
            num_classes,
            layers,
            stem_multiplier,
            in_channels,
            lambda C_pp, C_p, C, reduction, previous: Cell(
                steps, multiplier, C_pp, C_p, C, reduction, previous, primitives, rule
            ),
        )
        self.rule, self.primitives, self.checkpoint = rule, tuple(primitives), checkpoint
        self.C, self.num_classes, self.layers = C, num_classes, layers
        self.steps, self.multiplier, self.stem_multiplier = steps, multiplier, stem_multiplier
        self.in_channels, self.inserted = in_channels, ()
        self._rows = edges(steps)[-1][-1] + 1
        shape = (2 * self._rows, len(self.primitives))
        self._active: tuple[tuple[int, ...], ...] = ()
        # Not persistent: a published supernet's state_dict has none of these.
        self.register_buffer("kept", None, persistent=False)
        self.register_buffer("choices", torch.zeros(shape, dtype=torch.int64), persistent=False)
        self.register_buffer("counted", torch.zeros((), dtype=torch.int64), persistent=False)
        for after in inserted:
            self.insert(after)

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
            If one of the logits has another shape.
        """
        check_rows(normal, "normal", self._rows, len(self.primitives))
        check_rows(reduce, "reduce", self._rows, len(self.primitives))
        kinds = (normal, reduce)
        plans = self._plans(kinds)
        return self._scores(
            x,
            lambda cell, s0, s1: self._through(cell, s0, s1, kinds[cell.reduction], plans[cell.reduction]),
        )

    def insert(self, after: int) -> InsertedCell:
        """Insert a cell that is the identity at first, in place, and return it.

        Parameters
        ----------
        after : int
            The place of the cell that it follows.

        Raises
        ------
        InvalidInputError
            If there is no such cell.
        """
        if not 0 <= after < len(self.cells):
            raise InvalidInputError(
                f"after must be 0 to {len(self.cells) - 1}, a cell's place, got {after}",
                argument="after",
            )
        last: Any = self.cells[after]
        follows = isinstance(last, InsertedCell)  # then s0 is what it was there
        cell = InsertedCell(
            self.steps,
            self.multiplier,
            last.C_prev_prev if follows else last.C_prev,
            last.channels,
            last.C,
            False,
            last.reduction_prev if follows else last.reduction,
            self.primitives,
            self.rule,
        )
        cell.to(self.classifier.weight).train(self.training)
        self.cells.insert(after + 1, cell)
        self.inserted = (*self.inserted, after)
        return cell

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

    def _plans(self, kinds: tuple[Tensor, Tensor]) -> tuple[Selection, Selection] | tuple[None, None]:
        """Return what runs in the two kinds of cell, in one read of the device at most."""
        if self.rule.mode == "exact":
            return None, None
        logits = torch.cat(kinds)
        if self.kept is None:
            plan = self.rule.plan(logits, self.primitives)
        else:
            plan = Selection(self.rule.factors(logits, self.kept), self._active, self.kept)
        if self.training:
            self.choices.add_(plan.kept)
            self.counted.add_(1)
        return plan.rows(slice(self._rows)), plan.rows(slice(self._rows, None))


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


class EvalNetwork(Network):
    """The network of a genotype.

    Parameters
    ----------
    genotype : Genotype
    C, num_classes, layers, stem_multiplier, in_channels
        As in ``SearchNetwork``.

    Attributes
    ----------
    drop_path_prob : float
        How often a path is dropped in training; 0 at first, to be raised by who trains.
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
        kinds = (
            (genotype.normal, genotype.normal_concat),
            (genotype.reduce, genotype.reduce_concat),
        )
        super().__init__(
            C,
            num_classes,
            layers,
            stem_multiplier,
            in_channels,
            lambda C_pp, C_p, C, reduction, previous: EvalCell(
                *kinds[reduction], C_pp, C_p, C, reduction, previous
            ),
        )
        self.drop_path_prob = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores, shape (N, num_classes), of images of shape (N, in_channels, H, W)."""
        return self._scores(x, lambda cell, s0, s1: cell(s0, s1, self.drop_path_prob))


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
