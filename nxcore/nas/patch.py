"""patch and unpatch: make any search network run nxcore's operators, in place."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from nxcore.graphs.structure import structure
from nxcore.nas import mixture, node, points, taking, whole
from nxcore.nas.audit import Audit, Count
from nxcore.nas.blend import ENDS
from nxcore.nas.lists import LISTS, WRITES, ZEROS, lists_of
from nxcore.nas.mixture import TAKES
from nxcore.nas.taking import TAKING, Folded, Taking, folded, sharing
from nxcore.nas.watch import AUDIT, LEFT, PART, before
from nxcore.nn import Part, Swap, watching
from nxcore.nn.exchange import PATCHED, become, patched
from nxcore.nn.swap import exchanged, restore


def patch(model: nn.Module, *, graphs: bool = True, watch: bool = True) -> Swap:
    """Make the mixed operations, depthwise convolutions and pools of ``model`` run nxcore's operators.

    A mixed operation is a module that holds its operations in a ``ModuleList`` named ``_ops`` and whose
    ``forward`` takes an image and their weights. It is left unchanged unless its code is the weighted sum of
    its operations for all weights and sizes, in training and in evaluation, and trial calls of a copy agree;
    these count for all mixed operations which differ in the values of their tensors alone. If the program
    changes an attribute or a global that the code reads, or a repeated call differs, its own ``forward`` runs
    from then on. Operations without parameters that return zeros, as DARTS' ``none``, are skipped: their
    contribution and their weight's gradient are 0. A module of a ReLU, 1x1 convolutions and a batch norm,
    such as a cell's preprocessing, is replaced if its code calls these layers and nothing else.

    Parameters
    ----------
    model : torch.nn.Module
        The model, changed in place: classes of modules, and two attributes. ``unpatch`` undoes it.
    graphs : bool
        On a CUDA device, replay each cell in training as two CUDA graphs, forward and backward. Replays start
        after a dozen calls, once the winners of its problems are chosen, and if they are measured to be
        faster and agree with a run; ``replays`` reports this for each cell. If the model's own code reads
        nothing but its modules, tensors, constants and arguments, its calls are replayed in place of those
        of its cells, as one pair of graphs. A cell is a module that holds
        mixed operations; if it takes other arguments than tensors, or cannot be captured, its mixed
        operations are replayed instead. Tensors saved for the backward pass stay allocated between steps,
        and a replay ends where the cell's code would read something else.
    watch : bool
        Compare the model's steps with plain ones, as ``nxcore.accelerate`` does.

    Returns
    -------
    Swap
        The replaced modules, and the reason for each other one.

    Examples
    --------
    >>> class Mixed(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self._ops = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.BatchNorm2d(4)])
    ...     def forward(self, x, weights):
    ...         return sum(w * op(x) for w, op in zip(weights, self._ops))
    >>> nas.patch(torch.nn.Sequential(Mixed())).replaced
    {'0._ops.1': 'BatchNorm2d', '0': 'Mixed'}
    """
    swap, trials = exchanged(model), dict[Any, mixture.Trial]()
    for name, module in model.named_modules():
        if not mixture.looks_mixed(module):
            continue
        if why := mixture.differs(module, name, swap, trials):
            swap.left[name] = why
            continue
        swap.replaced[name] = _replace(module, mixture.forward)
        swap.left.pop(name, None)
        if graphs:
            vars(module)[PART] = Part(mixture.blended)
    for name, module in model.named_modules():
        mixed = [held for held in _held(module) if TAKES in vars(held)]
        if len(mixed) < 2 or hasattr(type(module), PATCHED) or isinstance(module, LISTS):
            continue
        swap.replaced[name] = _replace(module, _of_cell)
        swap.left.pop(name, None)
        if graphs:
            vars(module)[PART] = outer = Part(Folded(_nodes))
            for held in mixed:
                vars(held)[PART].outer = outer
    _take_lists(model, swap, graphs=graphs)
    _take_points(model, swap)
    if graphs:
        whole.take(model)
    replayed = whole.later(model) if graphs else None
    if watch or replayed is not None:
        watching.watch(model, whole=replayed, compares=watch)
    return swap


def _take_lists(model: nn.Module, swap: Swap, *, graphs: bool) -> None:
    """Let modules whose own code may weight outputs of lists of operations be taken at their first calls."""
    within, trials = set[int](), dict[Any, Any]()
    for name, module in reversed([*model.named_modules()]):
        if isinstance(module, LISTS) or type(module).__module__.startswith(("torch.", "nxcore.")):
            continue
        if hasattr(type(module), PATCHED):
            within |= {id(m) for m in module.modules()}
            continue
        lists = lists_of(module)
        if not lists or "forward" in vars(module):
            continue
        if any(id(m) in within for held in lists for m in held.modules()):
            continue
        cls = _replace(module, taking.forward)
        if name not in swap.left:
            swap.replaced[name] = cls
        vars(module)[TAKING] = Taking(name, swap, graphs=graphs, trials=trials)
        within |= {id(m) for m in module.modules()}


def _take_points(model: nn.Module, swap: Swap) -> None:
    """Replace operations that are a ReLU, 1x1 convolutions and a norm."""
    within, counts = set[int](), dict[Any, Count]()
    for name, module in model.named_modules():
        if id(module) in within or _ours(module) or points.known(module) is None:
            continue
        within |= {id(m) for m in module.modules()}
        if hasattr(type(module), PATCHED):
            continue
        count = counts.setdefault(structure(module) or name, Count(type(module)))
        swap.replaced[name] = _replace(module, points.forward)
        swap.left.pop(name, None)
        watch = points.watch_of(module)
        vars(module)[AUDIT] = Audit(name, swap, watch, count, before, points.by_layers, points.leave)
        points.take(module)


def replays(model: nn.Module) -> dict[str, str]:
    """Return, for each cell and mixed operation by name, whether training replays CUDA graphs, and why.

    Included is a patched model, if its own calls may be replayed in place of those of its cells.

    >>> net = nas.SearchNetwork(2, layers=1, steps=1, multiplier=1)
    >>> nas.replays(net)["cells.0"]
    'runs: no call in training yet'
    """
    states = ((name, _state(module)) for name, module in model.named_modules())
    found = {name: state for name, state in states if state}
    return found | ({"": own.state} if (own := watching.whole_of(model)) else {})


def _state(module: nn.Module) -> str:
    part, known = vars(module).get(PART), vars(module).get(TAKING)
    if part is not None:
        return str(part.state)
    if known is not None:
        return str(known.state) if known.graphs else ""
    return f"left as it was: {LEFT[module]}" if module in LEFT else ""


def unpatch(model: nn.Module) -> Swap:
    """Undo ``patch``; return the restored modules.

    >>> model = torch.nn.Sequential(torch.nn.MaxPool2d(2))
    >>> nas.patch(model).replaced == nas.unpatch(model).replaced
    True
    """
    swap = restore(model)
    for name, module in model.named_modules():
        LEFT.pop(module, None)
        whole.leave(module)
        if cls := getattr(type(module), PATCHED, None):
            module.__class__ = cls
            for name_of_ours in (TAKES, PART, TAKING, AUDIT, ZEROS, WRITES, ENDS):
                vars(module).pop(name_of_ours, None)
            swap.replaced[name] = cls.__name__
    return swap


def _replace(module: nn.Module, forward: Any) -> str:
    """Give a module another ``forward`` through a subclass; return the name of its old class."""
    cls = type(module)
    become(module, patched(cls, {"forward": forward}))
    return cls.__name__


def _held(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the children of ``module``, those in lists included."""
    for child in module.children():
        yield from _held(child) if isinstance(child, LISTS) else (child,)


def _ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("nxcore.nn.")


def _of_cell(self: Any, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return before(self, *args, **kwargs)
    part: Part | None = vars(self).get(PART)
    return _nodes(self, *args, **kwargs) if part is None else folded(part, self, args, kwargs)


def _nodes(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return node.computed(functools.partial(sharing, module, *args, **kwargs))
