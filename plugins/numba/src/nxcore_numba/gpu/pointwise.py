"""expressions on CUDA: a thread computes one element in each step; generated for each tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nxcore.plugin import Elementwise, Problem, Statements, alike, generated, planned, spelled
from nxcore_numba.dims import DIMS, collapse
from nxcore_numba.gpu.launch import SIMULATED, Launch, blocks_for

FUNCTIONS = np if SIMULATED else math
"""The functions' module; numpy's in the simulator, since Python's raise where a device's are infinite."""

CALLED = ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh")

TEMPLATES = {
    **{name: f"np.float32(functions.{name}({{0}}))" for name in CALLED},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in zip(("add", "sub", "mul", "div"), "+-*/", strict=True)},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} and {1}",
    "or": "{0} or {1}",
    "not": "not {0}",
    "neg": "-{0}",
    "abs": "np.float32(abs({0}))",
    "erf": "np.float32(math.erf({0}))",
    "rsqrt": "np.float32(1) / np.float32(functions.sqrt({0}))",
    "sigmoid": "np.float32(1) / (np.float32(1) + np.float32(functions.exp(-{0})))",
    "sign": "np.float32(1) if {0} > 0 else (np.float32(-1) if {0} < 0 else np.float32(0))",
    "minimum": "{0} if {0} < {1} or {0} != {0} else {1}",
    "maximum": "{0} if {0} > {1} or {0} != {0} else {1}",
    "clamp_min": "{1} if {0} < {1} else {0}",
    "clamp_max": "{1} if {0} > {1} else {0}",
    "indicator": "np.float32(1) if {0} else np.float32(0)",
    "where": "{1} if {0} else {2}",
    "cast": "{0}",
}
"""Each function in Numba; all is float32."""

MODULE = '''"""{title}"""

import math

import numpy as np

from nxcore_numba.gpu.launch import cuda
from nxcore_numba.gpu.pointwise import FUNCTIONS as functions


@cuda.jit
def flat({names}, {numbers}size):
    """Compute memory that all tensors run through alike."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < size:
{flat}
        i += step


@cuda.jit
def strided({names}, {numbers}size, a, b, c, d):
    """Compute four dimensions, each (size, strides of all tensors), ``a`` the outermost."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < size:
        z = i % d[0]
        rest = i // d[0]
        w = rest % c[0]
        rest = rest // c[0]
        v = rest % b[0]
        u = rest // b[0]
{strided}
        i += step
'''


def _literal(value: float) -> str:
    return spelled(value, infinity="np.float32(np.inf)", nan="np.float32(np.nan)", form="np.float32({})")


def text(found: Elementwise) -> str:
    """Return the module for an expression."""
    expression = found.expression
    outs = [f"out{i}" for i in range(len(found.results))]
    names = [*outs, *(f"in_{name}" for name in expression.tensors)]
    leaves = {name: f"v_{name}" for name in expression.tensors}
    numbers = {name: f"n_{name}" for name, _ in expression.numbers}
    statements = Statements.of(
        expression, TEMPLATES, _literal, lambda node: {**leaves, **numbers}[str(node.value)]
    )

    def body(places: Sequence[str]) -> str:
        lines = [
            f"{leaves[name]} = in_{name}[{places[i]}] != 0"
            if name in expression.masks
            else f"{leaves[name]} = np.float32(in_{name}[{places[i]}])"
            for i, name in enumerate(expression.tensors, len(outs))
        ]
        lines += [f"{line.name} = {line.value}" for line in statements.lines]
        stores = zip(outs, statements.results, strict=True)
        lines += [f"{out}[{places[i]}] = {result}" for i, (out, result) in enumerate(stores)]
        return "\n".join(f"        {line}" for line in lines)

    def place(i: int) -> str:
        return f"u * a[{i}] + v * b[{i}] + w * c[{i}] + z * d[{i}]"

    return MODULE.format(
        title=str(expression).replace("\\", "").replace('"', ""),
        names=", ".join(names),
        numbers="".join(f"{name}, " for name in numbers.values()),
        flat=body(["i"] * len(names)),
        strided=body([place(i) for i in range(1, len(names) + 1)]),
    )


def compiled(found: Elementwise) -> Callable[[Sequence[Tensor], Sequence[float]], None]:
    """Return the kernel of one call, taking its tensors and its numbers."""
    extent: list[Any]
    module, size, device = generated("numba-cuda", text(found)), found.elements, found.results[0].device
    if alike(*found.tensors):
        launch, extent = Launch(module.flat, blocks_for(size)), [size]
    else:
        dims = collapse(found.results[0].shape, found.strides)
        filled = [(1,) + (0,) * len(found.tensors)] * (DIMS - len(dims)) + dims
        launch, extent = Launch(module.strided, blocks_for(size)), [size, *filled]

    def run(tensors: Sequence[Tensor], numbers: Sequence[float]) -> None:
        launch(device, *map(_bytes, tensors), *map(np.float32, numbers), *extent)

    return run


def _bytes(tensor: Tensor) -> Tensor:
    """Return a tensor of bool as its bytes: CUDA's interface of arrays has no bool of torch's."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor


def plan(problem: Problem) -> Callable[..., Any]:
    """Return a callable for calls like ``problem``."""
    return planned(problem, compiled)


def source(problem: Problem) -> str:
    """Return the code for calls like ``problem``."""
    return text(Elementwise.of(problem))
