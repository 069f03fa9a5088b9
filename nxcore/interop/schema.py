"""An operator's signature in torch's schema language, from its spec's parameters and annotations."""

# ruff: noqa: C419  dynamo reads a list where it reads no generator

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor

from nxcore.context import Requested
from nxcore.interop.autograd import flatten
from nxcore.spec.spec import REQUIRED, Drawn, OpSpec, Param

TYPES: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    torch.dtype: "ScalarType",
    torch.memory_format: "MemoryFormat",
    torch.device: "Device",
}
"""The types in annotations of static parameters, also as lists and tuples."""

CLASSES: dict[str, tuple[type, ...]] = {name: (cls,) for cls, name in TYPES.items()} | {
    "Tensor": (Tensor,),
    "Scalar": (int, float, complex, SymInt, SymFloat),
    "int": (int, SymInt),
    "SymInt": (int, SymInt),
}


REQUEST = ("str? backend=None", "str[]? prefer=None", "str? policy=None")
"""Arguments that every operator takes besides its own; see ``Requested``."""


class Unfit(Exception):  # noqa: N818  not an error: it gives the reason why an operator isn't in torch's library
    """A spec that torch's schemas can't express."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument of the schema: its name, torch's type of one value, and whether it is a sequence of them.

    A parameter with several types has several slots. If ``single``, a sequence of one value means the value:
    to an operator ``3`` and ``(3,)`` are the same.
    """

    name: str
    type: str
    listed: bool = False
    single: bool = False

    def takes(self, value: Any) -> bool:
        """Return whether ``value`` can be passed in this slot."""
        if isinstance(value, tuple | list):
            return self.listed and all([self._takes(v) for v in value])
        return (self.single or not self.listed) and self._takes(value)

    def _takes(self, value: Any) -> bool:
        fits = isinstance(value, CLASSES[self.type])
        return fits and (self.type not in ("int", "SymInt") or not isinstance(value, bool))

    def encoded(self, value: Any) -> Any:
        """Return ``value`` in the schema's form."""
        return [value] if self.listed and value is not None and not isinstance(value, tuple | list) else value

    def decoded(self, value: Any) -> Any:
        """Return the operator's value for a value of the schema."""
        if not self.listed:
            return value
        return value[0] if self.single and len(value) == 1 else tuple(value)


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter and its slots, the first of which has its position; if ``optional``, None is valid."""

    param: Param
    slots: tuple[Slot, ...]
    optional: bool

    def takes(self, value: Any) -> bool:
        """Return whether one of the slots takes ``value``."""
        if value is None:
            return self.optional
        return any([slot.takes(value) for slot in self.slots])

    def decoded(self, given: dict[str, Any]) -> Any:
        """Return the parameter's value from the schema's arguments."""
        for slot in reversed(self.slots):
            if (value := given[slot.name]) is not None:
                return slot.decoded(value)
        return None


def place_of(param: Param, annotation: Any) -> Place:
    """Return the slots of a parameter: from its kind, or the annotation of a static one."""
    name = param.name
    if param.kind == "tensor":
        # Drawn tensors are always passed: the schema's default None, which the check rejects, is never used.
        left_out = param.default is None or isinstance(param.default, Drawn)
        return Place(param, (Slot(name, "Tensor"),), optional=left_out)
    if param.kind == "tensors":
        both = (Slot(name, "Tensor", listed=True), Slot(f"{name}_stacked", "Tensor"))
        return Place(param, both, optional=False)
    if param.kind == "operand":
        return Place(param, (Slot(name, "Tensor"), Slot(f"{name}_number", "Scalar")), optional=False)
    if param.kind == "size":  # which may be symbolic in a trace
        return Place(param, (Slot(name, "SymInt", listed=True),), optional=param.default is None)
    if param.kind == "scalar":
        return Place(param, (Slot(name, "Scalar"),), optional=False)
    if param.kind == "out":
        return Place(param, (), optional=True)
    found: dict[str, tuple[bool, bool]] = {}  # of each type: whether single, whether in a sequence
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
        Slot(name if i == 0 else f"{name}_{type_}", type_, listed=many, single=alone)
        for i, (type_, (alone, many)) in enumerate(found.items())
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


def _declared(place: Place, slot: Slot) -> str:
    """Return a slot's declaration in the schema."""
    first = slot is place.slots[0]
    optional = place.optional or (len(place.slots) > 1 and not slot.listed)
    text = f"{slot.type}{'[]' if slot.listed else ''}{'?' if optional else ''} {slot.name}"
    if first and place.param.default is REQUIRED:
        return text
    return f"{text}={_literal(slot.encoded(_default(place, slot)))}"


def _default(place: Place, slot: Slot) -> Any:
    value = place.param.default
    return value if slot is place.slots[0] and value is not REQUIRED and slot.takes(value) else None


def _literal(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).removeprefix("torch.")


class Result:
    """The form of an operator's result in the schema: a tensor, or the flat list of all of its tensors.

    None becomes an empty tensor of bool: torch's schemas have no lists with None.
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
        """Return ``result`` in the schema's form."""
        if self.plain:
            return result
        leaves = flatten(result)
        like = next(t for t in leaves if t is not None)
        return [like.new_empty(0, dtype=torch.bool) if t is None else t for t in leaves]

    def unpacked(self, leaves: Any) -> list[Tensor | None]:
        """Return every tensor of a result, None for missing ones."""
        if self.plain:
            return [leaves]
        return [None if t.dtype is torch.bool and t.shape == (0,) else t for t in leaves]

    def restored(self, leaves: Any) -> Any:
        """Return the operator's result; only if it is ``flat``."""
        if self.plain:
            return leaves
        found = self.unpacked(leaves)
        return found[0] if self.alone and len(found) == 1 else tuple(found)


class Signature:
    """The signature of a spec's operator, in torch's schema language.

    Parameters
    ----------
    spec : OpSpec
        Its reference's annotations give the types of static parameters and of the result.

    Raises
    ------
    Unfit
        If they don't, or the types have no schema.
    """

    def __init__(self, spec: OpSpec) -> None:
        try:
            hints = typing.get_type_hints(spec.reference)
        except (NameError, TypeError) as error:
            raise Unfit(f"its annotations can't be read: {error}") from error
        self.places = tuple(place_of(p, hints.get(p.name)) for p in spec.params)
        self.result = Result(hints.get("return"))
        groups: dict[tuple[bool, bool], list[tuple[Place, Slot]]] = {}  # keyword arguments, after the others
        for place in self.places:
            for i, slot in enumerate(place.slots):
                groups.setdefault((place.param.keyword, i > 0), []).append((place, slot))
        self._positional = [*groups.get((False, False), ()), *groups.get((False, True), ())]
        self._keywords = [*groups.get((True, False), ()), *groups.get((True, True), ())]
        self._names = [slot.name for _, slot in self._positional]
        both = (*self._positional, *self._keywords)
        self._defaults = {slot.name: slot.encoded(_default(place, slot)) for place, slot in both}

    def __str__(self) -> str:
        positional, keywords = (
            [_declared(*found) for found in group] for group in (self._positional, self._keywords)
        )
        arguments = [*positional, "*", *keywords, *REQUEST]
        return f"({', '.join(arguments)}) -> {self.result.type}"

    def takes(self, args: tuple[Any, ...]) -> bool:
        """Return whether all ``args`` fit the signature, and the nesting of the result is known."""
        given = zip(self.places, args, strict=True)
        return self.result.flat and all([place.takes(value) for place, value in given])

    def given(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """Return the schema's arguments, by name, for the operator's, all positional."""
        given: dict[str, Any] = {}
        for place, value in zip(self.places, args, strict=True):
            found = False
            for slot in place.slots:
                taken = not found and value is not None and slot.takes(value)
                found = found or taken
                # If the first slot is a list and another slot is used, it is empty.
                given[slot.name] = (
                    slot.encoded(value) if taken else None if place.optional or not slot.listed else []
                )
        return given

    def bound(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], Requested]:
        """Return the operator's arguments, all positional, and the request.

        torch omits arguments that have their default.
        """
        given = self._defaults | dict(zip(self._names, args, strict=False)) | named
        return tuple([place.decoded(given) for place in self.places]), Requested(
            *map(named.get, Requested._fields)
        )
