"""A module's class, exchanged for a sibling: with torch's ``forward``, or with a watch over its calls.

Nothing else of the module changes. A copy and a pickle are of the class without a watch.

Another thread may run a module whose class changes. So a ``forward`` of ours, and what it calls, reads
nothing that a module has of its class alone.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import torch
from torch import nn

from nxcore.errors import InvalidInputError
from nxcore.nn.lookups import class_is_read, parametrizations_of
from nxcore.spec.compiling import unseen

MARK = "_nxcore_accelerated"
"""The attribute of a module that ``accelerate`` changed."""

PATCHED = "_nxcore_patched"
"""The attribute of a class that replaces another one's ``forward``: that other class."""

RESTING: dict[type[nn.Module], type[nn.Module]] = {}
"""Class -> its sibling whose ``forward`` is torch's."""

AWAKE: dict[type[nn.Module], type[nn.Module]] = {}
"""The reverse."""

EXCHANGING = threading.RLock()
"""Held while the class of a module is looked at and changed, which several threads may do at once."""

if hasattr(os, "register_at_fork"):  # in a child, no other thread would release it
    release_lock = EXCHANGING.release
    os.register_at_fork(before=EXCHANGING.acquire, after_in_parent=release_lock, after_in_child=release_lock)

HELD: dict[int, tuple[weakref.ref[nn.Module], Watch]] = {}
"""Identity of a module -> it and its watch: an attribute would be copied, and read by compiled code."""

COMPILED: dict[int, weakref.ref[nn.Module]] = {}
"""Identity -> a model with a watch that dynamo has traced."""

is_compiling = torch.compiler.is_dynamo_compiling

OF = "_nxcore_of"
"""The attribute of a class with a watch: the class without one."""


class Watch(Protocol):
    """Runs the calls of a model; see ``nxcore.nn.steps``."""

    whole: Any

    def run(
        self, model: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return ``call(*args, **kwargs)``."""


class Watched(nn.Module):
    """Mixed into the class of a model with a watch, which ``_watching`` lets see the calls."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Pass nothing on: a registry of the user's subclasses has no use for this one."""

    @property
    def parametrizations(self) -> Any:
        """Those of torch's attribute. Code that reads the class next finds that without a watch."""
        if with_watch(self) and not is_compiling() and class_is_read():
            release(self)
            return self.parametrizations
        return parametrizations_of(self)

    def __prepare_scriptable__(self) -> Any:
        """Refuse ``torch.jit.script``, which calls this first."""
        raise unscriptable(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return what a copy is made of: of the class without a watch."""
        return of_class(awake(self), super().__reduce_ex__(protocol), self)


def _watching(cls: Any) -> Callable[..., Any]:
    """Return the ``__call__`` of a class whose instances of ``cls`` have a watch.

    Dynamo and other threads may run it when the module has got another class again. So it reads no attribute.
    """

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run the module; the watch sees the call."""
        if is_compiling():
            _compiled(id(self))
            return cls.__call__(self, *args, **kwargs)
        watch, run = watch_within(self), functools.partial(cls.__call__, self)
        if watch is None:
            return run(*args, **kwargs)
        if watch.whole is not None:
            run = functools.partial(watch.whole.call, self, run)
        return watch.run(self, run, args, kwargs)

    return call


@unseen
def _compiled(key: int) -> bool:
    module = HELD[key][0]() if key in HELD else None
    if module is not None:
        COMPILED[key] = weakref.ref(module, lambda _: COMPILED.pop(key, None))
    return True


def of_class(cls: Any, reduced: Any, module: nn.Module) -> Any:
    """Return what ``__reduce_ex__`` returned for ``module``, for a copy of class ``cls`` instead."""
    own = type(module)
    if not isinstance(reduced, tuple) or not any(arg is own for arg in reduced[1]):
        return reduced
    make, args, *state = reduced
    # A pickle lets ``copyreg.__newobj__`` make nothing but the module's own class.
    make = cls.__new__ if make is copyreg.__newobj__ else make  # type: ignore[attr-defined]  # not in the stub
    return (make, tuple(cls if arg is own else arg for arg in args), *state)


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
    return torchs, cls, RESTING[cls]


def become(module: nn.Module, cls: type[nn.Module]) -> None:
    """Give ``module`` the class ``cls``; its watch stays."""
    with EXCHANGING:
        module.__class__ = _with_watch(cls) if with_watch(module) else cls


def watch_of(module: nn.Module) -> Watch | None:
    """Return the watch over ``module``; None if it has none, or if its class was changed since."""
    return watch_within(module) if with_watch(module) else None


def with_watch(module: nn.Module) -> bool:
    """Return whether its class is one for modules with a watch; a copy has that class without one."""
    return OF in vars(type(module))


def watch_within(module: nn.Module) -> Watch | None:
    """Return the watch over ``module``, also where its class was changed since."""
    found = HELD.get(id(module))
    return None if found is None else found[1]


def hold(module: nn.Module, watch: Watch) -> bool:
    """Put ``watch`` over ``module``; return whether its class allows that."""
    key = id(module)
    with EXCHANGING:
        try:
            module.__class__ = _with_watch(kind(module))
        except TypeError:  # a layout of its own, or a metaclass that refuses
            return False
        HELD[key] = weakref.ref(module, lambda _: HELD.pop(key, None)), watch
    return True


def release(module: nn.Module) -> None:
    """Take the watch from ``module``."""
    with EXCHANGING:
        HELD.pop(id(module), None)
        module.__class__ = kind(module)


def _with_watch(cls: type[nn.Module]) -> type[nn.Module]:
    """Return the sibling of ``cls`` for modules with a watch: one for all, as an ensemble has one class."""
    if (found := _sibling(cls, OF)) is not None:
        return found
    about = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    about |= {OF: cls, "__call__": _watching(cls), **_deepcopied(cls)}
    return type(cls.__name__, (Watched, cls), about)


def patched(cls: type[nn.Module], methods: Mapping[str, Any], mark: str = PATCHED) -> type[nn.Module]:
    """Return a sibling of ``cls`` with other methods; one for all modules that have the same ones.

    A pickle is of ``cls``, without attributes of ours: what a trial has shown here isn't known elsewhere.
    ``mark`` is the name of the class's attribute that is ``cls``.
    """
    found = _sibling(cls, mark, methods)
    if found is not None:
        return found
    about = {"__module__": cls.__module__, mark: cls, "__reduce_ex__": _reduced(cls), **_deepcopied(cls)}
    return type(cls.__name__, (cls,), about | {**methods})


def _sibling(
    cls: type[nn.Module], mark: str, methods: Mapping[str, Any] | None = None
) -> type[nn.Module] | None:
    """Return the living class that was made of ``cls`` with these methods."""
    known: type[nn.Module]
    for known in type.__subclasses__(cls):
        own = vars(known)
        if own.get(mark) is cls and all(own.get(name) is method for name, method in (methods or {}).items()):
            return known
    return None


def _reduced(cls: Any) -> Callable[..., Any]:
    def reduced(self: nn.Module, protocol: Any) -> Any:
        """Return what a pickle is made of: the module before it was patched."""
        found = of_class(cls, cls.__reduce_ex__(self, protocol), self)
        return tuple(map(_plain_state, found)) if isinstance(found, tuple) else found

    return reduced


def _plain_state(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    return {name: value for name, value in state.items() if not str(name).startswith("_nxcore_")}


def _deepcopied(cls: Any) -> dict[str, Any]:
    """Return the method of copies that are patched too, and of the class with a watch, but without one."""

    def copied(self: nn.Module, memo: dict[int, Any]) -> Any:
        return deep_copied(self, cls.__reduce_ex__(self, 4), memo)

    return {} if hasattr(cls, "__deepcopy__") else {"__deepcopy__": copied}


def deep_copied(module: nn.Module, reduced: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy of ``module``, awake, from what its ``__reduce_ex__`` returned."""
    own = awake(module)
    make, args, *state = of_class(_with_watch(own) if with_watch(module) else own, reduced, module)
    memo[id(module)] = made = make(*args)
    if state:
        made.__setstate__(copy.deepcopy(state[0], memo))
    return made


def inherited(cls: type, module: nn.Module, name: str) -> Callable[..., Any]:
    """Return the function that ``super()`` finds in ``cls``, also where ``module`` has got another class."""
    own = type(module)
    found: Callable[..., Any] = getattr(super(cls, own) if issubclass(own, cls) else own, name)
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
            with EXCHANGING:
                for module, ours, plain in self._others:
                    if type(module) is ours:
                        object.__setattr__(module, "__class__", plain)  # torch's takes ten times as long
        return self

    def __exit__(self, *_: object) -> None:
        """Exchange them back."""
        if self._entered == threading.get_ident():
            with EXCHANGING:
                for module, ours, plain in self._others:
                    if type(module) is plain:
                        object.__setattr__(module, "__class__", ours)
            self._entered = None
            self._turn.release()


def _plain(module: nn.Module) -> type[nn.Module] | None:
    cls = kind(module)
    found: type[nn.Module] | None = RESTING.get(cls) or vars(cls).get(PATCHED)
    return found
