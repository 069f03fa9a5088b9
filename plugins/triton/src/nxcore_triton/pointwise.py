"""expressions: flat memory where all tensors lie alike, else tiles of rows and columns; generated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nxcore.plugin import Elementwise, Problem, Statements, alike, generated, planned, spelled
from nxcore_triton import tile
from nxcore_triton.launch import Launch

CALLED = ("expm1", "log1p", "tanh", "sigmoid", "sign", "minimum", "maximum")

TEMPLATES = {
    **{name: f"tl.{name}({{0}})" for name in ("exp", "log", "rsqrt", "sin", "cos", "erf", "abs")},
    **{name: f"functions.{name}({{0}})" for name in CALLED[:5]},
    **{name: f"functions.{name}({{0}}, {{1}})" for name in CALLED[5:]},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in zip(("add", "sub", "mul"), "+-*", strict=True)},
    # Triton's own / and sqrt may be two units in the last place off: x / x isn't 1 then.
    "div": "tl.div_rn({0}, {1})",
    "sqrt": "tl.sqrt_rn({0})",
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "~({0})",
    "neg": "{0} * -1.0",  # Triton computes -x as 0 - x, which is 0 for 0
    "indicator": "tl.where({0}, 1.0, 0.0)",
    "where": "tl.where({0}, {1}, {2})",
    "clamp_min": "tl.where({0} < {1}, {1}, {0})",
    "clamp_max": "tl.where({0} > {1}, {1}, {0})",
    "cast": "{0}",
}
"""Each function in Triton; all is float32."""

MODULE = '''"""{title}"""

import triton
import triton.language as tl

from nxcore_triton import functions
from nxcore_triton.index import offset
from nxcore_triton.rounding import narrow, widen


@triton.jit
def compute({values}):
    """Return the results for a block of elements."""
{statements}
    return {results}


@triton.jit(do_not_specialize=[{quoted}])
def flat({pointers}, {numbers}n, BLOCK: tl.constexpr):
    """Compute one block of memory that all tensors run through alike."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
{flat_loads}
    {assigned} = compute({given})
{flat_stores}


@triton.jit(do_not_specialize=[{quoted}])
def tiles(
    {pointers},
    {numbers}
    rows,
    columns,
    sizes,
    {strides},
    {steps},
    RANK: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute one tile; RANK dimensions make up the rows."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    across = tl.cdiv(columns, COLUMNS)
    row = program // across * ROWS + tl.arange(0, ROWS)
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    column = column.to(tl.int64)
{places}
{tile_loads}
    {assigned} = compute({given})
{tile_stores}
'''


def _literal(value: float) -> str:
    if value == 0 and math.copysign(1, value) < 0:  # Triton makes every constant that equals 0 a 0
        return "tl.full([], -2147483648, tl.int32).to(tl.float32, bitcast=True)"
    return spelled(value, infinity='float("inf")', nan='float("nan")')


def text(found: Elementwise) -> str:
    """Return the module for an expression."""
    expression = found.expression
    outs = [f"out{i}" for i in range(len(found.results))]
    names = [*outs, *(f"in_{name}" for name in expression.tensors)]
    values = [f"v_{name}" for name in expression.tensors]
    numbers = [f"n_{name}" for name, _ in expression.numbers]
    leaves = dict(
        zip((*expression.tensors, *(n for n, _ in expression.numbers)), (*values, *numbers), strict=True)
    )
    statements = Statements.of(expression, TEMPLATES, _literal, lambda node: leaves[str(node.value)])
    assigned = [f"result{i}" for i in range(len(outs))]

    def loads(place: str) -> str:
        read = zip(expression.tensors, values, names[len(outs) :], strict=True)
        return "\n".join(
            f"    {value} = tl.load({name} + {place.format(name)}, mask, other=True)"
            if tensor in expression.masks
            else f"    {value} = widen(tl.load({name} + {place.format(name)}, mask, other=1.0))"
            for tensor, value, name in read
        )

    def stores(place: str) -> str:
        return "\n".join(
            f"    tl.store({out} + {place.format(out)}, narrow({result}, {out}.dtype.element_ty), mask)"
            for out, result in zip(outs, assigned, strict=True)
        )

    return MODULE.format(
        title=str(expression).replace("\\", "").replace('"', ""),
        values=", ".join((*values, *numbers)),
        given=", ".join((*values, *numbers)),
        statements="\n".join(f"    {line.name} = {line.value}" for line in statements.lines) or "    pass",
        results=", ".join(statements.results),
        assigned=", ".join(assigned),
        quoted=", ".join(f'"{name}"' for name in numbers),
        pointers=", ".join(names),
        numbers="".join(f"{name}, " for name in numbers),
        strides=", ".join(f"{name}_strides" for name in names),
        steps=", ".join(f"{name}_column" for name in names),
        flat_loads=loads("at"),
        flat_stores=stores("at"),
        places="\n".join(
            f"    {name}_at = offset(row, sizes, {name}_strides, RANK)[:, None]"
            f" + (column * {name}_column)[None, :]"
            for name in names
        ),
        tile_loads=loads("{}_at"),
        tile_stores=stores("{}_at"),
    )


def compiled(found: Elementwise) -> Callable[..., None]:
    """Return the launch of one call, taking its tensors and its numbers."""
    module = generated("triton", text(found))
    device, n = found.results[0].device, found.elements
    itemsize = max(meta.element_size() for meta in found.tensors)
    block, warps = tile.flat(n, itemsize)
    fixed: tuple[Any, ...]
    if alike(*found.tensors):
        launch = Launch(module.flat, (tile.cdiv(n, block),), device, warps, BLOCK=block)
        fixed = (n,)
    else:
        sizes, strides = found.dims
        sizes, strides = sizes or (1,), tuple(s or (0,) for s in strides)
        columns, rows = sizes[-1], n // sizes[-1]
        across = min(tile.power_of_two(columns), block)
        down = min(block // across, tile.power_of_two(rows))
        grid = tile.cdiv(columns, across) * tile.cdiv(rows, down)
        launch = Launch(
            module.tiles,
            (grid,),
            device,
            warps,
            RANK=len(sizes) - 1,
            WIDE=n >= 2**30,  # numbers of rows and columns stay below, rounded up to whole tiles
            ROWS=down,
            COLUMNS=across,
        )
        # Triton takes no empty tuple; with RANK 0 this one isn't read.
        outer = (s[:-1] or (0,) for s in strides)
        fixed = (rows, columns, sizes[:-1] or (1,), *outer, *(s[-1] for s in strides))

    def run(tensors: Sequence[Any], numbers: Sequence[float]) -> None:
        launch(tensors, *tensors, *map(float, numbers), *fixed)

    return run


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launch for one problem."""
    return planned(problem, compiled)


def source(problem: Problem) -> str:
    """Return the code for one problem."""
    return text(Elementwise.of(problem))
