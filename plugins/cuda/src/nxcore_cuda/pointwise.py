"""expressions: flat memory where all tensors lie alike, else one place worked out a vector; generated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nxcore.plugin import Elementwise, Problem, Statements, alike, planned, spelled
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, divides, in_vectors, single, steps, widths
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher

FLAG = "unsigned char"
MEMORY = {**TYPES, torch.bool: FLAG}
"""The type of each dtype's elements in memory."""

PLAIN = ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf")
OWN = ("minimum", "maximum", "sigmoid", "sign")

TEMPLATES = {
    **{name: f"{name}f({{0}})" for name in PLAIN},
    **{name: f"pointwise::{name}({{0}}, {{1}})" for name in OWN[:2]},
    **{name: f"pointwise::{name}({{0}})" for name in OWN[2:]},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in zip(("add", "sub", "mul", "div"), "+-*/", strict=True)},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} && {1}",
    "or": "{0} || {1}",
    "not": "!{0}",
    "neg": "-{0}",
    "abs": "fabsf({0})",
    "indicator": "{0} ? 1.0f : 0.0f",
    "where": "{0} ? {1} : {2}",
    "clamp_min": "{0} < {1} ? {1} : {0}",
    "clamp_max": "{0} > {1} ? {1} : {0}",
    "cast": "{0}",
}
"""Each function in C++; all is float."""

HEADER = "pointwise.cuh"  # named apart, so that a kernel's identity has it

CODE = """\
// {title}
#include "{header}"

struct {name}_args {{
{fields}
}};

namespace {name}_parts {{

__device__ __forceinline__ void compute({parameters}) {{
{statements}
}}

}}  // namespace {name}_parts

{kernel}
"""

FLAT = """\
template <int VECTOR, int ITEMS>
__device__ __forceinline__ void {name}(const {name}_args& a) {{
  const long long step = (long long)blockDim.x * VECTOR;
  const long long first = blockIdx.x * step * ITEMS + threadIdx.x * VECTOR;
  if (first + (ITEMS - 1) * step + VECTOR <= a.n) {{
{vectors}
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {{
{loads}
    }}
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {{
{results}
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) {{
        {elements}
      }}
{stores}
    }}
    return;
  }}
  for (int item = 0; item < ITEMS; ++item) {{
    const long long start = first + item * step;
    for (long long at = start; at < start + VECTOR && at < a.n; ++at) {{
      {tail}
    }}
  }}
}}
"""

STRIDED = """\
template <int VECTOR, int ITEMS>
__device__ __forceinline__ void {name}(const {name}_args& a) {{
  const long long first = (long long)blockIdx.x * blockDim.x * ITEMS + threadIdx.x;
{vectors}
  long long places[ITEMS][{count}];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {{
    const long long index = first + item * blockDim.x;
    if (index < a.n) {{
      locate(index, a.sizes, a.place, places[item]);
{loads}
    }}
  }}
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {{
    if (first + item * blockDim.x < a.n) {{
{results}
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) {{
        {elements}
      }}
{stores}
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Printed(Instance):
    """A kernel whose device function is generated, not in a file.

    Attributes
    ----------
    code : str
        Its source.
    """

    code: str = ""

    @property
    def text(self) -> str:
        """The translation unit."""
        return self.code + self.declaration


def _literal(value: float) -> str:
    return spelled(value, infinity="pointwise::infinity()", nan="pointwise::nan()", form="float({})")


def code(found: Elementwise, repeated: Sequence[bool] | None) -> tuple[str, str]:
    """Return the name and the source of an expression's kernel.

    Parameters
    ----------
    repeated : sequence of bool, optional
        Whether each tensor's innermost stride is 0; None where all lie in memory alike.
    """
    expression = found.expression
    outs = [f"out{i}" for i in range(len(found.results))]
    names = [*outs, *(f"in_{name}" for name in expression.tensors)]
    inputs = names[len(outs) :]
    types = dict(zip(names, (MEMORY[meta.dtype] for meta in found.tensors), strict=True))
    numbers = [f"n_{name}" for name, _ in expression.numbers]
    leaves = dict(
        zip((*expression.tensors, *(n for n, _ in expression.numbers)), (*inputs, *numbers), strict=True)
    )
    statements = Statements.of(expression, TEMPLATES, _literal, lambda node: leaves[str(node.value)])
    kinds = {"condition": "bool", "value": "float", "number": "float"}
    lines = [f"  const {kinds[line.node.kind]} {line.name} = {line.value};" for line in statements.lines]
    lines += [
        f"  {out} = narrow<{types[out]}>({result});"
        for out, result in zip(outs, statements.results, strict=True)
    ]
    parameters = [f"{'bool' if types[t] == FLAG else 'float'} {t}" for t in inputs]
    parameters += [f"float {name}" for name in numbers]
    parameters += [f"{types[out]}& {out}" for out in outs]
    fields = [f"  {'' if name in outs else 'const '}void* {name};" for name in names]
    fields.append("  long long n;")
    if repeated is not None:
        fields += ["  dims sizes;", f"  strides place[{len(names)}];"]
    fields += [f"  float {name};" for name in numbers]
    digest = hashlib.sha256("\n".join([*fields, *parameters, *lines, repr(repeated)]).encode()).hexdigest()[
        :16
    ]
    name = f"pointwise_{digest}"

    def pointer(tensor: str) -> str:
        const = "" if tensor in outs else "const "
        return f"static_cast<{const}{types[tensor]}*>(a.{tensor})"

    place = {
        t: "first + item * step" if repeated is None else f"places[item][{i}]" for i, t in enumerate(names)
    }
    again = dict(zip(names, repeated or [False] * len(names), strict=True))

    def element(tensor: str, value: str) -> str:
        return f"{value} != 0" if types[tensor] == FLAG else f"widen({value})"

    given = [f"a.{n}" for n in numbers]
    passed = ", ".join([*(element(t, f"{t}[item][e]") for t in inputs), *given])
    last = ", ".join([*(element(t, f"{pointer(t)}[at]") for t in inputs), *given])
    template = FLAT if repeated is None else STRIDED
    kernel = template.format(
        name=name,
        count=len(names),
        vectors="\n".join(f"  Vector<{types[t]}, VECTOR> {t}[ITEMS];" for t in inputs),
        loads="\n".join(
            f"      {t}[item] = pointwise::fetch<VECTOR, {str(again[t]).lower()}>({pointer(t)} + {place[t]});"
            for t in inputs
        ),
        results="\n".join(f"      Vector<{types[t]}, VECTOR> {t};" for t in outs),
        elements=f"{name}_parts::compute({passed}, {', '.join(f'{t}[e]' for t in outs)});",
        stores="\n".join(f"      store_streaming({pointer(t)} + {place[t]}, {t});" for t in outs),
        tail=f"{name}_parts::compute({last}, {', '.join(f'{pointer(t)}[at]' for t in outs)});",
    )
    title = str(expression).replace("\\", "").replace("\n", " ")
    return name, CODE.format(
        header=HEADER,
        title=title,
        name=name,
        fields="\n".join(fields),
        parameters=", ".join(parameters),
        statements="\n".join(lines),
        kernel=kernel,
    )


def compiled(found: Elementwise) -> Callable[..., None]:
    """Return the launch of one call, taking its tensors and its numbers."""
    flat = alike(*found.tensors)
    sizes, strides = found.dims
    repeated = None if flat else [not s or s[-1] == 0 for s in strides]
    name, text = code(found, repeated)
    n, device = found.elements, found.results[0].device
    itemsize = max(meta.element_size() for meta in found.tensors)
    threads, items = _tile(max(meta.nbytes for meta in found.results) // VECTOR)
    numbers = len(found.numbers)
    count = len(found.results)

    def launch(width: int) -> tuple[Launcher, tuple[Any, ...]]:
        head: tuple[Any, ...] = (n if flat else n // width,)
        layout = "q"
        if not flat:
            counted, scaled = in_vectors(width, sizes, strides)
            head = (*head, *dims(counted), *(step for s in scaled for step in steps(s)))
            layout += DIMS + len(strides) * STRIDES
        made = Launch(
            Printed(name, (width, items), source="pointwise", threads=256, code=text),
            device,
            -(-n // (width * threads * items)),
            threads,
            pointers=len(found.tensors),
            layout=f"{layout}{numbers}f",
            values=(*head, *(0.0,) * numbers),
        )
        return made, head

    scalar, scalar_head = launch(1)
    if flat:
        width = VECTOR // itemsize
    else:
        whole = (w for w in widths(itemsize) if divides(w, sizes, strides[:count], strides[count:]))
        width = next(whole, 1)
    vector, vector_head = launch(width) if width > 1 else (None, ())
    guarded = Guarded(vector, scalar)
    if not numbers:
        return lambda tensors, _: guarded(*tensors)
    bits = VECTOR - 1

    def run(tensors: Sequence[Any], given: Sequence[float]) -> None:
        tail = tuple(single(float(value)) for value in given)
        if vector is not None and not any(t.data_ptr() & bits for t in tensors):
            vector(*tensors, tail=(*vector_head, *tail))
        else:
            scalar(*tensors, tail=(*scalar_head, *tail))

    return run


def _tile(vectors: int) -> tuple[int, int]:
    """Return the threads of a block, and the vectors of each tensor that a thread has at once."""
    if vectors >= 1 << 20:
        return 256, 2
    return next((t for least, t in ((1 << 16, 256), (1 << 14, 128)) if vectors >= least), 64), 1


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launch for one problem."""
    return planned(problem, compiled)


def source(problem: Problem) -> str:
    """Return the code for one problem."""
    found = Elementwise.of(problem)
    repeated = None if alike(*found.tensors) else [not s or s[-1] == 0 for s in found.dims[1]]
    return code(found, repeated)[1]
