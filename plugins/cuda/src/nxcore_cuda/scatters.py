"""index_add, embedding_dense_backward: threads sum the rows of each result in the order of a stable sort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, TensorMeta
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.layout import VECTOR, single
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher

SPAN = 512
"""Rows that are summed apart where all of them belong to one row; as in scatters.cu."""

THREADS, BLOCKS = 256, 8 * 2112
KEYS = {torch.int32: "int", torch.int64: "long long"}
WHOLE = torch.int64


def _instance(entry: str, *arguments: str | int) -> Instance:
    args = "scatters_places_args" if entry in ("scatters_offsets", "scatters_add") else "scatters_args"
    return Instance(entry, arguments, "scatters", args, threads=THREADS)


def _grid(items: int) -> int:
    return max(min(-(-items // THREADS), BLOCKS), 1)


def summing(
    values: TensorMeta, out: TensorMeta, skipped: int = -1, average: bool = False
) -> Callable[..., None]:
    """Return ``run(values, x, out, order, offsets, alpha)``, which sums rows of a matrix in their order."""
    device, dtype, count, rows = out.device, out.dtype, values.shape[0], out.shape[0]
    width, spans = out.numel() // rows, count // SPAN
    room = TensorMeta((spans, width), (width, 1), torch.float32, device)

    def launches(vector: int) -> tuple[tuple[Launcher, ...], tuple[Any, ...]]:
        rest = (width // vector, rows, count, skipped)
        grids = {"scatters_spans": spans, "scatters_rows": _grid(rows * width // vector)}
        made = (
            Launch(
                _instance(entry, TYPES[dtype], vector),
                device,
                blocks,
                pointers=6,
                layout="4qfi",
                values=(*rest, 1.0, int(average)),
            )
            for entry, blocks in grids.items()
            if blocks
        )
        return tuple(made), rest

    wide = VECTOR // dtype.itemsize
    vectors, scalars = launches(wide) if width % wide == 0 else None, launches(1)

    def run(values: Tensor, x: Tensor | None, out: Tensor, order: Any, offsets: Tensor, alpha: Any) -> None:
        aligned = not any(t.data_ptr() % VECTOR for t in (values, x, out) if t is not None)
        made, rest = vectors if vectors and aligned else scalars
        given = (values, x, out, order, offsets, room.empty() if spans else None)
        for launch in made:
            launch(*given, tail=(*rest, single(alpha), int(average)))

    return run


def sorting(index: TensorMeta, rows: int, device: torch.device) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return ``run(index)``: the order of a stable sort, and where each row of the result begins in it."""
    count = index.numel()
    offsets = TensorMeta((rows + 1,), (1,), WHOLE, device)
    narrow = torch.int32 if rows < 2**31 else WHOLE  # keys of half the bits are sorted in half the time
    find = Launch(
        _instance("scatters_offsets", KEYS[narrow]),
        device,
        -(-(rows + 1) // THREADS),
        pointers=4,
        layout="3qf",
        values=(rows, count, 0, 1.0),
    )

    def run(index: Tensor) -> tuple[Tensor, Tensor]:
        keys, order = torch.sort(index.reshape(-1).to(narrow), stable=True)
        found = offsets.empty()
        find(keys, found, None, None)
        return order, found

    return run


def plan_add(problem: Problem) -> Callable[..., Tensor]:
    """Return the launches of ``index_add`` in the order of a stable sort."""
    out, source, index = problem.outputs, problem["source"], problem["index"]
    sort, total = sorting(index, out.shape[0], out.device), summing(source, out)

    def call(x: Tensor, _: int, index: Tensor, source: Tensor, alpha: Any) -> Tensor:
        result: Tensor = out.empty()
        order, offsets = sort(index)
        total(source, x, result, order, offsets, alpha)
        return result

    return call


def plan_add_fast(problem: Problem) -> Callable[..., Tensor]:
    """Return the launches of ``index_add`` in any order."""
    out, source, index = problem.outputs, problem["source"], problem["index"]
    count, rows = source.shape[0], out.shape[0]
    width = out.numel() // rows

    def launch(vector: int) -> tuple[Launcher, tuple[int, ...]]:
        columns = width // vector
        instance = _instance("scatters_add", vector, KEYS[index.dtype])
        rest = (rows, count, columns)
        grid = _grid(count * columns)
        made = Launch(instance, out.device, grid, pointers=4, layout="3qf", values=(*rest, 1.0))
        return made, rest

    wide = VECTOR // out.dtype.itemsize
    vector, scalar = launch(wide) if width % wide == 0 else None, launch(1)

    def call(x: Tensor, _: int, index: Tensor, source: Tensor, alpha: Any) -> Tensor:
        result: Tensor = out.empty()
        result.copy_(x)
        aligned = (source.data_ptr() | result.data_ptr()) % VECTOR == 0
        made, rest = vector if vector and aligned else scalar
        made(index, None, source, result, tail=(*rest, single(alpha)))
        return result

    return call


def plan_embedding(problem: Problem) -> Callable[..., Tensor]:
    """Return the launches of ``embedding_dense_backward``."""
    out, indices, grad = problem.outputs, problem["indices"], problem["grad_output"]
    rows = TensorMeta.row_major((indices.numel(), out.shape[1]), grad.dtype, grad.device)
    sort = sorting(indices, out.shape[0], out.device)
    total = summing(rows, out, problem["padding_idx"], problem["scale_grad_by_freq"])

    def call(grad_output: Tensor, indices: Tensor, *_: Any) -> Tensor:
        result: Tensor = out.empty()
        order, offsets = sort(indices)
        total(grad_output, None, result, order, offsets, 1.0)
        return result

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for key in KEYS.values():
        yield _instance("scatters_offsets", key)
        for vector in (1, VECTOR // torch.float32.itemsize):
            yield _instance("scatters_add", vector, key)
    for dtype in FLOATS:
        for vector in (1, VECTOR // dtype.itemsize):
            yield _instance("scatters_spans", TYPES[dtype], vector)
            yield _instance("scatters_rows", TYPES[dtype], vector)
