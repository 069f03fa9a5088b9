"""Inside: the state of a module that a capture fixes, and a test whether it has changed."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from nxcore.call.unusual import PLAIN
from nxcore.errors import CaptureError
from nxcore.graphs.hooks import hooked

KNOWN = ("torch.", "nxcore.nn.")
"""Packages whose modules depend only on their class, parameters and constructor arguments."""

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Torch's modules that depend on how many others they hold."""

SAME_IN_EVAL = {
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.LayerNorm, nn.GroupNorm, nn.Identity, nn.Flatten),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Hardswish),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d),
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict),
}
"""Torch's modules that compute the same in training and in evaluation."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_training, _requires_grad = operator.itemgetter("training"), operator.attrgetter("requires_grad")

OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has, which are compared in another way, or not at all."""

Held = tuple[dict[Any, Any], Any, Any]
"""A dictionary, a name in it, and the value that the name has."""


class Inside:
    """The present state of a module.

    Parameters
    ----------
    module : torch.nn.Module
        Its modules, parameters and buffers are held, and the attributes of the user's own modules.
    names : list of tuple, optional
        Further dictionaries, each with a name and the value that it has there, as of ``reads_of``.
    counts_as : callable, optional
        Of a user's whole model: the class that a module's class counts as. Arguments of torch's own modules
        are compared then too, such as the rate of a dropout.

    Attributes
    ----------
    parameters, buffers : tuple of Tensor
        Its parameters and buffers, each once, and other attributes that are tensors: with a gradient they are
        parameters, without one they are buffers.
    mode : tuple
        The modules in training mode, and the parameters that need a gradient.

    Raises
    ------
    CaptureError
        If a parameter or buffer isn't a plain tensor, has hooks, or is on another device than the others, or
        if a module has hooks.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[Held] = (),
        *,
        counts_as: Callable[[type], type] | None = None,
    ) -> None:
        self.modules, self._counts_as = tuple(module.modules()), counts_as
        # Of the user's own code: DARTS keeps its architecture's weights as such attributes.
        others = {id(t): t for m in self.modules for _, v in attributes(m) for t in _tensors(v)}
        learned = [t for t in others.values() if t.requires_grad]
        self.parameters = (*module.parameters(), *learned)
        self.buffers = (*module.buffers(), *(t for t in others.values() if not t.requires_grad))
        self._tensors = (*self.parameters, *self.buffers)
        self._check()
        # Torch's modules read what they hold by fixed names, so that values in their order are enough.
        self._dicts = tuple(
            own for m in self.modules if _known(m) for own in (m._parameters, m._buffers, m._modules) if own
        )
        self._referents = gc.get_referents(*self._dicts)
        self._own = list(map(vars, self.modules))
        held = [*self._held(), *names]
        held += [(v, name, item) for _, _, v in held if type(v) is dict for name, item in v.items()]
        self._where = [where for where, _, _ in held]
        self._names = [name for _, name, _ in held]
        self._values = [value for _, _, value in held]
        self._lists = [value for value in self._values if type(value) is list]
        self._items = [[*map(id, value)] for value in self._lists]
        self._kept = [[*value] for value in self._lists]  # so that no other object gets one of these numbers
        self._contents = [(v, v.copy()) for v in self._values if type(v) in (list, dict, set)]
        self._sized = [*self._own, *self._containers()]  # in a module's own, a name may stand for a method
        self._sizes = list(map(len, self._sized))
        self._hooks, self._handles = [own[name] for own in self._own for name in HOOKS], _handles()
        self._modes = [
            own for own, m in zip(self._own, self.modules, strict=True) if type(m) not in SAME_IN_EVAL
        ]
        self._classes, self._places = self._now()
        self._near: list[Any] = [*self.modules, *self._sized, *self._tensors]
        self.mode = self.mode_now()

    def _check(self) -> None:
        """Raise the error of a module that a capture can't hold."""
        if hooked(*self.modules):
            raise CaptureError("it has hooks")
        for tensor in self._tensors:
            if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
                raise CaptureError(
                    f"its parameters and buffers must be plain tensors, got {type(tensor).__name__}"
                )
            if tensor._backward_hooks:
                raise CaptureError("one of its parameters has hooks")
        if len({t.device for t in self._tensors}) > 1:
            raise CaptureError("its parameters and buffers are on several devices")

    def _held(self) -> list[Held]:
        """Return what the user's own modules hold, their attributes, and arguments of torch's modules."""
        held: list[Held] = [
            (own, name, value)
            for m in self.modules
            if not _known(m)
            for own in (m._parameters, m._buffers, m._modules)
            for name, value in own.items()
        ]
        held += [
            (own, name, value)
            for own, m in zip(self._own, self.modules, strict=True)
            for name, value in attributes(m)
        ]
        if self._counts_as:
            held += [constant for m in self.modules for constant in _constants(m)]
        return held

    def _containers(self) -> list[Any]:
        """Return dictionaries and lists whose lengths are compared, besides the modules' own."""
        found: list[Any] = []
        for m in self.modules:
            if not _known(m) or isinstance(m, CONTAINERS):
                found += [own for own in (m._modules, m._parameters) if not (own and _known(m))]
        return [*found, *(value for value in self._values if isinstance(value, list | dict | set))]

    def holds(self) -> bool:
        """Return whether the state is unchanged, except for the mode and for values of tensors.

        Every replay checks every module, 600 in a cell of a search, whose memory isn't in the processor's
        cache. So this reads little of it, by C functions. A copy of a list counts references to what is in
        it, which fetches that memory several times as fast as the functions that need it next.
        """
        self._near.copy()
        found = gc.get_referents(*self._dicts)
        if len(found) != len(self._referents) or not all(map(operator.is_, found, self._referents)):
            return False
        if not all(map(operator.is_, map(dict.get, self._where, self._names), self._values)):
            return False
        if (handles := _handles()) != self._handles:
            if any(self._hooks):
                return False
            self._handles = handles
        if hooked() or [*map(len, self._sized)] != self._sizes:
            return False
        if [[*map(id, value)] for value in self._lists] != self._items:
            return False
        classes, places = self._now()
        return places == self._places and (classes == self._classes or self._rest(classes))

    def _rest(self, classes: list[type]) -> bool:
        """Return whether other classes than before count as the same."""
        counts_as = self._counts_as
        return counts_as is not None and [*map(counts_as, classes)] == [*map(counts_as, self._classes)]

    def put_back(self) -> bool:
        """Let lists, dictionaries and sets hold what they did; return whether one of them didn't."""
        changed = [(value, was) for value, was in self._contents if _items(value) != _items(was)]
        for value, was in changed:
            value.clear()
            (value.extend if type(value) is list else value.update)(was)
        return bool(changed)

    def classes_hold(self) -> bool:
        """Return whether all modules have the classes that they had."""
        return [*map(type, self.modules)] == self._classes

    def mode_now(self) -> tuple[list[bool], list[bool]]:
        """Return whether modules that depend on it are in training, and which parameters need a gradient."""
        return self.training_now(), [*map(_requires_grad, self.parameters)]

    def training_now(self) -> list[bool]:
        """Return whether modules that depend on it are in training."""
        return [*map(_training, self._modes)]

    def _now(self) -> tuple[list[type], list[int]]:
        return [*map(type, self.modules)], [*map(torch.Tensor.data_ptr, self._tensors)]


def _items(value: Any) -> Any:
    """Return what a container holds, as numbers of objects; a copy of a set may have another order."""
    if type(value) is dict:
        return [(key, id(item)) for key, item in value.items()]
    return set(map(id, value)) if type(value) is set else [*map(id, value)]


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of an attribute: itself, or those in a list or dictionary."""
    values = value.values() if type(value) is dict else value if type(value) in (list, tuple) else [value]
    return [v for v in values if isinstance(v, Tensor)]


def _handles() -> int:
    """Return how many hooks were ever registered in this process; only then may a module have another."""
    return RemovableHandle.next_id


def _known(module: nn.Module) -> bool:
    return (type(module).__module__ + ".").startswith(KNOWN)


def attributes(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the attributes of the user's own module, which its ``forward`` may read."""
    if _known(module):
        return []
    return [(name, value) for name, value in vars(module).items() if name not in OWN]


def _constants(module: nn.Module) -> list[Held]:
    """Return the arguments that one of torch's modules keeps, which a program may change."""
    held = vars(module)
    names: Sequence[str] = getattr(type(module), "__constants__", ())
    return [(held, name, held[name]) for name in names if name in held] if _known(module) else []


def as_they_are(module: nn.Module, were: list[tuple[str, Any]]) -> bool:
    """Return whether the module's attributes are still these."""
    held = vars(module)
    return all(held.get(name) is value for name, value in were)
