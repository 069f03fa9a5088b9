"""The networks of a search and of a found architecture."""

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
from nxcore.nas.operations import PRIMITIVES
from nxcore.nas.patch import patch, unpatch
from nxcore.nas.rule import Mode, Rule, Selection, as_rule, read

CellOf = Callable[[int, int, int, bool, bool], Any]
"""C_prev_prev, C_prev, C, reduction, reduction_prev -> a cell, with ``channels`` as an attribute."""


class Network(nn.Module):
    """The base of both networks: a stem, cells whose channels double at 1/3 and 2/3, a classifier.

    Its code is plain torch, which ``nxcore.nas.patch`` makes fast once it is made.
    """

    def __init__(
        self, C: int, num_classes: int, layers: int, stem_multiplier: int, in_channels: int, cell: CellOf
    ) -> None:
        super().__init__()
        C_prev_prev = C_prev = stem_multiplier * C
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, C_prev, 3, padding=1, bias=False), nn.BatchNorm2d(C_prev)
        )
        self.cells = nn.ModuleList()
        reduction_prev = False
        for i in range(layers):
            reduction = i in (layers // 3, 2 * layers // 3)
            C *= 2 if reduction else 1
            made = cell(C_prev_prev, C_prev, C, reduction, reduction_prev)
            self.cells.append(made)
            reduction_prev, C_prev_prev, C_prev = reduction, C_prev, made.channels
        self.global_pooling = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(C_prev, num_classes)

    def __setstate__(self, state: Any) -> None:
        """Make a copy fast that is read from a file: what a patch leaves in modules isn't written."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # in torch
        self._patch()

    def _patch(self) -> None:
        patch(self, graphs=False, watch=False)

    def _scores(self, x: Tensor, run: Callable[[Any, Tensor, Tensor], Tensor]) -> Tensor:
        """Return the class scores; ``run`` calls a cell with the outputs of the two previous ones."""
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
        The number of cells; those at 1/3 and 2/3 are reductions.
    steps, multiplier, stem_multiplier : int
        The nodes of a cell, the number of them that are concatenated, and the stem's channels over C.
    primitives, mode
        As in ``MixedOp``; all cells of a kind run the same operations.
    in_channels : int
        Channels of the images.
    checkpoint : bool
        Whether a cell saves only its inputs for the backward pass, which computes the cell again: less
        memory, more time, the same gradients. Only the first computation updates running statistics.
    inserted : sequence of int
        The arguments of calls of ``insert``, in order, to rebuild a network that has grown.
    graphs : bool
        Whether calls may be replayed. Until a device is found to have no graphs, some calls add up in another
        order, so a CPU's results then depend on how many there were.

    Attributes
    ----------
    choices, counted : Tensor
        The counts behind ``statistics``: the calls in training that ran each operation, shape (2 * edges,
        operations), and all calls in training. The state_dict holds neither these nor decisions.

    Notes
    -----
    The architecture is not a parameter of the module: ``ArchitectureParameters`` holds it, and ``forward``
    takes it. So weights and architecture have separate optimizers, and a published supernet's state_dict
    loads unchanged.

    The network's code is plain torch, which ``nxcore.nas.patch`` has made fast; ``nxcore.nas.unpatch``
    undoes that. On a CUDA device, in mode ``exact`` and without ``checkpoint``, training replays two CUDA
    graphs of the whole network after a few calls of a signature; ``nxcore.nas.replays`` reports whether it
    does.

    Examples
    --------
    >>> net = nas.SearchNetwork(2, num_classes=3, layers=1, steps=1, multiplier=1)
    >>> arch = nas.ArchitectureParameters(steps=1, multiplier=1)
    >>> net(torch.ones(1, 3, 8, 8), *arch()).shape
    torch.Size([1, 3])
    """

    cell: type[Cell] = Cell
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
        graphs: bool = True,
    ) -> None:
        rule = as_rule(mode)
        super().__init__(
            C,
            num_classes,
            layers,
            stem_multiplier,
            in_channels,
            lambda C_pp, C_p, C, reduction, previous: self.cell(
                steps, multiplier, C_pp, C_p, C, reduction, previous, primitives, rule
            ),
        )
        self.rule, self.primitives, self.checkpoint = rule, tuple(primitives), checkpoint
        self.C, self.num_classes, self.layers = C, num_classes, layers
        self.steps, self.multiplier, self.stem_multiplier = steps, multiplier, stem_multiplier
        self.in_channels, self.inserted, self.graphs = in_channels, (), graphs
        self._rows = edges(steps)[-1][-1] + 1
        shape = (2 * self._rows, len(self.primitives))
        self._active: tuple[tuple[int, ...], ...] = ()
        # Not persistent: a published supernet's state_dict lacks these.
        self.register_buffer("kept", None, persistent=False)
        self.register_buffer("choices", torch.zeros(shape, dtype=torch.int64), persistent=False)
        self.register_buffer("counted", torch.zeros((), dtype=torch.int64), persistent=False)
        for after in inserted:
            self._insert(after)
        self._patch()

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
        check_rows(normal, "normal", self._rows, len(self.primitives))
        check_rows(reduce, "reduce", self._rows, len(self.primitives))
        kinds = (normal, reduce)
        plans = self._plans(kinds)
        return self._scores(
            x,
            lambda cell, s0, s1: self._through(
                cell, s0, s1, kinds[cell.reduction], *plans[cell.reduction : cell.reduction + 1]
            ),
        )

    def _patch(self) -> None:
        """Make the network fast; replays run no code, so none of the modes that read the device."""
        patch(self, graphs=self.graphs and self.rule.mode == "exact" and not self.checkpoint, watch=False)

    def insert(self, after: int) -> InsertedCell:
        """Insert a cell in place, initially the identity, and return it.

        Parameters
        ----------
        after : int
            The index of the cell that it follows.

        Raises
        ------
        InvalidInputError
            If ``after`` is not the index of a cell.
        """
        if not 0 <= after < len(self.cells):
            raise InvalidInputError(
                f"after must be a cell's index, 0 to {len(self.cells) - 1}, got {after}",
                argument="after",
            )
        unpatch(self)
        cell = self._insert(after)
        self._patch()
        return cell

    def _insert(self, after: int) -> InsertedCell:
        last: Any = self.cells[after]
        follows = isinstance(last, InsertedCell)  # then it reads the same s0
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
        # A cell draws nothing, and a drawn selection is an argument, so no generator's state is saved.
        again: Tensor = torch.utils.checkpoint.checkpoint(
            cell,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), _statistics_aside(cell)),
        )
        return again

    def set_rule(self, mode: Mode | Rule) -> None:
        """Change the rule: one for training and ``argmax`` for inference, for example."""
        unpatch(self)
        self.rule, self.kept = as_rule(mode), None
        for cell in self.cells:
            cell.rule = self.rule  # type: ignore[assignment]  # torch's stub knows tensors and modules
        self._patch()

    @torch.no_grad()
    def decide(self, normal: Tensor, reduce: Tensor) -> None:
        """Decide which operations run until the next decision (``threshold``, ``top_k`` and ``argmax``).

        All edges are decided in one read of the device; the calls until the next decision do not wait for
        it. Before the first decision, mode ``threshold`` runs all operations, and the two other modes decide
        in each call. Call it every N steps. Modes ``exact`` and ``sampled`` decide nothing.

        Parameters
        ----------
        normal, reduce : Tensor
            As in ``forward``.
        """
        if self.rule.decides:
            self.kept = self.rule.keep(torch.cat((normal, reduce)), self.primitives, self.kept)
            self._active = read(self.kept)

    def statistics(self) -> Statistics:
        """Return which operations ran in training, in modes other than ``exact``; reads the device once."""
        counted = torch.cat([self.counted.view(1), self.choices.flatten()]).cpu()
        return Statistics(int(counted[0]), counted[1:].view(2, -1, len(self.primitives)))

    def _plans(self, kinds: tuple[Tensor, Tensor]) -> tuple[Selection, ...]:
        """Return the selections of the two kinds of cell, in at most one read of the device.

        There are none in mode ``exact``.
        """
        if self.rule.mode == "exact":
            return ()
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
    """The operations that a search network ran.

    Attributes
    ----------
    steps : int
        Calls in training.
    choices : Tensor
        Shape (2, edges, operations), on the host: the calls that ran each operation, in normal cells and in
        reductions.
    """

    steps: int
    choices: Tensor

    @property
    def active(self) -> float:
        """The mean number of operations that ran on an edge; nan before the first call."""
        ran = self.choices.sum(-1).double().mean()
        return float(ran / self.steps) if self.steps else math.nan


class EvalNetwork(Network):
    """The network of a found architecture.

    Parameters
    ----------
    genotype : Genotype
    C, num_classes, layers, stem_multiplier, in_channels
        As in ``SearchNetwork``.

    Attributes
    ----------
    drop_path_prob : float or Tensor
        The probability that a path is dropped in training; initially 0, for the training loop to raise. A
        graph of the network fixes a float, and reads a tensor, of shape (), anew.

    Examples
    --------
    >>> genes = (("skip_connect", 0), ("skip_connect", 1))
    >>> net = nas.EvalNetwork(nas.Genotype(genes, (2,), genes, (2,)), C=4, num_classes=3, layers=1)
    >>> net(torch.ones(2, 3, 8, 8)).shape
    torch.Size([2, 3])
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
        self.drop_path_prob: float | Tensor = 0.0
        self._patch()

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores, shape (N, num_classes), of images of shape (N, in_channels, H, W)."""
        return self._scores(x, lambda cell, s0, s1: cell(s0, s1, self.drop_path_prob))


@contextmanager
def _statistics_aside(module: nn.Module) -> Iterator[None]:
    """Redirect running statistics of batch norms in training to a scratch tensor.

    They are not switched off, since a recomputation must save as many tensors as the first computation.
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
