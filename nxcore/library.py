"""An operator in torch's library: what ``torch.compile`` and ``torch.export`` put into their graphs.

``torch.ops.nxcore.<name>`` is made from the spec alone. To a compiler it is opaque: one node, whatever the
sizes, and who runs it is decided when it runs. Of the same spec are its fake (shapes, dtypes and strides
without data), its gradient (the backward operator's own node), its batching rule and what autocast does.
"""

from __future__ import annotations

import functools
import importlib
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor
from torch.autograd import forward_ad

from nxcore import autocast
from nxcore.autograd import Differentiable, flatten
from nxcore.problem import Problem
from nxcore.spec import REQUIRED, Gradient, OpSpec, Param

NAMESPACE = "nxcore"

TYPES: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    torch.dtype: "ScalarType",
    torch.memory_format: "MemoryFormat",
    torch.device: "Device",
}
"""What a static parameter's annotation may be made of, with lists and tuples of one of them."""

CLASSES: dict[str, tuple[type, ...]] = {name: (cls,) for cls, name in TYPES.items()} | {
    "Tensor": (Tensor,),
    "Scalar": (int, float, complex, SymInt, SymFloat),
    "int": (int, SymInt),
    "SymInt": (int, SymInt),
}

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

Run = Callable[[tuple[Any, ...], str | None], Any]


class Unfit(Exception):  # noqa: N818  no error: it says why an operator isn't one of torch's library
    """A spec that torch's schemas can't express."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument of the schema. A parameter has several where it takes what is of different types.

    Attributes
    ----------
    name : str
    type : str
        torch's name for the type of one value.
    listed : bool
        It holds a sequence of them.
    single : bool
        A sequence of one stands for the value alone: to an operator ``3`` and ``(3,)`` are the same.
    """

    name: str
    type: str
    listed: bool = False
    single: bool = False

    def takes(self, value: Any) -> bool:
        """Tell whether ``value`` can be handed over here."""
        if isinstance(value, tuple | list):
            return self.listed and all([self._takes(v) for v in value])  # noqa: C419  dynamo reads a list
        return (self.single or not self.listed) and self._takes(value)

    def _takes(self, value: Any) -> bool:
        fits = isinstance(value, CLASSES[self.type])
        return fits and (self.type not in ("int", "SymInt") or not isinstance(value, bool))

    def encoded(self, value: Any) -> Any:
        """Return ``value`` as the schema has it."""
        return [value] if self.listed and value is not None and not isinstance(value, tuple | list) else value

    def decoded(self, value: Any) -> Any:
        """Return what was handed over as the operator takes it."""
        if not self.listed:
            return value
        return value[0] if self.single and len(value) == 1 else tuple(value)


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter and its slots, the first of them where it stands in the signature.

    Attributes
    ----------
    param : Param
    slots : tuple of Slot
    optional : bool
        None is a value of it.
    """

    param: Param
    slots: tuple[Slot, ...]
    optional: bool

    def takes(self, value: Any) -> bool:
        """Tell whether one of the slots takes ``value``."""
        if value is None:
            return self.optional
        return any([slot.takes(value) for slot in self.slots])  # noqa: C419  dynamo reads a list

    def decoded(self, given: dict[str, Any]) -> Any:
        """Return the parameter's value among the schema's arguments."""
        for slot in reversed(self.slots):  # where the first is a list, it is empty in another's favour
            if (value := given[slot.name]) is not None:
                return slot.decoded(value)
        return None


def place_of(param: Param, annotation: Any) -> Place:
    """Return the slots of a parameter: from its kind, and of a static one from its annotation."""
    name = param.name
    if param.kind == "tensor":
        return Place(param, (Slot(name, "Tensor"),), optional=param.default is None)
    if param.kind == "tensors":
        slots = (Slot(name, "Tensor", listed=True), Slot(f"{name}_stacked", "Tensor"))
        return Place(param, slots, optional=False)
    if param.kind == "operand":
        return Place(param, (Slot(name, "Tensor"), Slot(f"{name}_number", "Scalar")), optional=False)
    if param.kind == "scalar":
        return Place(param, (Slot(name, "Scalar"),), optional=False)
    if param.kind == "out":
        return Place(param, (), optional=True)
    found: dict[str, tuple[bool, bool]] = {}  # of each type: whether alone, whether in a sequence
    members = list(_members(annotation))
    for member in members:
        listed = typing.get_origin(member) in (tuple, list, Sequence)
        item = next((a for a in typing.get_args(member) if a is not ...), None) if listed else member
        if item in (None, types.NoneType):
            continue
        if item not in TYPES:
            raise Unfit(f"{name} is annotated {annotation}")
        alone, many = found.get(TYPES[item], (False, False))
        found[TYPES[item]] = (alone or not listed, many or listed)
    slots = tuple(
        # What is only ever a sequence of integers is a size, which a trace may leave open.
        Slot(name if i == 0 else f"{name}_{type_}", size if many and not alone else type_, many, alone)
        for i, (type_, (alone, many)) in enumerate(found.items())
        for size in ["SymInt" if type_ == "int" else type_]
    )
    if not slots:
        raise Unfit(f"{name} has no annotation")
    return Place(param, slots, optional=types.NoneType in members)


def _members(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _members(member)
    elif typing.get_origin(annotation) is typing.Literal:
        yield from {type(value) for value in typing.get_args(annotation)}
    else:
        yield annotation


def _default(place: Place, slot: Slot) -> str:
    value = place.param.default
    if value is REQUIRED:
        return ""
    return f"={_literal(slot.encoded(value) if slot.takes(value) else None)}"


def _literal(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).removeprefix("torch.")


class Shell:
    """An operator of torch's library, made from a spec.

    Parameters
    ----------
    spec : OpSpec
        Its reference's annotations tell the types of static parameters and of the result.
    run : callable
        ``run(args, backend)`` computes it; ``args`` all positional.
    namespace : str
        Where it stands in ``torch.ops``.

    Raises
    ------
    Unfit
        If torch has no schema for it.
    """

    def __init__(self, spec: OpSpec, run: Run, namespace: str = NAMESPACE) -> None:
        try:
            hints = typing.get_type_hints(spec.reference)
        except (NameError, TypeError) as error:
            raise Unfit(f"its annotations can't be read: {error}") from error
        self.spec, self._run = spec, run
        self.places = tuple(place_of(p, hints.get(p.name)) for p in spec.params)
        self.result = _Result(hints.get("return"))
        self._views = spec.view is not OpSpec.__dataclass_fields__["view"].default
        library = torch.library.Library(namespace, "FRAGMENT")
        try:
            library.define(f"{spec.name}{self.schema}", tags=TAGS)
        except RuntimeError as error:  # of torch's parser
            raise Unfit(str(error)) from error
        self.overload = getattr(getattr(torch.ops, namespace), spec.name).default
        library.impl(spec.name, self._compute, "CompositeExplicitAutograd")
        library.impl(spec.name, self._differentiate, "Autograd")
        library.impl(spec.name, self._refer, "FuncTorchBatched")
        for key in ("AutocastCPU", "AutocastCUDA"):
            library.impl(spec.name, self._autocast, key)
        torch.library.register_fake(f"{namespace}::{spec.name}", self._fake, lib=library)
        arguments = self.overload._schema.arguments  # noqa: SLF001  the schema has no public name
        self._names = tuple(a.name for a in arguments if not a.kwarg_only)
        self._defaults = {"backend": None}
        for place in self.places:
            first = place.slots[:1]
            value = None if place.param.default is REQUIRED else place.param.default
            self._defaults |= {s.name: s.encoded(value) if s in first else None for s in place.slots}
        self._library = library  # its operators live as long as it does

    @property
    def schema(self) -> str:
        """The arguments and the result, in torch's language."""
        parts: dict[bool, list[list[str]]] = {False: [[], []], True: [[], []]}
        for place in self.places:
            for i, slot in enumerate(place.slots):
                optional = place.optional or (len(place.slots) > 1 and not slot.listed)
                type_ = f"{slot.type}{'[]' if slot.listed else ''}{'?' if optional else ''}"
                text = f"{type_} {slot.name}"
                parts[place.param.keyword][i > 0].append(
                    text + (_default(place, slot) if i == 0 else "=None")
                )
        (first, more), (keywords, rest) = parts[False], parts[True]
        arguments = [*first, *more, "*", *keywords, *rest, "str? backend=None"]
        return f"({', '.join(arguments)}) -> {self.result.type}"

    def takes(self, args: tuple[Any, ...]) -> bool:
        """Tell whether torch's schema has a place for everything in this call and for its result."""
        if not self.result.flat:
            return False
        given = zip(self.places, args, strict=True)
        return all([place.takes(value) for place, value in given])  # noqa: C419  dynamo reads a list

    def __call__(self, args: tuple[Any, ...], backend: str | None = None) -> Any:
        """Call the operator of torch's library with the spec's arguments, all positional."""
        return self.result.restored(self.leaves(args, backend))

    def leaves(self, args: tuple[Any, ...], backend: str | None = None) -> Any:
        """Call it and return what it returns."""
        return self.overload(**self.given(args), backend=backend)

    def given(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """Return the schema's arguments, by name."""
        given: dict[str, Any] = {}
        for place, value in zip(self.places, args, strict=True):
            found = False
            for slot in place.slots:
                taken = not found and value is not None and slot.takes(value)
                found = found or taken
                absent = None if place.optional or not slot.listed else []
                given[slot.name] = slot.encoded(value) if taken else absent
        return given

    def close(self) -> None:
        """Take it out of ``torch.ops``."""
        self._library._destroy()  # noqa: SLF001  no public way

    def _bound(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], str | None]:
        """Return the operator's arguments, all positional, and the backend that was asked for."""
        given = self._defaults | dict(zip(self._names, args, strict=False)) | named
        return tuple([place.decoded(given) for place in self.places]), given["backend"]

    def _compute(self, *args: Any, **named: Any) -> Any:
        bound, backend = self._bound(args, named)
        with torch.no_grad():
            return self._returned(self._run(bound, backend), bound)

    def _fake(self, *args: Any, **named: Any) -> Any:
        bound, _ = self._bound(args, named)
        with torch.no_grad():
            self.spec.check(*bound)
            told = self.spec.outputs(*Problem.of(self.spec, bound).args)
            return self._returned(self.spec.reference(*bound) if told is None else _built(told), bound)

    def _refer(self, *args: Any, **named: Any) -> Any:
        bound, _ = self._bound(args, named)
        return self._returned(self.spec.reference(*bound), bound)

    def _autocast(self, *args: Any, **named: Any) -> Any:
        bound, backend = self._bound(args, named)
        given = autocast.cast(self.spec, bound)
        if given is None:
            return self._returned(self.spec.reference(*bound), bound)
        with autocast.disabled():
            return self.leaves(given, backend)

    def _differentiate(self, *args: Any, **named: Any) -> Any:
        bound, backend = self._bound(args, named)
        needed = torch.is_grad_enabled() and any(t.requires_grad for t in _tensors(bound))
        transformed = torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001  no public test
        if forward_ad._current_level >= 0 or (needed and transformed):  # noqa: SLF001  likewise
            return self._returned(self.spec.reference(*bound), bound)
        if not needed:
            with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001  as torch's own custom operators do
                return self.overload(*args, **named)
        gradient = self.spec.gradient
        if gradient is None or not gradient.covers(*bound) or of(gradient.op) is None:
            return self._returned(self.spec.reference(*bound), bound)
        return self.result.packed(self._joined(bound, gradient, backend)(*bound))

    def _joined(self, args: tuple[Any, ...], gradient: Gradient, backend: str | None) -> Differentiable:
        """Return this operator and its backward, each a node of its own."""
        backward = of(gradient.op)
        forward = of(gradient.forward) if gradient.forward else self
        count = len(forward.places)
        return Differentiable(
            spec=self.spec,
            described=Problem.of(self.spec, args).args,
            gradient=replace(gradient, args=lambda *all_of_it: all_of_it),
            forward=lambda *args: forward(args[:count], backend),
            backward=functools.partial(_backward, gradient, backward, backend),
            reference=lambda *all_of_it: backward.spec.reference(*gradient.args(*all_of_it)),
        )

    def _returned(self, result: Any, args: tuple[Any, ...]) -> Any:
        """Return ``result`` as the schema has it; what would share memory with an argument is copied."""
        if self._views:
            inputs = {t.untyped_storage()._cdata for t in _tensors(args)}  # noqa: SLF001  identity of storages
            result = _apart(result, inputs)
        return self.result.packed(result)


def _backward(
    gradient: Gradient, shell: Shell, backend: str | None, grad: Tensor, mask: tuple[bool, ...], *args: Any
) -> list[Tensor | None]:
    """Compute gradients: those that are views as the reference makes them, the others by one node."""
    found: list[Tensor | None] = [None] * len(mask)
    rest = list(mask)
    for i, asked in enumerate(mask):
        alone = gradient.args(grad, tuple(asked and i == j for j in range(len(mask))), *args)
        if asked and shell.spec.view(*alone):
            rest[i] = False
            found[i] = flatten(shell.spec.reference(*alone))[i]
    if any(rest):
        leaves = shell.result.unpacked(shell.leaves(gradient.args(grad, tuple(rest), *args), backend))
        for i, leaf in enumerate(leaves):
            found[i] = leaf if rest[i] else found[i]
    return found


class _Result:
    """How an operator's result is handed over: a tensor, or the flat list of all of its tensors.

    None is an empty tensor of bool there: torch's schemas know no list with gaps.
    """

    def __init__(self, annotation: Any) -> None:
        members = list(_members(annotation))
        self.plain = members == [Tensor]
        self.type = "Tensor" if self.plain else "Tensor[]"
        tuples = [typing.get_args(m) for m in members if typing.get_origin(m) is tuple]
        items = {i for t in tuples for a in t for i in _members(a)}
        self.flat = Tensor in {*members, *items} and items <= {Tensor, types.NoneType}
        self.alone = Tensor in members

    def packed(self, result: Any) -> Any:
        """Return ``result`` as the schema has it."""
        if self.plain:
            return result
        leaves = flatten(result)
        like = next(t for t in leaves if t is not None)
        return [like.new_empty(0, dtype=torch.bool) if t is None else t for t in leaves]

    def unpacked(self, leaves: Any) -> list[Tensor | None]:
        """Return every tensor of a result, None where there is none."""
        if self.plain:
            return [leaves]
        return [None if t.dtype is torch.bool and t.shape == (0,) else t for t in leaves]

    def restored(self, leaves: Any) -> Any:
        """Return what the operator returns; only of what is ``flat``."""
        if self.plain:
            return leaves
        found = self.unpacked(leaves)
        return found[0] if self.alone and len(found) == 1 else tuple(found)


def _built(told: Any) -> Any:
    return tuple(_built(t) for t in told) if isinstance(told, tuple) else told and told.empty()


def _apart(result: Any, storages: set[int]) -> Any:
    if isinstance(result, tuple | list):
        return tuple(_apart(r, storages) for r in result)
    shared = isinstance(result, Tensor) and result.untyped_storage()._cdata in storages  # noqa: SLF001  as above
    return result.clone() if shared else result


def _tensors(args: tuple[Any, ...]) -> Iterator[Tensor]:
    for value in args:
        yield from (v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Tensor))


SHELLS: dict[str, Shell | None] = {}
"""What stands in ``torch.ops.nxcore``; None where torch has no schema for a spec."""


def define(spec: OpSpec) -> Shell | None:
    """Put an operator into ``torch.ops.nxcore``, once a process; None if torch has no schema for it.

    It calls the operator of that name of the default session.
    """
    if spec.name not in SHELLS:
        try:
            SHELLS[spec.name] = Shell(spec, functools.partial(_served, spec.name))
        except Unfit:
            SHELLS[spec.name] = None
    found = SHELLS[spec.name]
    return found if found is None or found.spec is spec else None


def define_all() -> tuple[str, ...]:
    """Put every operator into ``torch.ops.nxcore``; return the names of those that torch has a schema for.

    A process that loads what ``torch.export`` saved calls this first.
    """
    specs = importlib.import_module("nxcore.session").default().registry.ops.values()  # by name: see _served
    return tuple(spec.name for spec in specs if define(spec))


def of(name: str) -> Shell | None:
    """Return the shell of the default session's operator ``name``."""
    return define(importlib.import_module("nxcore").op(name).spec)  # by name: see _served


def _served(name: str, args: tuple[Any, ...], backend: str | None) -> Any:
    # By name: the layers forbid knowing the session, and in another process there is another.
    return importlib.import_module("nxcore").op(name, backend=backend).run(*args)
