"""Tools that look modules up by their exact class: an accelerated module is torch's own again before they do.

``torch.ao`` has ``torch.nn.utils.parametrize`` read the class of a module, which reads an attribute of the
module first. Torch's pass that folds norms traces a module, which reads its ``__module__`` first. So both see
torch's class next. Nothing shows that others compare ``type(module)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

READS = "torch.nn.utils.parametrize"
"""Torch's code that reads the class of a module, for ``torch.ao`` or to derive another one."""

TRACES = "torch.fx.experimental.optimization"
"""Torch's code that traces a model and compares the classes of its modules."""

PREPARED = "it has a qconfig, and torch.ao looks for torch's exact class"
"""Why ``accelerate`` leaves a module."""

FIRST = "nxcore.restore(model), before a tool that looks modules up by their exact class"
"""The next call where modules have a ``qconfig``."""


def prepared(module: nn.Module) -> bool:
    """Return whether ``torch.ao`` will convert a module."""
    return vars(module).get("qconfig") is not None


def parametrizations_of(module: nn.Module) -> nn.Module:
    """Return the parametrizations of a module, as its attribute has them.

    Raises
    ------
    AttributeError
        If it has none.
    """
    found: nn.Module | None = vars(module)["_modules"].get("parametrizations")
    if found is None:
        raise AttributeError(f"{type(module).__name__!r} object has no attribute 'parametrizations'")
    return found


def class_is_read() -> bool:
    """Return whether the caller's code looks for parametrizations, and reads the module's class next."""
    places = _places()
    return next((p for p in places if not p.startswith("nxcore.")), "") == next(places, "") == READS


def traced() -> bool:
    """Return whether this package was called within such a trace."""
    return TRACES in _places()


def _places() -> Iterator[str]:
    """Yield the names of the modules whose code runs, the innermost first."""
    frame: Any = inspect.currentframe()
    while frame is not None:
        yield frame.f_globals.get("__name__", "")
        frame = frame.f_back
