"""Whole: a patched network whose own call is replayed, in place of those of its cells.

Its code outside of its cells is the user's. It is taken only if that reads nothing but what a replay tests.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from nxcore.graphs.reads import Held, Unclear, reads_of
from nxcore.graphs.whole import Whole
from nxcore.nas.taking import TAKING, Folded, folded
from nxcore.nas.watch import LEFT, PART
from nxcore.nn import Part, watching
from nxcore.nn import whole as of_models
from nxcore.nn.exchange import PATCHED, Plain, become, patched

TAKEN = "_nxcore_whole"
"""The attribute of a network's class that replaces another one's ``forward``: that other class."""

FEWEST = 2
"""Parts of a network that make it worth a capture of its own."""


def take(model: nn.Module) -> None:
    """Let the calls of ``model`` be replayed as a whole, if it holds parts and its own code allows that."""
    parts = [part for part in map(_part, model.modules()) if part is not None and part.outer is None]
    if _part(model) is not None or hasattr(type(model), PATCHED) or len(parts) < FEWEST:
        return
    try:
        names_of(model)
    except Unclear as why:
        LEFT[model] = f"its cells are replayed one by one: {why}"
        return
    become(model, patched(type(model), {"forward": forward}, TAKEN))
    vars(model)[PART] = whole = Whole(Folded(before), names_of)
    whole.plainly = Plain
    whole.classes = [*map(type, model.modules())][1:]
    for part in parts:
        part.outer = whole


def later(model: nn.Module) -> of_models.ModelWhole | None:
    """Return what replays the calls of a network without parts, once its lists are taken or left."""
    if hasattr(type(model), TAKEN) or next(of_models.parts_of(model), None) or not of_models.available():
        return None
    try:
        of_models.names_of(model)
    except Unclear as why:
        LEFT[model] = f"its steps are not replayed: {why}"
        return None
    return of_models.ModelWhole(model, of_models.recorder_for, _unsettled)


def _unsettled(model: nn.Module) -> str:
    """Return whether a list of operations is still to be taken or left."""
    held = (vars(module).get(TAKING) for module in model.modules())
    return "its lists may be taken" if any(taking and not taking.taken for taking in held) else ""


def leave(model: nn.Module) -> None:
    """Give ``model`` its class back."""
    if cls := getattr(type(model), TAKEN, None):
        model.__class__ = cls
        vars(model).pop(PART, None)


def names_of(model: nn.Module) -> list[Held]:
    """Return the names that the code of ``model`` reads outside of its cells, with their values.

    Raises
    ------
    Unclear
        If it may depend on more, or change something.
    """
    found: list[Held] = []
    for name, module in _own(model, ""):
        try:
            found += reads_of(module, getattr(type(module), TAKEN, type(module)))
        except Unclear as why:
            raise Unclear(f"{name}: {why}" if name else str(why)) from None
    return found


def _own(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of the user's code that isn't tested by a trial, by name."""
    if TAKING in vars(module):
        raise Unclear(f"{name} may be taken later")
    if not (type(module).__module__ + ".").startswith(("torch.", "nxcore.")):
        yield name, module
    for key, child in module.named_children():
        if not hasattr(type(child), PATCHED):
            yield from _own(child, f"{name}.{key}".lstrip("."))


def _part(module: nn.Module) -> Part | None:
    part: Part | None = vars(module).get(PART)
    return part


def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for the ``forward`` of a network that is taken."""
    part: Any = None if torch.compiler.is_compiling() else _part(self)
    # A comparison exchanges classes of modules, for a few calls or for good.
    if part is None or (watching.comparing(self) and not part.suits(self)):
        return before(self, *args, **kwargs)
    return folded(part, self, args, kwargs)


def before(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of the module's own ``forward``."""
    return getattr(type(module), TAKEN, type(module)).forward(module, *args, **kwargs)
