"""add: flat memory where all operands lie alike, else one place worked out for each vector or element.

A number, or a scalar in the CPU's memory, is an operand without a pointer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nxcore.plugin import FLOATS, Problem, TensorMeta, alike, broadcast_strides, collapse
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, divides, in_vectors, single, steps, widths
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher


@dataclass(frozen=True)
class Tile:
    """The work of one block.

    Attributes
    ----------
    threads : int
        Of a block.
    items : int
        Vectors of each operand that one thread loads at once.
    """

    threads: int = 256
    items: int = 2


def choose(problem: Problem) -> Tile:
    """Return the tile for a problem."""
    out = problem["out"] or problem.outputs
    vectors = out.nbytes // VECTOR
    if vectors >= 1 << 20:
        return Tile()
    threads = next((t for least, t in ((1 << 16, 256), (1 << 14, 128)) if vectors >= least), 64)
    return Tile(threads, 1)


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    first = choose(problem)
    yield first
    for threads, items in (
        (256, 1),
        (256, 2),
        (256, 4),
        (128, 1),
        (128, 2),
        (128, 4),
        (512, 1),
        (512, 2),
        (64, 1),
    ):
        if Tile(threads, items) != first:
            yield Tile(threads, items)


def _instance(entry: str, types: tuple[str, ...], width: int, chosen: Tile) -> Instance:
    return Instance(entry, (*types, width, chosen.items), source="add", threads=max(chosen.threads, 256))


def as_numbers(problem: Problem) -> Problem:
    """Describe an operand that has no dimensions and lies in the CPU's memory as the number that it is."""
    far = problem.device.type != "cpu"
    args = (
        float if far and isinstance(a, TensorMeta) and a.ndim == 0 and a.device.type == "cpu" else a
        for a in problem.args
    )
    return dataclasses.replace(problem, args=tuple(args))


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(x, y, alpha, out)``; ``out`` may be None, x or y."""
    fresh = problem.outputs
    problem_of_numbers = as_numbers(problem)
    x, y = problem_of_numbers["x"], problem_of_numbers["y"]
    out = problem["out"] or fresh
    chosen = tile or choose(problem)
    operands = [m for m in (x, y) if isinstance(m, TensorMeta)]
    itemsize = max(m.element_size() for m in (*operands, out))
    plain = TYPES[fresh.dtype]
    types = tuple(TYPES[m.dtype] if isinstance(m, TensorMeta) else plain for m in (x, y))
    make = _flat if len(operands) == 2 and alike(out, *operands) else _strided
    run = make(problem, (x, y, out), (*types, plain, TYPES[out.dtype]), itemsize, chosen)

    if len(operands) == 2:

        def call(x: Any, y: Any, alpha: float, out: Tensor | None) -> Tensor:
            if out is None:
                out = fresh.empty()
            run(x, y, out, alpha)
            return out

    elif isinstance(x, TensorMeta):

        def call(x: Any, y: Any, alpha: float, out: Tensor | None) -> Tensor:
            if out is None:
                out = fresh.empty()
            run(x, None, out, alpha * float(y))
            return out

    else:

        def call(x: Any, y: Any, alpha: float, out: Tensor | None) -> Tensor:
            if out is None:
                out = fresh.empty()
            run(None, y, out, alpha, single(float(x)))
            return out

    return call


Run = Callable[..., None]


def _flat(
    problem: Problem, metas: tuple[Any, ...], types: tuple[str, ...], itemsize: int, chosen: Tile
) -> Run:
    n = metas[2].numel()

    def launch(width: int) -> Launcher:
        return Launch(
            _instance("add", types, width, chosen),
            problem.device,
            -(-n // (width * chosen.threads * chosen.items)),
            chosen.threads,
            pointers=3,
            layout="qf",
            values=(n, 1.0),
        )

    guarded = Guarded(launch(VECTOR // itemsize), launch(1))

    def run(x: Tensor, y: Tensor, out: Tensor, alpha: float) -> None:
        if alpha == 1:
            guarded(x, y, out)
        else:
            guarded(x, y, out, tail=(n, single(alpha)))

    return run


def _strided(
    problem: Problem, metas: tuple[Any, ...], types: tuple[str, ...], itemsize: int, chosen: Tile
) -> Run:
    x, y, out = metas
    n = out.numel()
    nowhere = (0,) * out.ndim  # a number is repeated
    places = (broadcast_strides(m, out.shape) if isinstance(m, TensorMeta) else nowhere for m in (x, y))
    sizes, (out_strides, *in_strides) = collapse(out.shape, out.strides, *places)
    repeated = [int(not s or s[-1] == 0) for s in in_strides]

    def launch(width: int) -> tuple[Launcher, tuple[Any, ...]]:
        counted, scaled = in_vectors(width, sizes, (*in_strides, out_strides))
        head = (n // width, *dims(counted), *(step for s in scaled for step in steps(s)), *repeated)
        made = Launch(
            _instance("add_strided", types, width, chosen),
            problem.device,
            -(-n // (width * chosen.threads * chosen.items)),
            chosen.threads,
            pointers=3,
            layout=f"q{DIMS}{3 * STRIDES}2i2f",
            values=(*head, 0.0, 1.0),
        )
        return made, head

    scalar, scalar_head = launch(1)
    whole = (width for width in widths(itemsize) if divides(width, sizes, (out_strides,), in_strides))
    width = next(whole, 1)
    vector, vector_head = launch(width) if width > 1 else (None, ())
    guarded = Guarded(vector, scalar)

    def run(x: Tensor | None, y: Tensor | None, out: Tensor, alpha: float, x_value: float = 0.0) -> None:
        if alpha == 1 and x is not None and y is not None:
            guarded(x, y, out)
        elif vector is not None and not any(t is not None and t.data_ptr() % VECTOR for t in (x, y, out)):
            vector(x, y, out, tail=(*vector_head, x_value, single(alpha)))
        else:  # the numbers that differ between the two launches can't be left to the guard
            scalar(x, y, out, tail=(*scalar_head, x_value, single(alpha)))

    return run


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        types, width = (TYPES[dtype],) * 4, VECTOR // dtype.itemsize
        for entry, steps_wanted in (("add", {1, width}), ("add_strided", {1, 4, width})):
            for items in (1, 2):
                for step in steps_wanted:
                    yield _instance(entry, types, step, Tile(items=items))
