"""expressions on the CPU: one pass over memory, generated for each tree and each pattern of strides.

The steps of the innermost loop are constants of the code: 1, 0 (read once before the loop), or any number.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import types

from nxcore.plugin import Elementwise, Problem, Statements, generated, planned, spelled
from nxcore_numba import functions, half, memory, threads
from nxcore_numba.half import TOKENS, type_of

CALLS = (functions, half, memory, threads)
"""The modules that generated code uses."""

CALLED = ("exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "sign", "minimum", "maximum")

TEMPLATES = {
    **{name: f"functions.{name}({{0}})" for name in CALLED[:8]},
    **{name: f"functions.{name}({{0}}, {{1}})" for name in CALLED[8:]},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in zip(("add", "sub", "mul", "div"), "+-*/", strict=True)},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "not {0}",
    "neg": "-{0}",
    "abs": "np.float32(abs({0}))",
    "indicator": "functions.choose({0}, np.float32(1), np.float32(0))",
    "where": "functions.choose({0}, {1}, {2})",
    "clamp_min": "functions.choose({0} < {1}, {1}, {0})",
    "clamp_max": "functions.choose({0} > {1}, {1}, {0})",
    "sqrt": "np.float32(math.sqrt({0}))",
    "rsqrt": "np.float32(1) / np.float32(math.sqrt({0}))",
    "sin": "np.float32(math.sin({0}))",
    "cos": "np.float32(math.cos({0}))",
    "cast": "{0}",
}
"""Each function in Numba; all is float32."""

MODULE = '''"""{title}"""

# With the functions of {digest}.
import math

import numpy as np
from numba import prange

from nxcore_numba import functions, memory, threads
from nxcore_numba.half import flag, load, store

CHUNK = 16_384
PARTS = 512


@threads.jit(fastmath={{"contract"}})
def run({pointers}, {numbers}{places}, {steps}size, {tokens}):
    """Compute one run of elements."""
{before}
    for j in range(size):
{loop}


@threads.jit
def pieces({pointers}, {numbers}dims, first, last, {tokens}):
    """Compute the pieces from first to last; columns of dims are sizes, then every tensor."""
    for item in range(first, last):
        row, start, size = memory.item_of(dims, item, CHUNK)
{offsets}
        run({pointers}, {numbers}{places}, {given}size, {tokens})


@threads.jit
def serial({pointers}, {numbers}dims, {tokens}):
    """Compute on one thread."""
    pieces({pointers}, {numbers}dims, 0, memory.items(dims, CHUNK), {tokens})


@threads.jit(parallel=True)
def parallel({pointers}, {numbers}dims, {tokens}):
    """Compute on all threads."""
    items = memory.items(dims, CHUNK)
    parts = min(items, PARTS)
    for p in prange(parts):
        pieces({pointers}, {numbers}dims, p * items // parts, (p + 1) * items // parts, {tokens})
'''


@functools.cache
def _digest() -> str:
    """Return a digest of the modules that generated code uses, since Numba's cache doesn't follow calls."""
    texts = [Path(str(module.__file__)).read_bytes() for module in CALLS]
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]


def _literal(value: float) -> str:
    return spelled(value, infinity="np.float32(np.inf)", nan="np.float32(np.nan)", form="np.float32({})")


def _join(names: Sequence[str]) -> str:
    return "".join(f"{name}, " for name in names)


def text(found: Elementwise, inner: Sequence[int]) -> str:
    """Return the module for an expression; ``inner`` has each tensor's step from element to element."""
    expression = found.expression
    outs = [f"out{i}" for i in range(len(found.results))]
    names = [*outs, *(f"in_{name}" for name in expression.tensors)]
    values = {name: f"v_{name}" for name in expression.tensors}
    numbers = {name: f"n_{name}" for name, _ in expression.numbers}
    statements = Statements.of(
        expression, TEMPLATES, _literal, lambda node: {**values, **numbers}[str(node.value)]
    )
    at = [f"at_{name}" for name in names]
    odd = [i for i, step in enumerate(inner) if step not in (0, 1)]

    def element(i: int) -> str:
        if inner[i] == 0:
            return at[i]
        return f"{at[i]} + j" if inner[i] == 1 else f"{at[i]} + j * step{i}"

    before = [f"{value} = np.float32({value})" for value in numbers.values()]
    loop: list[str] = []
    for i, name in enumerate(expression.tensors, len(outs)):
        read = f"{names[i]}, {element(i)}"
        read = f"flag({read})" if name in expression.masks else f"load({read}, token{i})"
        line = f"{values[name]} = {read}"
        (before if inner[i] == 0 else loop).append(line)
    loop += [f"{line.name} = {line.value}" for line in statements.lines]
    loop += [
        f"store({out}, {element(i)}, np.float32({result}), token{i})"
        for i, (out, result) in enumerate(zip(outs, statements.results, strict=True))
    ]
    return MODULE.format(
        title=str(expression).replace("\\", "").replace('"', ""),
        digest=_digest(),
        pointers=", ".join(names),
        numbers=_join(list(numbers.values())),
        places=", ".join(at),
        steps=_join([f"step{i}" for i in odd]),
        given=_join([f"dims[3, {i + 1}]" for i in odd]),
        tokens=", ".join(f"token{i}" for i in range(len(names))),
        before="\n".join(f"    {line}" for line in before),
        loop="\n".join(f"        {line}" for line in loop),
        offsets="\n".join(
            f"        {place} = memory.offset(dims, row, start, {i + 1})" for i, place in enumerate(at)
        ),
    )


@functools.cache
def _signature(numbers: int, *dtypes: torch.dtype) -> Any:
    """Return the kernel's signature: to make one takes longer than the rest of a plan."""
    pointers, floats = [types.int64] * len(dtypes), [types.float64] * numbers
    return types.void(*pointers, *floats, types.int64[:, ::1], *map(type_of, dtypes))


def compiled(found: Elementwise) -> Callable[..., None]:
    """Return the kernel of one call, taking its tensors and its numbers."""
    dims = memory.table(found.results[0].shape, found.strides)
    module = generated("numba", text(found, tuple(map(int, dims[-1, 1:]))))
    # A tensor of bool is read without a token.
    dtypes = tuple(torch.float32 if meta.dtype is torch.bool else meta.dtype for meta in found.tensors)
    kernel = threads.team(
        module.serial, module.parallel, _signature(len(found.numbers), *dtypes), found.elements
    )
    tokens = tuple(TOKENS[dtype] for dtype in dtypes)
    if not found.numbers:
        return lambda tensors, _: kernel(*[t.data_ptr() for t in tensors], dims, *tokens)

    def run(tensors: Sequence[Any], numbers: Sequence[float]) -> None:
        kernel(*[t.data_ptr() for t in tensors], *map(float, numbers), dims, *tokens)

    return run


def plan(problem: Problem) -> Callable[..., Any]:
    """Return a callable for calls like ``problem``."""
    return planned(problem, compiled)


def source(problem: Problem) -> str:
    """Return the code for calls like ``problem``."""
    found = Elementwise.of(problem)
    dims = memory.table(found.results[0].shape, found.strides)
    return text(found, np.array(dims[-1, 1:]).tolist())
