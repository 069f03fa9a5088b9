"""Served: a module whose ``forward`` runs an operator, and is torch's own where torch has won.

A module *rests* while torch serves it: its class is then a sibling whose ``forward`` is torch's function, so
that a call costs what torch's costs. It rests after ``AFTER`` calls in a row that torch served, if the last
one is decided; and at once in a mode that has no kernel. The module wakes, and is looked at again, when its
mode changes, when its tensors are converted or moved, when plans are dropped, when a preference comes into
force, and in ``accelerate``. A copy and a pickle are of the class that is awake.
"""

from __future__ import annotations

import weakref
from typing import Any, Self, TypeVar

import torch
from torch import nn

from nxcore import context
from nxcore.call.operator import Operator
from nxcore.call.unusual import unusual
from nxcore.context import PREFERENCE, Preference
from nxcore.errors import InvalidInputError
from nxcore.graphs.hooks import saving
from nxcore.nn.exchange import (
    AWAKE,
    EXCHANGING,
    MARK,
    RESTING,
    awake,
    become,
    deep_copied,
    inherited,
    kind,
    kinds,
    of_class,
    unscriptable,
)
from nxcore.nn.lookups import class_is_read, parametrizations_of, traced

AFTER = 8
"""Calls in a row that torch serves before a module rests."""

RESTS = f"it rests: torch served {AFTER} calls in a row, and no kernel is faster"
IDLES = "it rests: torch serves {}"

LEFT = "_nxcore_left"
"""The attribute that counts these calls."""

is_compiling = torch.compiler.is_dynamo_compiling

_resting: dict[int, weakref.ref[nn.Module]] = {}
_reasons: dict[int, str] = {}
_given: set[int] = set()


class Changes:
    """Counts what changes the modules that a watch over a model's steps lets rest.

    Attributes
    ----------
    woken : int
        How often one of them was woken.
    moved : int
        How often tensors of one of them were converted or moved.
    """

    woken = 0
    moved = 0


class Place(str):
    """A class's ``__module__``, which its instances have of torch's class.

    ``torch.fx`` keeps a module whole whose own ``__module__`` is one of ``torch.nn``, and runs any other with
    proxies in place of tensors. A pickle and a class's ``repr`` read that of the class.

    Parameters
    ----------
    place : str
        The class's.
    torchs : str
        That of torch's class.
    """

    torchs: str

    def __new__(cls, place: str, torchs: str) -> Self:
        """Return the name of ``place``."""
        made = super().__new__(cls, place)
        made.torchs = torchs
        return made

    def __get__(self, module: nn.Module, _: type[nn.Module]) -> str:
        """Return what an instance has, which has torch's class next if that is compared."""
        if traced():
            give_back(module)
        return self.torchs

    def __reduce__(self) -> Any:
        """Return what is pickled with a class: its name alone."""
        return str, (str(self),)


class Served(nn.Module):
    """A module whose ``forward`` runs an operator, unless ``refusal`` gives a reason."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let ``torch.fx`` keep modules of torch's classes whole."""
        super().__init_subclass__(**kwargs)
        torchs = next((c for c in cls.__mro__ if c.__module__.startswith("torch.nn.")), nn.Module)
        if torchs is not nn.Module:
            cls.__module__ = Place(cls.__module__, torchs.__module__)

    @staticmethod
    def concerns(module: Any) -> bool:  # noqa: ARG004  only containers read it
        """Return whether ``module`` contains work for an operator."""
        return True

    @staticmethod
    def refusal(module: Any) -> str:  # noqa: ARG004  most modules always run the operator
        """Return why torch's own ``forward`` must run for ``module``; empty if the operator can."""
        return ""

    @staticmethod
    def idles(module: Any) -> bool:  # noqa: ARG004  most modules have kernels in both modes
        """Return whether torch serves ``module`` in its present mode, whatever it is called with."""
        return False

    @property
    def parametrizations(self) -> Any:
        """Those of torch's attribute. Code that reads the class next finds torch's."""
        if not is_compiling() and class_is_read():
            give_back(self)
        return parametrizations_of(self)

    @property
    def reason(self) -> str:
        """Why torch's own ``forward`` runs for this module; empty if the operator does."""
        if kind(self) not in AWAKE:
            return self.refusal(self)
        if self.idles(self):
            return self.refusal(self) or IDLES.format("training" if self.training else "evaluation")
        return self.refusal(self) or _reasons.get(id(self), RESTS)

    def train(self, mode: bool = True) -> Any:
        """Set the mode, as torch does. If it changes, the module is looked at again."""
        changed = mode != self.training
        inherited(Served, self, "train")(self, mode)
        if changed:
            look(self)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        inherited(Served, self, "_apply")(self, fn, recurse)
        Changes.moved += id(self) in _given
        look(self)
        return self

    def __prepare_scriptable__(self) -> Any:
        """Refuse ``torch.jit.script``, which calls this first."""
        raise unscriptable(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return what a copy is made of: of the class that is awake."""
        reduced = inherited(Served, self, "__reduce_ex__")(self, protocol)
        return of_class(AWAKE[type(self)], reduced, self) if type(self) in AWAKE else reduced

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy that is awake, unless its mode has no kernel."""
        made = deep_copied(self, inherited(Served, self, "__reduce_ex__")(self, 4), memo)
        if kind(self) in AWAKE:
            look(made)
        return made


def by_kernel(module: nn.Module, operator: Operator, *args: Any) -> Any:
    """Return the operator's result; None if torch's ``forward`` must run, which is counted."""
    if saving():  # torch serves both runs of a checkpoint, which counts what they save
        return None
    try:
        found = operator.by_kernel(*args)
    except InvalidInputError:
        left(module)
        return None
    if is_compiling():
        return found
    own = module.__dict__
    count = own.get(LEFT, 0)
    if found is None:
        if count + 1 < AFTER:  # as ``left`` does, without its call
            own[LEFT] = count + 1
        else:
            left(module, (operator, args))
    elif count:
        own[LEFT] = 0
    return found


def left(module: nn.Module, *calls: tuple[Operator, tuple[Any, ...]]) -> None:
    """Count a call that torch serves; the last of a row shows whether it will go on.

    Parameters
    ----------
    module : torch.nn.Module
        The module that was called.
    *calls
        The operators that returned None, with their arguments; those that refused them are left out.
    """
    if is_compiling():
        return
    own = module.__dict__
    count = own.get(LEFT, 0) + 1
    own[LEFT] = count % AFTER
    if count < AFTER or PREFERENCE.get() != Preference() or unusual():  # which end with their blocks
        return
    if all(operator.settled(*args) for operator, args in calls):
        rest(module)


Class = TypeVar("Class", bound=type[Served])


def with_rest(cls: Class) -> Class:
    """Make the sibling of ``cls`` whose ``forward`` is that of torch's class, its first base."""
    torchs: Any = cls.__bases__[0]
    about = {"forward": torchs.forward, "__doc__": cls.__doc__, "__module__": cls.__module__}
    sibling = type(cls.__name__, (cls,), about)
    RESTING[cls], AWAKE[sibling] = sibling, cls
    return cls


def rest(module: nn.Module, why: str = "", *, given: bool = False) -> None:
    """Let torch's ``forward`` serve ``module``, if its class is exactly one of ours.

    ``why`` is the reason, if it isn't that torch has won; ``given`` says that a watch over a model's steps
    gives it back.
    """
    with EXCHANGING:
        sibling = RESTING.get(kind(module))
        if sibling is None:
            return
        become(module, sibling)
        key = id(module)
        _resting[key] = weakref.ref(module, lambda _: _drop(key))
        if why:
            _reasons[key] = why
        if given:
            _given.add(key)


def wake(module: nn.Module) -> None:
    """Let the operator serve ``module`` again, if it rests."""
    with EXCHANGING:
        if cls := AWAKE.get(kind(module)):
            become(module, cls)
            _drop(id(module))


def give_back(module: nn.Module) -> bool:
    """Give ``module`` torch's own class, if its class is exactly one of ours; return whether it was."""
    with EXCHANGING:
        cls = awake(module)
        if cls not in RESTING:
            return False
        wake(module)
        for own in (MARK, LEFT):
            vars(module).pop(own, None)
        become(module, kinds(cls)[0])
        return True


def _drop(key: int) -> None:
    _resting.pop(key, None)
    _reasons.pop(key, None)
    if key in _given:
        _given.discard(key)
        Changes.woken += 1


def look(module: Any) -> None:
    """Wake ``module``, or let it rest if its mode has no kernel."""
    with EXCHANGING:
        wake(module)
        if awake(module) not in RESTING:
            return
        vars(module)[LEFT] = 0  # kept as an attribute: a capture doesn't outlive another number of them
        if module.idles(module) or module.refusal(module):
            rest(module)


def look_at_all() -> None:
    """Look again at all modules that rest: what their calls are decided by has changed."""
    for known in list(_resting.values()):  # in one step, whatever other threads do
        if (module := known()) is not None:
            look(module)


context.LISTENERS.append(look_at_all)
