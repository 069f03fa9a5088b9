"""Watching: whether a model has a watch over its steps, and what that has found."""

from __future__ import annotations

from torch import nn

from nxcore.errors import of_type
from nxcore.nn import exchange
from nxcore.nn.groups import Groups
from nxcore.nn.programs import ModelProgram
from nxcore.nn.steps import Steps
from nxcore.nn.whole import ModelWhole
from nxcore.session import Session, default

UNWATCHED = "its watch is switched off"


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
    session, model = session or default(), stepped(model)
    compares = session.settings.watch and compares and next(model.children(), None) is not None
    if whole is not None and not compares:
        whole.entrants.ended = UNWATCHED
    if whole is not None or (compares and Groups().present(model, resting=True)):
        exchange.hold(model, Steps(model, session, whole=whole, ended="" if compares else UNWATCHED))


def stepped(model: nn.Module) -> nn.Module:
    """Return the module whose calls are steps: the one within torch's wrappers for several devices."""
    wrappers = nn.parallel.DistributedDataParallel, nn.DataParallel
    return stepped(model.module) if isinstance(model, wrappers) else model


def unwatch(model: nn.Module) -> None:
    """End the watches over ``model`` and its modules; all modules are taken back."""
    for module in of_type(model, nn.Module, "a torch.nn.Module", "model").modules():
        held = exchange.watch_within(module)
        if isinstance(held, Steps):
            held.end()
        if exchange.with_watch(module):
            exchange.release(module)


def whole_of(model: nn.Module) -> ModelWhole | ModelProgram | None:
    """Return what replays the calls of ``model``, if anything does."""
    held = exchange.watch_within(stepped(model))
    return None if held is None else held.whole


def comparing(model: nn.Module) -> bool:
    """Return whether steps of ``model`` are compared, or will be."""
    held = exchange.watch_within(stepped(model))
    return isinstance(held, Steps) and held.open


def report(model: nn.Module) -> list[str]:
    """Return what the watch over ``model`` found; the modules are as between blocks."""
    held = exchange.watch_within(stepped(model))
    if not isinstance(held, Steps):
        return []
    held.pause()
    return held.report
