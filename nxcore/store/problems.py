"""Problems of calls in a file: one JSON object a line; and arguments for them.

A line has the key of the problem's page in wisdom, and ``count``, its number of calls.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.spec import OpSpec
from nxcore.store.encoding import decoded
from nxcore.store.owner import given

LIMIT = 1 << 30
"""The most bytes of a recording."""

NUMBERS = {kind.__name__: kind for kind in (int, float, bool, complex)}
UNMADE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError, StopIteration)
"""Errors of a line that describes no problem; a line that is nested too deeply raises a RuntimeError."""

KINDS = (torch.dtype, torch.memory_format, torch.layout)
"""The classes of torch that a static parameter may have, written by ``str()``."""


def read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and content of each line in a file of ``Trace``.

    Raises
    ------
    InvalidInputError
        If the file can't be read, or isn't such a file.
    """
    try:
        lines = given(path, LIMIT).decode().splitlines()
    except OSError as error:
        raise InvalidInputError(f"{path} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} isn't text: {error}") from None
    for number, text in enumerate(lines, 1):
        try:
            line = decoded(text)
        except ValueError as error:
            raise InvalidInputError(f"{path}, line {number} isn't JSON: {error}") from None
        if not isinstance(line, dict) or not isinstance(line.get("op"), str):
            raise InvalidInputError(f"{path}, line {number} isn't a problem: it has no op")
        yield number, line


def described(spec: OpSpec, line: Mapping[str, Any]) -> Problem:
    """Return the problem of a line, or of the key of a page of wisdom.

    Raises
    ------
    InvalidInputError
        If it is invalid for the operator.
    """
    try:
        devices = iter(line["devices"])
        args = tuple(
            None if line[p.name] is p.default is None else _described(p.kind, line[p.name], devices)
            for p in spec.params
        )
        return Problem(spec, args, bool(line["needs_grad"]), bool(line["aliased"]))
    except UNMADE as error:
        why = f"{type(error).__name__}: {error}"
        shown = reprlib.repr(line)[:80]
        raise InvalidInputError(f"{spec.name}: a problem can't be made of {shown}: {why}") from None


def moved(problem: Problem, device: torch.device) -> Problem:
    """Return the same problem on another device; a scalar tensor on the CPU stays there."""
    mixed = any(t.device.type != "cpu" for t in problem.tensors) and device.type != "cpu"

    def move(value: Any) -> Any:
        if isinstance(value, TensorMeta):
            return value if mixed and value.device.type == "cpu" else replace(value, device=device)
        return tuple(map(move, value)) if isinstance(value, tuple) else value

    return replace(problem, args=tuple(map(move, problem.args)))


def arguments(problem: Problem) -> tuple[Any, ...]:
    """Build arguments of a problem: numbers of mixed sign and unit variance, with its layout.

    Arguments that a spec has ``sketches`` of are built by these.
    """
    spec = problem.spec
    sketches = spec.sketches(*problem.args)
    built: list[Any] = []
    for seed, (param, value) in enumerate(zip(spec.params, problem.args, strict=True)):
        if param.name in sketches:
            built.append(_laid_out(sketches[param.name].build(value.device, value.dtype, seed), value))
        elif param.kind == "out" and problem.aliased:
            built.append(next(t for t in built if isinstance(t, Tensor) and TensorMeta.of(t) == value))
        else:
            built.append(_built(param.kind, value, seed))
    return tuple(built)


def _built(kind: str, value: Any, seed: int) -> Any:
    if isinstance(value, TensorMeta):
        return _laid_out(_random(value, seed), value)
    if kind == "tensors":
        return tuple(_built(kind, v, seed + i) for i, v in enumerate(value))
    return value(2) if kind in ("scalar", "operand") else value


def _random(like: TensorMeta, seed: int) -> Tensor:
    generator = torch.Generator(like.device).manual_seed(seed)
    wide = like.dtype if like.dtype.is_floating_point or like.dtype.is_complex else torch.float32
    wide = torch.float32 if wide.itemsize == 1 else wide  # 8-bit types have no random numbers
    found = torch.randn(_distinct(like), generator=generator, dtype=wide, device=like.device)
    if wide is like.dtype:
        return found
    if like.dtype is torch.bool:
        return found > 0
    if not like.dtype.is_floating_point:
        found = (4 * found).round()
        found = found.abs() if like.dtype.is_signed is False else found
    return found.to(like.dtype)


def _laid_out(data: Tensor, like: TensorMeta) -> Tensor:
    """Return ``data`` with the strides of ``like``; a dimension of stride 0 takes the first entry."""
    shape = _distinct(like)
    base = torch.empty_strided(shape, like.strides, dtype=like.dtype, device=like.device)
    base.copy_(data[tuple(slice(n) for n in shape)])
    return base.as_strided(like.shape, like.strides)


def _distinct(like: TensorMeta) -> tuple[int, ...]:
    return tuple(min(n, 1) if s == 0 else n for n, s in zip(like.shape, like.strides, strict=True))


def _described(kind: str, value: Any, devices: Iterator[str]) -> Any:
    if isinstance(value, dict):
        shape, strides = tuple(map(int, value["shape"])), tuple(map(int, value["strides"]))
        if len(shape) != len(strides) or min((*shape, *strides, 0)) < 0 or math.prod(shape) >= 2**48:
            raise ValueError(f"shape {shape} with strides {strides}")
        return TensorMeta(shape, strides, _of_torch(f"torch.{value['dtype']}"), torch.device(next(devices)))
    if kind == "tensors":
        return tuple(_described("tensor", v, devices) for v in value)
    if kind in ("scalar", "operand"):
        return NUMBERS[value]
    if kind == "tensor" or (kind == "out" and value is not None):
        raise TypeError(f"expected a tensor, got {value!r}")
    return _static(value)


def _static(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_static, value))
    return _of_torch(value) if isinstance(value, str) and value.startswith("torch.") else value


def _of_torch(name: str) -> Any:
    found = getattr(torch, name.removeprefix("torch."))
    if not isinstance(found, KINDS):
        raise TypeError(f"{name} must be a dtype or a memory format")
    return found
