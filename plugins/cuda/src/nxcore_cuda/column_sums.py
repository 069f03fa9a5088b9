"""column_sums: one launch for all matrices, a block for 16 columns of one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, TensorMeta
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.depthwise import ceil_div
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher

THREADS, COLUMNS = 256, 16
FEW, MANY = 16, 112  # matrices of a launch: kernels take 4 KiB of arguments on every driver


def _instance(dtype: torch.dtype, room: int) -> Instance:
    return Instance("column_sums", (TYPES[dtype], room), args=f"column_sums_args<{room}>")


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launches for one problem.

    It is called as ``call(xs)``, ``xs`` a sequence of tensors or one stacked tensor.
    """
    xs, out = problem["xs"], problem.outputs
    if isinstance(xs, TensorMeta):
        sizes, steps = [(xs.shape[1], xs.shape[2])] * xs.shape[0], [xs.strides[1]] * xs.shape[0]
    else:
        sizes, steps = [(x.shape[0], x.shape[1]) for x in xs], [x.strides[0] for x in xs]
    starts = [0, *accumulate(columns for _, columns in sizes)]

    def launch(begin: int, end: int) -> tuple[int, int, int, Launcher]:
        some = sizes[begin:end]
        room = FEW if len(some) <= FEW else MANY
        firsts = [0, *accumulate(ceil_div(columns, COLUMNS) for _, columns in some)]
        rows, columns = zip(*some, strict=True)
        spare = (0,) * (room - len(some))
        lists = (rows, columns, firsts[:-1], starts[begin:end])
        made = Launch(
            _instance(out.dtype, room),
            problem.device,
            firsts[-1],
            THREADS,
            pointers=room + 1,
            layout=f"{room}q{1 + 4 * room}i",
            values=(*steps[begin:end], *spare, len(some), *(n for each in lists for n in (*each, *spare))),
        )
        return begin, end, room - len(some), made

    cuts = [(begin, min(begin + MANY, len(sizes))) for begin in range(0, len(sizes), MANY)]
    launches = [launch(*cut) for cut in cuts if starts[cut[1]] > starts[cut[0]]]

    def call(xs: Any) -> Tensor:
        total = out.empty()
        for begin, end, spare, run in launches:
            run(*xs[begin:end], *(None,) * spare, total)
        return total

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        for room in (FEW, MANY):
            yield _instance(dtype, room)
