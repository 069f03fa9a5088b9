"""Growth: a larger search network that computes the same function, and keeps the training's state.

Chen, Goodfellow, Shlens 2016, arXiv:1511.05641. A wider layer has replicas of channels; the layers that read
them divide their weights by the number of replicas. In a deeper network, new cells are initially the
identity. In one with more nodes, weights that read new nodes are initially 0.
"""

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
"""The power of the gradient that torch's optimizers keep under each name."""


IMAGES = 4
"""Axes of a convolution's weight."""


class Move(NamedTuple):
    """The origin of a tensor of a larger network.

    Attributes
    ----------
    old, new : Tensor
        The tensors of the old and of the new network.
    rows, cols : Tensor or None
        For each index of the new tensor's first and second axis, the old index; -1 where there is none.
        None where the axis does not change.
    """

    old: Tensor
    new: Tensor
    rows: Tensor | None = None
    cols: Tensor | None = None

    def value(self) -> Tensor:
        """Return the new tensor's value: weights that read replicas are divided among them."""
        return self._taken(self.old.detach(), None, _shares(self.cols))

    def state(self, kept: Tensor, power: int) -> Tensor:
        """Return an optimizer's state for the new tensor, a power of its gradient.

        Replicas share the gradient of their original; a weight's own division does not count.
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
    """Return a network with more channels that computes the same as ``net``, in training and evaluation.

    Parameters
    ----------
    net : SearchNetwork
        The network; it does not change.
    C : int
        Channels of the first cells, at least those of ``net``. All other cells grow in proportion.
    optimizer : Optimizer, optional
        The optimizer of ``net``. It becomes that of the returned network; its state is converted, as if the
        wide network had had the gradients.
    noise : float
        Normal noise, added to convolutions with replicated outputs, in units of a weight's standard
        deviation. With 0 the function is the same, but replicas always learn the same.
    generator : torch.Generator, optional
        A generator on the CPU, for the choice of replicas and the noise.

    Raises
    ------
    InvalidInputError
        If ``C`` is below that of ``net``, or the optimizer's state is not a known power of a gradient.

    Examples
    --------
    >>> net = nas.SearchNetwork(2, layers=1, steps=1, multiplier=1)
    >>> nas.widen(net, 4).C
    4
    """
    if net.C > C:
        raise InvalidInputError(f"C must be at least net's {net.C}, got {C}", argument="C")
    wide = _like(net, C=C)
    maps: dict[int, Tensor] = {}

    def channels(old: int, new: int) -> Tensor:
        # One choice for all cells of a width: an inserted cell must match the state that it is added to.
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
    """Insert a cell into ``net``, in place; it is initially the identity, in training too.

    Parameters
    ----------
    net : SearchNetwork
        Changed in place.
    after : int
        The index of the cell that it follows.
    optimizer : Optimizer, optional
        The optimizer of ``net``. The new cell's parameters join the group of the classifier's.

    Returns
    -------
    InsertedCell
        The new cell; its edges use the logits of normal cells.

    Raises
    ------
    InvalidInputError
        If ``after`` is not the index of a cell.

    Examples
    --------
    >>> net = nas.SearchNetwork(2, layers=1, steps=1, multiplier=1)
    >>> cell = nas.deepen(net, 0)
    >>> len(net.cells), cell.gate.item()
    (2, 0.0)
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
    """Return a network and an architecture with one more node in every cell, which computes the same.

    Weights that read the new node are initially 0, and learn.

    Parameters
    ----------
    net, arch
        The network and its architecture; they do not change.
    optimizer, arch_optimizer : Optimizer, optional
        The optimizers of ``net`` and ``arch``. They become those of the returned ones; new parameters of the
        network join the group of the classifier's.
    generator : torch.Generator, optional
        The generator of the new edges' logits, which are the last rows.

    Raises
    ------
    InvalidInputError
        If ``net`` and ``arch`` differ in nodes, or an optimizer's state is not a known power of a gradient.

    Examples
    --------
    >>> net = nas.SearchNetwork(2, layers=1, steps=1, multiplier=1)
    >>> arch = nas.ArchitectureParameters(steps=1, multiplier=1)
    >>> net, arch = nas.add_node(net, arch)
    >>> net.steps, arch.steps
    (2, 2)
    """
    if (net.steps, net.multiplier) != (arch.steps, arch.multiplier):
        raise InvalidInputError(
            f"arch must have net's {net.steps} nodes and concatenate {net.multiplier}, "
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
    """Return a new network with the options of ``net``, except those in ``changed``."""
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
            "graphs",
        )
    }
    made = SearchNetwork(mode=net.rule, **{**options, **changed})
    return made.to(net.classifier.weight).train(net.training)


def _moves(
    net: SearchNetwork, grown: SearchNetwork, stem: Tensor, channels: Callable[[int, int], Tensor]
) -> list[Move]:
    """Return the moves from ``net`` to ``grown``; ``channels(old, new)`` maps a cell's channels by width."""
    moves = list(_layers(net.stem, grown.stem, stem, None))
    before, last = stem, stem
    pairs: list[tuple[Any, Any]] = list(zip(net.cells, grown.cells, strict=True))
    for old, new in pairs:
        own = channels(old.C, new.C)
        moves += _layers(old.preprocess0, new.preprocess0, own, before)
        moves += _layers(old.preprocess1, new.preprocess1, own, last)
        for mixed, larger in zip(old._ops, new._ops, strict=False):  # noqa: SLF001  the new node's edges are last
            moves += _layers(mixed, larger, own, own)
        if isinstance(old, InsertedCell):
            moves.append(Move(old.gate, new.gate))
        else:
            before, last = last, _concatenated(old, new, own)
    moves.append(Move(net.classifier.weight, grown.classifier.weight, None, last))
    moves.append(Move(net.classifier.bias, grown.classifier.bias))
    return moves


def _concatenated(old: Cell, new: Cell, own: Tensor) -> Tensor:
    """Return the old index of each channel of a cell's output; -1 for a new node's channels."""
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
    """Return the old channel that each new one replicates; replicas stay within each half, if even."""
    # FactorizedReduce makes each half of its channels by a convolution of its own.
    parts = 1 if old % 2 or new % 2 else 2
    drawn = torch.randint(old // parts, (new // parts - old // parts,), generator=generator)
    chosen = torch.cat([torch.arange(old // parts), drawn])
    return torch.cat([chosen + part * (old // parts) for part in range(parts)])


def _shares(index: Tensor | None) -> Tensor | None:
    """Return 1 / (number of occurrences) of each entry; 0 for -1."""
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
    """Fill the new tensors, and hand them with the converted state to the optimizer.

    ``fresh`` are parameters without an origin; they join the group of ``beside``.
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
    """Return the optimizer's state for the new tensor; None if it has none for the old one."""
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
                f"optimizer must keep only powers of gradients, named {', '.join(POWERS)}; "
                f"got {name!r} of {type(optimizer).__name__}",
                argument="optimizer",
            )
    return kept
