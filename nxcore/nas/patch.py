"""patch and unpatch: make any search network run nxcore's operators, in place."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.errors import FOREIGN
from nxcore.graphs.hooks import hooked
from nxcore.graphs.rows import span_of
from nxcore.graphs.snapshot import as_they_are, attributes
from nxcore.graphs.structure import structure
from nxcore.nas import group, node, points, shared_pools, taking, whole
from nxcore.nas.blend import ENDS, edge_of, ends_of, last_of, state_of
from nxcore.nas.lists import LISTS, WRITES, ZEROS, lists_of
from nxcore.nas.mixed import PART
from nxcore.nas.pending import version
from nxcore.nas.shared_pools import shared
from nxcore.nas.taking import LEFT, TAKING, Folded, Taking, before, folded, sharing
from nxcore.nn import Part, Swap, watching
from nxcore.nn.exchange import PATCHED, become, patched
from nxcore.nn.swap import exchanged, restore

LENGTHS = "_nxcore_lengths"
"""The attribute of a mixed operation: the numbers of weights that it takes."""

TRIAL = (2, 8, 8)
"""Batch size, height and width of the trial call of a mixed operation."""


def patch(model: nn.Module, *, graphs: bool = True, watch: bool = True) -> Swap:
    """Make the mixed operations, depthwise convolutions and pools of ``model`` run nxcore's operators.

    A mixed operation is a module that holds its operations in a ``ModuleList`` named ``_ops`` and whose
    ``forward`` takes an image and their weights. It is left unchanged if a trial call of a copy does not
    return the weighted sum of its operations; a trial that does counts for all mixed operations which differ
    in the values of their tensors alone. Operations without parameters that return zeros, as DARTS'
    ``none``, are skipped: their contribution and their weight's gradient are 0. A module of a ReLU, 1x1
    convolutions and a batch norm, such as a cell's preprocessing, is replaced if a trial of a copy returns
    what these layers return, gradients included.

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
        and other side effects of a replayed cell's Python code do not happen.
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
    swap, trials = exchanged(model), dict[Any, _Trial]()
    for name, module in model.named_modules():
        if not _looks_mixed(module):
            continue
        if why := _differs(module, trials):
            swap.left[name] = why
            continue
        swap.replaced[name] = _replace(module, _forward)
        swap.left.pop(name, None)
        if graphs:
            vars(module)[PART] = Part(_blended)
    for name, module in model.named_modules():
        mixed = [held for held in _held(module) if LENGTHS in vars(held)]
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
    within: set[int] = set()
    for name, module in reversed([*model.named_modules()]):
        if isinstance(module, LISTS) or _ours(module) or type(module).__module__.startswith("torch."):
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
        vars(module)[TAKING] = Taking(name, swap, graphs=graphs)
        within |= {id(m) for m in module.modules()}


def _take_points(model: nn.Module, swap: Swap) -> None:
    """Replace operations that are a ReLU, 1x1 convolutions and a norm."""
    within: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in within or _ours(module) or points.known(module) is None:
            continue
        within |= {id(m) for m in module.modules()}
        if hasattr(type(module), PATCHED):
            continue
        swap.replaced[name] = _replace(module, points.forward)
        swap.left.pop(name, None)
        points.take(module)


def replays(model: nn.Module) -> dict[str, str]:
    """Return, for each cell and mixed operation by name, whether training replays CUDA graphs, and why.

    Included are the cells of a ``SearchNetwork``, each ``MixedOp`` outside a cell, and modules that ``patch``
    replaced; and a patched model, if its own calls may be replayed in place of those of its cells.

    >>> nas.replays(torch.nn.Sequential(nas.MixedOp(4, 1)))
    {'0': 'runs: no call in training yet'}
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
            for name_of_ours in (PART, TAKING, ZEROS, WRITES, ENDS, LENGTHS):
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
    return type(module).__module__.startswith("nxcore.")


def _of_cell(self: Any, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return before(self, *args, **kwargs)
    part: Part | None = vars(self).get(PART)
    return _nodes(self, *args, **kwargs) if part is None else folded(part, self, args, kwargs)


def _nodes(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return node.computed(functools.partial(sharing, module, *args, **kwargs))


def _forward(self: Any, x: Tensor, weights: Any) -> Any:
    x = x if torch.compiler.is_compiling() else node.value_of(x)
    if isinstance(weights, list | tuple) and weights and all(_is_number(w) for w in weights):
        weights = torch.stack(list(weights))
    # None, where another thread has given the class back; what is exported runs where there are no kernels.
    lengths = () if torch.compiler.is_exporting() else vars(self).get(LENGTHS, ())
    if not isinstance(weights, Tensor) or weights.ndim != 1 or len(weights) not in lengths:
        return before(self, x, weights)
    part: Part | None = None if torch.compiler.is_compiling() else vars(self).get(PART)
    if part is None or not part.alone:
        return _blended(self, x, weights) if part is None else part(self, x, weights)
    with (
        shared_pools.sharing(on=False),
        group.reading(None),
        node.waiting(on=False),
    ):  # a capture of this call can't hold what another one computed
        return part(self, x, weights)


def _is_number(weight: Any) -> bool:
    return isinstance(weight, Tensor) and weight.ndim == 0


def _blended(self: Any, x: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the operations; those that only return zeros are skipped."""
    operations, zeros = _operations(self), vars(self).get(ZEROS, ())
    run = [i for i, op in enumerate(operations) if not _is_zero(op, zeros)]
    if run and len(run) < len(operations):
        ends = [i for i in range(1, len(run)) if run[i] > run[i - 1] + 1]
        spans = [
            span_of(weights, run[i], run[j - 1] + 1) for i, j in itertools.pairwise([0, *ends, len(run)])
        ]
        weights = spans[0] if len(spans) == 1 else torch.cat(spans)
        operations = [operations[i] for i in run]
    else:
        weights = span_of(weights, 0, len(operations))
    written = WRITES in vars(self)
    state = state_of(self, x, written=written)
    known = [None if written else shared(state, op) for op in operations]
    norms = dict(vars(self).get(ENDS, ()))
    return node.summed(edge_of(self, operations, known, x, weights, norms, written=written))


def _looks_mixed(module: nn.Module) -> bool:
    if hasattr(type(module), PATCHED) or _ours(module) or _holder(module) is None:
        return False
    required = [
        p
        for p in inspect.signature(type(module).forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 3  # self, an image, the weights


def _holder(module: nn.Module) -> nn.Module | None:
    """Return the list or dictionary of the module's operations; None if that isn't clear."""
    usual = getattr(module, "_ops", None)  # in search networks
    if isinstance(usual, nn.ModuleList):
        return usual
    held = lists_of(module)
    if len(held) != 1 or held[0] not in module.children():
        return None
    return None if any(lists_of(inner) for op in held[0].children() for inner in op.modules()) else held[0]


def _operations(module: nn.Module) -> list[nn.Module]:
    holder: Any = _holder(module)
    return list(holder.values() if isinstance(holder, nn.ModuleDict) else holder)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What trial calls of a mixed operation found.

    Attributes
    ----------
    lengths : tuple of int
        The numbers of weights that it takes.
    zeros : list of int
        The indices of operations that return zeros for every input, as DARTS' ``none`` does.
    ends : list of int
        The indices of operations that end with a norm.
    written : bool
        Whether one of its operations writes into the input.
    """

    lengths: tuple[int, ...]
    zeros: list[int]
    ends: list[int]
    written: bool


def _differs(module: nn.Module, trials: dict[Any, _Trial]) -> str:
    """Return how a mixed operation differs from the weighted sum of its operations; empty if it does not.

    Note in the module what its trial found, or that of one with the same structure.
    """
    key = structure(module)
    trial = None if key is None else trials.get(key)
    if trial is None:
        found = _tried(module)
        if isinstance(found, str):
            return found
        trial = found
        if key is not None:
            trials[key] = trial
    operations = _operations(module)
    if len(trial.zeros) < len(operations):
        vars(module)[ZEROS] = tuple((operations[i], attributes(operations[i])) for i in trial.zeros)
    if trial.written:
        vars(module)[WRITES] = True
    else:
        vars(module)[ENDS] = tuple((operations[i], last_of(operations[i])) for i in trial.ends)
    vars(module)[LENGTHS] = trial.lengths
    return ""


def _tried(module: nn.Module) -> _Trial | str:
    """Return what trial calls of a copy found, or how it differs from the weighted sum.

    The copy is on the CPU, if its code can run there: for a call in float64, a device's libraries would load
    kernels that nothing else needs.
    """
    first = next(module.parameters(), next(module.buffers(), None))
    channels = next((_channels(m) for m in module.modules() if _channels(m)), 0)
    if first is None or not channels:
        return "none of its operations shows the number of channels"
    found: _Trial | str = ""
    devices = (first.device,) if first.is_meta else (torch.device("cpu"), first.device)
    for device in dict.fromkeys(devices):
        found = _tried_on(device, module, channels)
        if not isinstance(found, str):
            break
    return found


def _tried_on(device: torch.device, module: nn.Module, channels: int) -> _Trial | str:
    trial = copy.deepcopy(module).to(device, torch.float64).eval()
    operations = _operations(trial)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TRIAL[0], channels, *TRIAL[1:], generator=generator, dtype=torch.float64).to(device)
    some = torch.rand(len(operations) + 1, generator=generator, dtype=torch.float64).to(device)
    reasons, lengths = [], []
    for length in (len(operations), len(operations) + 1):  # a last one may be there that is not used
        if why := _other(trial, x, some[:length]):
            reasons.append(why)
        else:
            lengths.append(length)
    if not lengths:
        return reasons[0]
    with torch.no_grad(), session.default().use("torch"):
        found = [op(x) + op.train()(x) for op in operations]
        ends = ends_of(operations, x)
    zeros = [
        i
        for i, (op, y) in enumerate(zip(_operations(module), found, strict=True))
        if not y.any() and not [*op.parameters(), *op.buffers(), *op.children()]
    ]
    return _Trial(tuple(lengths), zeros, ends, written=version(x) > 0)


def _other(trial: nn.Module, x: Tensor, weights: Tensor) -> str:
    """Return how a call differs from the weighted sum of the operations; empty if it does not."""
    try:
        with torch.no_grad(), session.default().use("torch"):
            theirs, ours = trial(x.clone(), weights), _blended(trial, x.clone(), weights)
    except FOREIGN as error:
        return f"a trial call raised {type(error).__name__}: {error}"
    if theirs.shape != ours.shape or not torch.allclose(theirs, ours, rtol=1e-9, atol=1e-12):
        return "it is not the weighted sum of its operations: a trial call returned another result"
    return ""


def _is_zero(op: nn.Module, zeros: tuple[tuple[nn.Module, list[tuple[str, Any]]], ...]) -> bool:
    """Return whether an operation returned zeros, and has not changed since."""
    return any(op is zero and as_they_are(op, were) and not hooked(op) for zero, were in zeros)


def _channels(module: nn.Module) -> int:
    if isinstance(module, nn.Conv2d):
        return module.in_channels
    return module.num_features if isinstance(module, nn.BatchNorm2d) else 0
