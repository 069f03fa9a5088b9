"""patch and unpatch: make any search network run nxcore's operators, in place."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.errors import FOREIGN
from nxcore.graphs.branches import branched
from nxcore.graphs.hooks import hooked
from nxcore.graphs.rows import span_of
from nxcore.graphs.snapshot import as_they_are, attributes
from nxcore.nas.mixed import PART
from nxcore.nn import Part, Swap, steps
from nxcore.nn.exchange import PATCHED
from nxcore.nn.swap import exchanged, restore

ZEROS, WRITES = "_nxcore_zeros", "_nxcore_writes"
"""Attributes of a mixed operation: its operations that return zeros; that one writes into its input."""

TRIAL = (2, 8, 8)
"""Batch size, height and width of the trial call of a mixed operation."""


def patch(model: nn.Module, *, graphs: bool = True, watch: bool = True) -> Swap:
    """Make the mixed operations, depthwise convolutions and pools of ``model`` run nxcore's operators.

    A mixed operation is a module that holds its operations in a ``ModuleList`` named ``_ops`` and whose
    ``forward`` takes an image and their weights. It is left unchanged if a trial call of a copy does not
    return the weighted sum of its operations. Operations without parameters that return zeros, as DARTS'
    ``none``, are skipped: their contribution and their weight's gradient are 0.

    Parameters
    ----------
    model : torch.nn.Module
        The model, changed in place: classes of modules, and two attributes. ``unpatch`` undoes it.
    graphs : bool
        On a CUDA device, replay each cell in training as two CUDA graphs, forward and backward. Replays start
        after a dozen calls, once the winners of its problems are chosen, and if they are measured to be
        faster and agree with a run; ``replays`` reports this for each cell. A cell is a module that holds
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
    swap = exchanged(model)
    for name, module in model.named_modules():
        if not _looks_mixed(module):
            continue
        if why := _differs(module):
            swap.left[name] = why
            continue
        swap.replaced[name] = _replace(module, _forward)
        swap.left.pop(name, None)
        if graphs:
            vars(module)[PART] = Part(_blended)
    for name, module in model.named_modules():
        inner = [part for held in _held(module) if (part := vars(held).get(PART)) and part.run is _blended]
        if len(inner) < 2 or hasattr(type(module), PATCHED) or isinstance(module, nn.ModuleList):
            continue
        swap.replaced[name] = _replace(module, _of_cell)
        swap.left.pop(name, None)
        vars(module)[PART] = outer = Part(_as_before)
        for part in inner:
            part.outer = outer
    if watch:
        steps.watch(model)
    return swap


def replays(model: nn.Module) -> dict[str, str]:
    """Return, for each cell and mixed operation by name, whether training replays CUDA graphs, and why.

    Included are the cells of a ``SearchNetwork``, each ``MixedOp`` outside a cell, and modules that ``patch``
    replaced.

    >>> nas.replays(torch.nn.Sequential(nas.MixedOp(4, 1)))
    {'0': 'runs: no call in training yet'}
    """
    parts = ((name, vars(module).get(PART)) for name, module in model.named_modules())
    return {name: part.state for name, part in parts if part is not None}


def unpatch(model: nn.Module) -> Swap:
    """Undo ``patch``; return the restored modules.

    >>> model = torch.nn.Sequential(torch.nn.MaxPool2d(2))
    >>> nas.patch(model).replaced == nas.unpatch(model).replaced
    True
    """
    swap = restore(model)
    for name, module in model.named_modules():
        if cls := getattr(type(module), PATCHED, None):
            module.__class__ = cls
            for name_of_ours in (PART, ZEROS, WRITES):
                vars(module).pop(name_of_ours, None)
            swap.replaced[name] = cls.__name__
    return swap


def _replace(module: nn.Module, forward: Any) -> str:
    """Give a module another ``forward`` through a new subclass; return the name of its old class."""
    cls = type(module)
    module.__class__ = type(
        cls.__name__, (cls,), {"forward": forward, PATCHED: cls, "__module__": cls.__module__}
    )
    return cls.__name__


def _held(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the children of ``module``, those in lists included."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else (child,)


def _ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("nxcore.")


def _of_cell(self: Any, *args: Any, **kwargs: Any) -> Any:
    part: Part | None = None if torch.compiler.is_compiling() else vars(self).get(PART)
    if part is None:
        return _as_before(self, *args, **kwargs)
    if kwargs or not all(isinstance(a, Tensor) for a in args):
        part.leave("it takes more than tensors")
        return _as_before(self, *args, **kwargs)
    return part(self, *args)


def _as_before(self: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(type(self), PATCHED).forward(self, *args, **kwargs)


def _forward(self: Any, x: Tensor, weights: Tensor) -> Tensor:
    part: Part | None = None if torch.compiler.is_compiling() else vars(self).get(PART)
    blended: Tensor = _blended(self, x, weights) if part is None else part(self, x, weights)
    return blended


def _blended(self: Any, x: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the operations; those that only return zeros are skipped."""
    operations, zeros = list(self._ops), vars(self).get(ZEROS, ())
    run = [i for i, op in enumerate(operations) if not _is_zero(op, zeros)]
    if run and len(run) < len(operations):
        ends = [i for i in range(1, len(run)) if run[i] > run[i - 1] + 1]
        spans = [
            span_of(weights, run[i], run[j - 1] + 1) for i, j in itertools.pairwise([0, *ends, len(run)])
        ]
        weights = spans[0] if len(spans) == 1 else torch.cat(spans)
        operations = [operations[i] for i in run]
    elif isinstance(weights, Tensor) and weights.shape == (len(operations),):
        weights = span_of(weights, 0, len(operations))
    found = branched(operations, x, written=WRITES in vars(self))
    blended: Tensor = session.default().op("weighted_sum")(found, weights)
    return blended


def _looks_mixed(module: nn.Module) -> bool:
    if not isinstance(getattr(module, "_ops", None), nn.ModuleList) or hasattr(type(module), PATCHED):
        return False
    if _ours(module):
        return False
    required = [
        p
        for p in inspect.signature(type(module).forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 3  # self, an image, the weights


def _operations(module: nn.Module) -> Any:
    return module._ops  # noqa: SLF001  the usual name in search networks


def _differs(module: nn.Module) -> str:
    """Return how a mixed operation differs from the weighted sum of its operations; empty if it does not.

    Mark the operations that return zeros for every input, as DARTS' ``none`` does.
    """
    trial = copy.deepcopy(module).double().eval()
    operations = _operations(trial)
    first = next(trial.parameters(), next(trial.buffers(), None))
    channels = next((_channels(m) for m in trial.modules() if _channels(m)), 0)
    if first is None or not channels:
        return "none of its operations shows the number of channels"
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TRIAL[0], channels, *TRIAL[1:], generator=generator, dtype=torch.float64).to(first.device)
    weights = torch.rand(len(operations), generator=generator, dtype=torch.float64).to(first.device)
    try:
        with torch.no_grad(), session.default().policy("estimate"):
            theirs, ours = trial(x, weights), _blended(trial, x, weights)
            found = [op(x) + op.train()(x) for op in operations]
            written = x._version > 0  # noqa: SLF001  it has no public name
    except FOREIGN as error:
        return f"a trial call raised {type(error).__name__}: {error}"
    if theirs.shape != ours.shape or not torch.allclose(theirs, ours, rtol=1e-9, atol=1e-12):
        return "it is not the weighted sum of its operations: a trial call returned another result"
    zeros = [
        (op, attributes(op))
        for op, y in zip(_operations(module), found, strict=True)
        if not y.any() and not [*op.parameters(), *op.buffers(), *op.children()]
    ]
    if len(zeros) < len(operations):
        vars(module)[ZEROS] = tuple(zeros)
    if written:
        vars(module)[WRITES] = True
    return ""


def _is_zero(op: nn.Module, zeros: tuple[tuple[nn.Module, list[tuple[str, Any]]], ...]) -> bool:
    """Return whether an operation returned zeros, and has not changed since."""
    return any(op is zero and as_they_are(op, were) and not hooked(op) for zero, were in zeros)


def _channels(module: nn.Module) -> int:
    if isinstance(module, nn.Conv2d):
        return module.in_channels
    return module.num_features if isinstance(module, nn.BatchNorm2d) else 0
