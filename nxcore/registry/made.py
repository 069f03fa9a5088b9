"""Operators that are made at run time, of expressions: known to the registry like any other."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from nxcore.errors import InvalidInputError, nearest
from nxcore.expression.activations import ACTIVATIONS
from nxcore.expression.backward import Backward
from nxcore.expression.normed import NORMED, normed
from nxcore.expression.operator import specs
from nxcore.expression.plain import data, of_data
from nxcore.expression.tree import Expression
from nxcore.expression.written import require_name
from nxcore.registry import inductor, reference
from nxcore.registry.registry import Registry, Source, printed
from nxcore.spec.problem import Problem
from nxcore.spec.spec import OpSpec

MADE = Source("made", "this program")
"""The origin of operators that a program made."""

TEXT_OF_TORCH = ("torch", "inductor")
"""The backends that are given the text of torch's calls: one runs it, one compiles it."""

_LOCK = threading.RLock()


def define(registry: Registry, expression: Expression, name: str, doc: str = "") -> OpSpec:
    """Return the operator of an expression; it and its backward operator are added if they are missing.

    Raises
    ------
    InvalidInputError
        If it can't have that name, or another operator has.
    """
    require_name(name)
    with _LOCK:
        if (found := registry.known(name)) is not None:
            if getattr(found.expression, "key", None) != expression.key:
                message = f"another operator is named {name!r}: choose another name"
                raise InvalidInputError(message, argument="name")
            return found
        return _added(registry, specs(expression, name, doc), MADE)


def _added(registry: Registry, made: tuple[OpSpec, ...], source: Source) -> OpSpec:
    """Add an operator, and its backward operator, with the kernels of every backend that prints."""
    for spec in made:
        if spec.name in registry.ops:
            raise InvalidInputError(f"another operator is named {spec.name!r}: choose another name")
    for own in (reference.backend(made), inductor.backend(made)):
        if own.name in registry.backends:
            registry.add_kernels(own.name, own.kernels)
    for backend in list(registry.backends.values()):
        registry.add_kernels(backend.name, printed(backend, made))
    registry.add_ops(made, source)  # last, since another thread then asks for the kernels
    return made[0]


def add_activations(registry: Registry, source: Source) -> None:
    """Let activations and gates, also after a batch norm, be operators as soon as one is requested.

    To make all of them would take longer than the rest of a start, and a program uses a few.
    """

    def add(name: str, make: Callable[[], tuple[OpSpec, ...]]) -> None:
        with _LOCK:
            if name not in registry.ops:
                _added(registry, make(), source)

    made = {name: functools.partial(found.specs, name) for name, found in ACTIVATIONS.items()}
    made |= {f"normed_{name}": functools.partial(normed, name) for name in NORMED}
    for name, make in made.items():
        if name not in registry.ops:  # a plugin's own
            adds = functools.partial(add, name, make)
            registry.latent |= dict.fromkeys((name, f"{name}_backward"), adds)


def plain(spec: OpSpec) -> Any:
    """Return the expression of an operator as plain data; None for one without."""
    found = spec.expression
    if found is None:
        return None
    backward = isinstance(found, Backward)
    forward: Expression = found.forward if backward else found
    name = spec.name.removesuffix("_backward") if backward else spec.name
    return [name, data(forward)]


def restore(registry: Registry, found: Any) -> None:
    """Define the operator of plain data, as ``plain`` gives it, where it is missing.

    Raises
    ------
    InvalidInputError
        If the data is no expression, or another operator has its name.
    """
    if found is None:
        return
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise InvalidInputError(f"an operator can't be made of {str(found)[:80]}")
    define(registry, of_data(found[1]), found[0])


def of_line(registry: Registry, line: Mapping[str, Any]) -> OpSpec:
    """Return the operator of a recording's line; one of an expression is defined where it is missing."""
    restore(registry, line.get("expression"))
    return registry.spec(line["op"])


def source(registry: Registry, spec: OpSpec, backend: str) -> str:
    """Return the code that a backend makes of an operator's expression, for plain float32 tensors.

    Raises
    ------
    InvalidInputError
        If the operator wasn't made of an expression, or the backend prints none.
    UnknownBackendError
        If there is no backend of that name.
    """
    if spec.expression is None:
        raise InvalidInputError(f"{spec.name} was not made of an expression, so no source is printed for it")
    name, _, variant = backend.partition("-")
    registry.backend(name)
    own = [kernel for b, kernel in registry.kernels(spec.name) if b.name == name]
    if backend in TEXT_OF_TORCH:
        return str(spec.reference.source)  # type: ignore[attr-defined]  # set where it was made
    for kernel in own:
        if kernel.variant == variant and kernel.source is not None:
            return kernel.source(_plain_problem(spec))
    able = {*TEXT_OF_TORCH, *_printing(registry, spec)}
    raise InvalidInputError(f"{backend!r} prints no expressions{nearest(backend, able)}", argument="backend")


def _printing(registry: Registry, spec: OpSpec) -> Iterator[str]:
    for backend, kernel in registry.kernels(spec.name):
        with contextlib.suppress(
            ImportError
        ):  # code is printed where its toolkit can't run, but is installed
            if backend.name not in TEXT_OF_TORCH and kernel.source:
                yield backend.label(kernel)


def _plain_problem(spec: OpSpec) -> Problem:
    """Describe a call with matrices of float32."""
    sample = next(s for s in spec.samples if s.name == "last_block_partly_filled")
    return Problem.of(spec, sample.build(spec, torch.device("cpu"), torch.float32))
