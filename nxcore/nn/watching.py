"""Watching: whether a model has a watch over its steps, and what that has found."""

from __future__ import annotations

from torch import nn

from nxcore.errors import of_type
from nxcore.nn import exchange
from nxcore.nn.groups import Groups
from nxcore.nn.programs import ModelProgram
from nxcore.nn.steps import Steps
from nxcore.nn.whole import Calls, ModelWhole
from nxcore.session import Session, default


def watch(
    model: nn.Module,
    session: Session | None = None,
    whole: ModelWhole | ModelProgram | None = None,
    *,
    compares: bool = True,
) -> None:
    """Watch the steps of ``model``, if the settings allow it and there is anything to exchange.

    Steps aren't compared unless it ``compares``; ``whole`` replays them in any case.
    """
    session = session or default()
    if not (session.settings.watch and compares) or next(model.children(), None) is None:
        if whole is not None:
            exchange.hold(model, Calls(whole))
    elif Groups(whole).present(model, resting=True) or whole is not None:
        exchange.hold(model, Steps(model, session, whole=whole))


def unwatch(model: nn.Module) -> None:
    """End the watches over ``model`` and its modules; all modules are taken back."""
    for module in of_type(model, nn.Module, "a torch.nn.Module", "model").modules():
        held = exchange.watch_within(module)
        if isinstance(held, Steps):
            held.end()
        elif held is not None:
            held.whole.end("the watch was taken away")
        if exchange.with_watch(module):
            exchange.release(module)


def whole_of(model: nn.Module) -> ModelWhole | ModelProgram | None:
    """Return what replays the calls of ``model``, if anything does."""
    held = exchange.watch_within(model)
    return None if held is None else held.whole


def comparing(model: nn.Module) -> bool:
    """Return whether steps of ``model`` are compared, or will be."""
    held = exchange.watch_within(model)
    return isinstance(held, Steps) and held.open


def report(model: nn.Module) -> list[str]:
    """Return what the watch over ``model`` found; the modules are as between blocks."""
    held = exchange.watch_within(model)
    if isinstance(held, Steps):
        held.pause()
        return held.report
    return [] if held is None else list(held.whole.report)
