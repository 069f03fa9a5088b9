"""A module's class, exchanged for a sibling: with torch's ``forward``, or with a watch over its calls.

Nothing else of the module changes. A copy and a pickle are of the class without a watch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
from torch import nn

from nxcore.errors import InvalidInputError
from nxcore.spec.compiling import unseen

MARK = "_nxcore_accelerated"
"""The attribute of a module that ``accelerate`` changed."""

PATCHED = "_nxcore_patched"
"""The attribute of a class that replaces another one's ``forward``: that other class."""

RESTING: dict[type[nn.Module], type[nn.Module]] = {}
"""Class -> its sibling whose ``forward`` is torch's."""

ROAMING: dict[type[nn.Module], type[nn.Module]] = {}
"""Class -> its sibling whose ``forward`` is torch's until a shape comes back."""

AWAKE: dict[type[nn.Module], type[nn.Module]] = {}
"""The reverse of both."""

COMPILED: set[str] = set()
"""The names of watches over models that dynamo has traced."""

is_compiling = torch.compiler.is_dynamo_compiling

OF, WATCH = "_nxcore_of", "_nxcore_watch"


class Watch(Protocol):
    """Runs the calls of a model; see ``nxcore.nn.steps``."""

    name: str
    classes: dict[type[nn.Module], type[nn.Module]]
    whole: Any

    def run(
        self, model: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return ``call(*args, **kwargs)``."""


class Watched(nn.Module):
    """Mixed into the class of a model with a watch."""

    _nxcore_watch: Watch
    _nxcore_name: str

    def __init_subclass__(cls, **_: Any) -> None:
        """Pass nothing on: a registry of the user's subclasses has no use for this one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; the watch sees the call."""
        if is_compiling():
            _compiled(self._nxcore_name)
            return super().__call__(*args, **kwargs)
        watch, call = self._nxcore_watch, super().__call__
        if watch.whole is not None:
            call = functools.partial(watch.whole.call, self, call)
        return watch.run(self, call, args, kwargs)

    def __prepare_scriptable__(self) -> Any:
        """Refuse ``torch.jit.script``, which calls this first."""
        raise unscriptable(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return what a copy is made of: of the class without a watch."""
        reduced: Any = super().__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or not any(arg is type(self) for arg in reduced[1]):
            return reduced
        _, (_, *args), *state = reduced
        return (object.__new__, (awake(self), *args), *state)


@unseen
def _compiled(name: str) -> bool:
    COMPILED.add(name)
    return True


def unscriptable(module: nn.Module) -> InvalidInputError:
    """Return the error of a module that ``torch.jit.script`` can't compile.

    Torch would exchange the module within the user's model too, if it got another one to compile.
    """
    cls = awake(module)
    instead = f"use torch.nn.{cls.__name__} in place of nxcore.nn.{cls.__name__}"
    if MARK in vars(module) or watch_within(module) is not None:
        instead = "call nxcore.restore(model) before it, and nxcore.accelerate(model) again after it"
    text = f"torch.jit.script can't compile the accelerated module {cls.__name__}: {instead}"
    return InvalidInputError(f"{text}. torch.jit.trace and torch.export take it as it is")


def kind(module: nn.Module) -> type[nn.Module]:
    """Return the class of ``module`` without a watch."""
    found: type[nn.Module] = vars(type(module)).get(OF, type(module))
    return found


def awake(module: nn.Module) -> type[nn.Module]:
    """Return the class of ``module`` when it is awake and without a watch."""
    cls = kind(module)
    return AWAKE.get(cls, cls)


def kinds(cls: type[nn.Module]) -> tuple[type[nn.Module], ...]:
    """Return torch's class that ``cls`` stands for, ``cls``, and its siblings."""
    torchs: type[nn.Module] = cls.__bases__[0]
    return torchs, cls, RESTING[cls], ROAMING[cls]


def become(module: nn.Module, cls: type[nn.Module]) -> None:
    """Give ``module`` the class ``cls``; its watch stays."""
    held = watch_of(module)
    module.__class__ = cls if held is None else _with(held, cls)


def watch_of(module: nn.Module) -> Watch | None:
    """Return the watch over ``module``; None if it has none, or if its class was changed since."""
    found: Watch | None = vars(type(module)).get(WATCH)
    return found


def watch_within(module: nn.Module) -> Watch | None:
    """Return the watch over ``module``, also where its class was changed since."""
    found: Watch | None = getattr(type(module), WATCH, None)
    return found


def hold(module: nn.Module, watch: Watch) -> bool:
    """Put ``watch`` over ``module``; return whether its class allows that."""
    try:
        module.__class__ = _with(watch, kind(module))
    except TypeError:  # a layout of its own, or a metaclass that refuses
        return False
    return True


def release(module: nn.Module) -> None:
    """Take the watch from ``module``."""
    module.__class__ = kind(module)


def _with(watch: Watch, cls: type[nn.Module]) -> type[nn.Module]:
    """Return a sibling of ``cls`` with ``watch``, made once."""
    found = watch.classes.get(cls)
    if found is None:
        about = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
        about |= {OF: cls, WATCH: watch, "_nxcore_name": watch.name}
        found = watch.classes[cls] = type(cls.__name__, (Watched, cls), about)
    return found


class Plain:
    """A block within which torch's, or the user's own, ``forward`` serves the modules inside a model.

    One thread at a time; in another one's block they stay as they are.

    Parameters
    ----------
    model : torch.nn.Module
        Its own class isn't exchanged.
    """

    def __init__(self, model: nn.Module) -> None:
        found = ((m, type(m), _plain(m)) for m in model.modules() if m is not model)
        self._others = [(m, ours, plain) for m, ours, plain in found if plain is not None]
        self._turn = threading.Lock()
        self._entered: int | None = None

    def __enter__(self) -> Self:
        """Exchange the classes."""
        if self._turn.acquire(blocking=False):
            self._entered = threading.get_ident()
            for module, ours, plain in self._others:
                if type(module) is ours:
                    object.__setattr__(module, "__class__", plain)  # torch's takes ten times as long
        return self

    def __exit__(self, *_: object) -> None:
        """Exchange them back."""
        if self._entered == threading.get_ident():
            for module, ours, plain in self._others:
                if type(module) is plain:
                    object.__setattr__(module, "__class__", ours)
            self._entered = None
            self._turn.release()


def _plain(module: nn.Module) -> type[nn.Module] | None:
    cls = kind(module)
    found: type[nn.Module] | None = RESTING.get(cls) or vars(cls).get(PATCHED)
    return found
