"""patch and unpatch: somebody else's search network, served by nxcore's operators, in place."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

import nxcore
from nxcore.nn import Swap

MARK = "_nxcore_patched"
TRIAL = (2, 8, 8)
"""Images, height and width of the call that a mixed operation is tried on."""


def patch(model: nn.Module) -> Swap:
    """Have nxcore's operators serve the mixed operations, depthwise convolutions and pools of ``model``.

    A mixed operation is a module that holds its operations in a ``ModuleList`` named ``_ops`` and whose
    ``forward`` takes an image and their weights. One that, on a trial call of a copy, doesn't answer as the
    weighted sum of its operations is left as it is.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place: classes of modules, nothing else. ``unpatch`` undoes it.

    Returns
    -------
    Swap
        What was replaced, and what was left for what reason.
    """
    swap = nxcore.accelerate(model)
    for name, module in model.named_modules():
        if not _looks_mixed(module):
            continue
        if why := _differs(module):
            swap.left[name] = why
            continue
        cls = type(module)
        module.__class__ = type(
            cls.__name__, (cls,), {"forward": _forward, MARK: cls, "__module__": cls.__module__}
        )
        swap.left.pop(name, None)
        swap.replaced[name] = cls.__name__
    return swap


def unpatch(model: nn.Module) -> Swap:
    """Undo ``patch``; return what became what it was."""
    swap = nxcore.restore(model)
    for name, module in model.named_modules():
        if cls := getattr(type(module), MARK, None):
            module.__class__ = cls
            swap.replaced[name] = cls.__name__
    return swap


def _forward(self: Any, x: Tensor, weights: Tensor) -> Tensor:
    blended: Tensor = nxcore.op("weighted_sum")([op(x) for op in self._ops], weights)
    return blended


def _looks_mixed(module: nn.Module) -> bool:
    if not isinstance(getattr(module, "_ops", None), nn.ModuleList) or hasattr(type(module), MARK):
        return False
    if type(module).__module__.startswith("nxcore."):
        return False
    required = [
        p
        for p in inspect.signature(type(module).forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 3  # self, an image, the weights


def _differs(module: nn.Module) -> str:
    """Return how a mixed operation differs from the weighted sum of its operations; empty if it doesn't."""
    trial = copy.deepcopy(module).double().eval()
    operations: Any = trial._ops  # noqa: SLF001  the name that others gave it
    first = next(trial.parameters(), next(trial.buffers(), None))
    channels = next((_channels(m) for m in trial.modules() if _channels(m)), 0)
    if first is None or not channels:
        return "its number of channels isn't told by any of its operations"
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TRIAL[0], channels, *TRIAL[1:], generator=generator, dtype=torch.float64).to(first.device)
    weights = torch.rand(len(operations), generator=generator, dtype=torch.float64).to(first.device)
    try:
        with torch.no_grad(), nxcore.policy("estimate"):
            theirs, ours = trial(x, weights), _forward(trial, x, weights)
    except Exception as error:  # noqa: BLE001  somebody else's code may raise anything
        return f"a trial call raised {type(error).__name__}: {error}"
    if theirs.shape != ours.shape or not torch.allclose(theirs, ours, rtol=1e-9, atol=1e-12):
        return "it isn't the weighted sum of its operations: a trial call answered otherwise"
    return ""


def _channels(module: nn.Module) -> int:
    if isinstance(module, nn.Conv2d):
        return module.in_channels
    return module.num_features if isinstance(module, nn.BatchNorm2d) else 0
