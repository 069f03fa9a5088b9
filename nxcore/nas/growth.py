"""Growth: a search network becomes larger and computes what it computed before, with its training's state.

Chen, Goodfellow, Shlens 2016, arXiv:1511.05641. A wider layer has replicas of channels; a layer that reads
them divides its weights by how often each is there. A deeper network has cells that are the identity at
first, one with more nodes has weights of 0 where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from nxcore.errors import InvalidInputError
from nxcore.nas.architecture import ArchitectureParameters
from nxcore.nas.cells import Cell, InsertedCell
from nxcore.nas.networks import SearchNetwork
from nxcore.nas.operations import FactorizedReduce

POWERS: Mapping[str, int] = MappingProxyType(
    {
        "momentum_buffer": 1,
        "exp_avg": 1,
        "grad_avg": 1,
        "exp_avg_sq": 2,
        "max_exp_avg_sq": 2,
        "square_avg": 2,
        "sum": 2,
    }
)
"""Which power of the gradient torch's optimizers keep under a name."""


IMAGES = 4
"""Axes of a convolution's weight."""


class Move(NamedTuple):
    """Where a tensor of a larger network comes from.

    Attributes
    ----------
    old, new : Tensor
        Of the two networks.
    rows, cols : Tensor or None
        For every place of the new tensor's first and second axis, the old one's; -1 where there was none.
        None where nothing changes.
    """

    old: Tensor
    new: Tensor
    rows: Tensor | None = None
    cols: Tensor | None = None

    def value(self) -> Tensor:
        """Return what the new tensor is: what reads replicas is divided among them."""
        return self._taken(self.old.detach(), None, _shares(self.cols))

    def state(self, kept: Tensor, power: int) -> Tensor:
        """Return what an optimizer keeps of the new tensor's gradient, to a power.

        Replicas share the gradient of what they are replicas of; a weight's own division doesn't enter.
        """
        shares = _shares(self.rows)
        there = None if self.cols is None else (self.cols >= 0).double()
        return self._taken(kept, None if shares is None else shares**power, there)

    def _taken(self, tensor: Tensor, rows: Tensor | None, cols: Tensor | None) -> Tensor:
        for axis, (index, factor) in enumerate(((self.rows, rows), (self.cols, cols))):
            if index is None:
                continue
            tensor = tensor.index_select(axis, index.clamp(min=0).to(tensor.device))
            if factor is not None:
                shape = [1] * tensor.ndim
                shape[axis] = -1
                tensor = tensor * factor.to(tensor).view(shape)
        return tensor


def widen(
    net: SearchNetwork,
    C: int,
    optimizer: Optimizer | None = None,
    *,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> SearchNetwork:
    """Return a network of more channels that computes what ``net`` does, in training and in eval.

    Parameters
    ----------
    net : SearchNetwork
        Stays as it is.
    C : int
        Channels of the first cells, at least those of ``net``; of all others, in proportion.
    optimizer : Optimizer, optional
        Of ``net``; is from now on that of the network returned: what it keeps of gradients goes along, as if
        the wide network had had them.
    noise : float
        Added to convolutions that make channels with replicas: normal, with this times a weight's standard
        deviation. With 0 the function is the same, but replicas learn alike for ever.
    generator : torch.Generator, optional
        Of the choice of replicas and of the noise, on the CPU.

    Raises
    ------
    InvalidInputError
        If ``C`` is below that of ``net``, or the optimizer keeps what isn't known to be a power of a
        gradient.
    """
    if net.C > C:
        raise InvalidInputError(f"C must be at least {net.C}, that of net, got {C}", argument="C")
    wide = _like(net, C=C)
    maps: dict[int, Tensor] = {}

    def channels(old: int, new: int) -> Tensor:
        # One choice for all cells of a width: what is inserted must agree with what it is added to.
        return maps[old] if old in maps else maps.setdefault(old, _replicas(old, new, generator))

    stem = _replicas(net.stem_multiplier * net.C, net.stem_multiplier * C, generator)
    moves = _moves(net, wide, stem, channels)
    _carry(moves, optimizer)
    for move in moves if noise else ():
        shares = _shares(move.rows)
        if shares is not None and move.new.dim() == IMAGES:
            again = (shares < 1).view(-1, 1, 1, 1)
            drawn = torch.randn(move.new.shape, generator=generator) * again * noise
            with torch.no_grad():
                move.new.add_(drawn.to(move.new) * move.old.detach().std())
    return wide


def deepen(net: SearchNetwork, after: int, optimizer: Optimizer | None = None) -> InsertedCell:
    """Insert a cell into ``net``, in place, that is the identity at first; in training too.

    Parameters
    ----------
    net : SearchNetwork
        Changed in place.
    after : int
        The place of the cell that it follows.
    optimizer : Optimizer, optional
        Of ``net``; gets the new cell's parameters, in the group of the classifier's.

    Returns
    -------
    InsertedCell
        Its edges blend by the logits of normal cells, as all normal cells do.

    Raises
    ------
    InvalidInputError
        If there is no such cell.
    """
    cell = net.insert(after)
    _carry((), optimizer, list(cell.parameters()), net.classifier.weight)
    return cell


def add_node(
    net: SearchNetwork,
    arch: ArchitectureParameters,
    optimizer: Optimizer | None = None,
    arch_optimizer: Optimizer | None = None,
    *,
    generator: torch.Generator | None = None,
) -> tuple[SearchNetwork, ArchitectureParameters]:
    """Return a network and an architecture with one more node in every cell, which nobody reads yet.

    What reads a cell has weights of 0 for the new node: the function is the same, and they learn.

    Parameters
    ----------
    net, arch
        Stay as they are.
    optimizer, arch_optimizer : Optimizer, optional
        Of ``net`` and of ``arch``; are from now on those of what is returned. New parameters of the network
        are in the group of the classifier's.
    generator : torch.Generator, optional
        Of the logits of the new edges, which are the last rows.

    Raises
    ------
    InvalidInputError
        If ``net`` and ``arch`` differ in nodes, or an optimizer keeps what isn't known to be a power of a
        gradient.
    """
    if (net.steps, net.multiplier) != (arch.steps, arch.multiplier):
        raise InvalidInputError(
            f"arch must have the {net.steps} nodes of net and concatenate {net.multiplier}, "
            f"got {arch.steps} and {arch.multiplier}",
            argument="arch",
        )
    large = _like(net, steps=net.steps + 1, multiplier=net.multiplier + 1)
    stem = torch.arange(net.stem_multiplier * net.C)
    moves = _moves(net, large, stem, lambda old, _: torch.arange(old))
    known = {id(move.new) for move in moves}
    fresh = [p for p in large.parameters() if id(p) not in known]
    _carry(moves, optimizer, fresh, net.classifier.weight)
    grown = ArchitectureParameters(net.steps + 1, arch.primitives, arch.multiplier + 1, generator)
    grown.to(arch.logits)
    drawn, rows = grown.logits.detach().clone(), arch.logits.shape[1]
    edges = torch.cat([torch.arange(rows), torch.full((drawn.shape[1] - rows,), -1)])
    _carry([Move(arch.logits, grown.logits, None, edges)], arch_optimizer)
    with torch.no_grad():
        grown.logits[:, rows:] = drawn[:, rows:]
    return large, grown


def _like(net: SearchNetwork, **changed: Any) -> SearchNetwork:
    """Return a new network that differs from ``net`` in what is given."""
    options = {
        name: getattr(net, name)
        for name in (
            "C",
            "num_classes",
            "layers",
            "steps",
            "multiplier",
            "stem_multiplier",
            "primitives",
            "in_channels",
            "checkpoint",
            "inserted",
        )
    }
    made = SearchNetwork(mode=net.rule, **{**options, **changed})
    return made.to(net.classifier.weight).train(net.training)


def _moves(
    net: SearchNetwork, grown: SearchNetwork, stem: Tensor, channels: Callable[[int, int], Tensor]
) -> list[Move]:
    """Return where the tensors of ``grown`` come from; ``channels`` maps those of a cell, by both widths."""
    moves = list(_layers(net.stem, grown.stem, stem, None))
    before, last = stem, stem
    pairs: list[tuple[Any, Any]] = list(zip(net.cells, grown.cells, strict=True))
    for old, new in pairs:
        own = channels(old.C, new.C)
        moves += _layers(old.preprocess0, new.preprocess0, own, before)
        moves += _layers(old.preprocess1, new.preprocess1, own, last)
        for mixed, larger in zip(old._ops, new._ops, strict=False):  # noqa: SLF001  a new node's come last
            moves += _layers(mixed, larger, own, own)
        if isinstance(old, InsertedCell):
            moves.append(Move(old.gate, new.gate))
        else:
            before, last = last, _concatenated(old, new, own)
    moves.append(Move(net.classifier.weight, grown.classifier.weight, None, last))
    moves.append(Move(net.classifier.bias, grown.classifier.bias))
    return moves


def _concatenated(old: Cell, new: Cell, own: Tensor) -> Tensor:
    """Return where the channels of a cell's output come from; a new node's from nowhere."""
    nodes = old.channels // old.C
    blocks = [own + node * old.C for node in range(nodes)]
    return torch.cat([*blocks, *[torch.full_like(own, -1)] * (new.channels // new.C - nodes)])


def _layers(old: Any, new: Any, rows: Tensor, cols: Tensor | None) -> list[Move]:
    """Return the moves of a module whose convolutions have ``rows`` as output and ``cols`` as input."""
    if isinstance(old, FactorizedReduce):
        half, first = len(rows) // 2, old.conv_1.out_channels
        return [
            Move(old.conv_1.weight, new.conv_1.weight, rows[:half], cols),
            Move(old.conv_2.weight, new.conv_2.weight, rows[half:] - first, cols),
            *_layers(old.bn, new.bn, rows, None),
        ]
    if isinstance(old, _BatchNorm):
        tensors = [*old.named_parameters(), *old.named_buffers()]
        return [Move(t, getattr(new, name), rows if t.dim() else None) for name, t in tensors]
    if isinstance(old, nn.Conv2d):
        return [Move(old.weight, new.weight, rows, None if new.groups > 1 else cols)]
    children = zip(old.children(), new.children(), strict=True)
    return [move for a, b in children for move in _layers(a, b, rows, cols)]


def _replicas(old: int, new: int, generator: torch.Generator | None) -> Tensor:
    """Return for every new channel the old one that it replicates; the two halves, if any, by themselves."""
    # FactorizedReduce makes each half of its channels by a convolution of its own.
    parts = 1 if old % 2 or new % 2 else 2
    drawn = torch.randint(old // parts, (new // parts - old // parts,), generator=generator)
    chosen = torch.cat([torch.arange(old // parts), drawn])
    return torch.cat([chosen + part * (old // parts) for part in range(parts)])


def _shares(index: Tensor | None) -> Tensor | None:
    """Return one over how often each entry is there; 0 for -1."""
    if index is None:
        return None
    counts = torch.bincount(index.clamp(min=0) + (index >= 0))[index.clamp(min=0) + (index >= 0)]
    return torch.where(index >= 0, 1.0 / counts.double(), 0.0)


def _carry(
    moves: Sequence[Move],
    optimizer: Optimizer | None,
    fresh: Sequence[nn.Parameter] = (),
    beside: Tensor | None = None,
) -> None:
    """Fill the new tensors, and have the optimizer serve them with the state that it has.

    ``fresh`` are parameters that come from nowhere; they join the group of ``beside``.
    """
    states = [] if optimizer is None else [(move, _states(move, optimizer)) for move in moves]
    with torch.no_grad():
        for move in moves:
            move.new.copy_(move.value())
    if optimizer is None:
        return
    for move, state in states:
        if state is not None:
            del optimizer.state[move.old]
            optimizer.state[move.new] = state
    successor = {id(move.old): move.new for move in moves}
    for group in optimizer.param_groups:
        joined = fresh if any(p is beside for p in group["params"]) else ()
        group["params"] = [*(successor.get(id(p), p) for p in group["params"]), *joined]


def _states(move: Move, optimizer: Optimizer) -> dict[str, Any] | None:
    """Return what the optimizer is to keep for the new tensor; None if it keeps nothing for the old."""
    if move.old not in optimizer.state:
        return None
    kept: dict[str, Any] = {}
    for name, entry in optimizer.state[move.old].items():
        if not isinstance(entry, Tensor) or entry.shape != move.old.shape or name == "step":
            kept[name] = entry
        elif name in POWERS:
            kept[name] = move.state(entry, POWERS[name])
        else:
            raise InvalidInputError(
                f"optimizer must keep powers of gradients alone, under the names {', '.join(POWERS)}; "
                f"got {name!r} of {type(optimizer).__name__}",
                argument="optimizer",
            )
    return kept
