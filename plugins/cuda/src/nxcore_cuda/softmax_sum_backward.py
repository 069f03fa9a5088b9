"""softmax_sum_backward: one launch reads grad and each candidate once and writes all that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, TensorMeta, alike, collapse
from nxcore_cuda.candidates import (
    FEW,
    MANY,
    SOME,
    TYPES,
    Candidates,
    by_alignment,
    factors,
    gradient,
    wanted,
)
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, divides, in_vectors, steps, widths
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, ticket

THREADS = 256
WARP = 32

ONE_WAVE = 396
FILL = 264  # two blocks for each of 132 multiprocessors: the fastest of those tried for large tensors
"""Blocks that run at once on a large GPU: three for each of 132 multiprocessors.

A constant, not the device's own count, so that a sum has the same bits on every device.
"""

MOST = 1056  # blocks, each of which leaves its shares for the last one to add up


@dataclass(frozen=True)
class Tile:
    """How the work is split.

    Attributes
    ----------
    blocks : int
        Of the grid.
    threads : int
        Of a block.
    resident : int
        Blocks that a multiprocessor is to hold, for the compiler; 0 leaves it the choice.
    streaming : bool
        Candidates are read as what nobody reads soon again.
    """

    blocks: int
    threads: int = THREADS
    resident: int = 3
    streaming: bool = False


def _blocks(vectors: int, threads: int) -> int:
    """Return a number of blocks of which each has as many vectors as the others, or nearly."""
    chunks = -(-vectors // threads)
    wave = ONE_WAVE * THREADS // threads
    if chunks >= 8 * wave:
        return FILL * THREADS // threads
    return -(-chunks // -(-chunks // wave))


def _resident(count: int) -> int:
    """Return how many blocks' registers fit, at 9 for each candidate and 16 for the rest."""
    return next(r for most, r in ((5, 4), (9, 3), (FEW, 2)) if count <= most)


def choose(problem: Problem) -> Tile:
    """Return the tile for a problem of flat memory."""
    grad = problem["grad"]
    count = Candidates.of(problem["xs"]).count
    return Tile(_blocks(-(-grad.nbytes // VECTOR), THREADS), resident=_resident(count))


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    vectors = -(-problem["grad"].nbytes // VECTOR)
    first = choose(problem)
    found = [first, replace(first, streaming=True)]
    for threads in (128, 512):
        resident = max(first.resident * THREADS // threads, 1)
        found.append(Tile(_blocks(vectors, threads), threads, resident))
    for blocks in (264, 396, 528, 792, 1584, 2112, 4224):
        found.append(replace(first, blocks=min(blocks, -(-vectors // THREADS))))  # noqa: PERF401
    found += [replace(first, resident=resident) for resident in (first.resident - 1, 0) if resident >= 0]
    yield from dict.fromkeys(found)


def _flat(name: str, count: int, width: int, chosen: Tile) -> Instance:
    return Instance(
        "softmax_sum_backward",
        (name, count, width, chosen.streaming),
        args=f"softmax_sum_backward_args<{FEW}, 1>",
        threads=chosen.threads,
        blocks=chosen.resident,
    )


def _strided(name: str, grad: str, room: tuple[int, int], width: int) -> Instance:
    args = f"softmax_sum_backward_args<{room[0]}, {room[1]}>"
    source = "softmax_sum_backward"
    return Instance("softmax_sum_backward_strided", (name, grad, *room, width), source=source, args=args)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Any, Any]]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(grad, xs, logits, output_mask)``, which returns ``(xs_grad, logits_grad)``.
    """
    grad, xs, (logits, kind) = problem["grad"], problem["xs"], factors(problem)
    xs_grad, logits_grad = problem.outputs
    found = Candidates.of(xs)
    pointers, layouts = found.room
    one = found.each[0]
    count, n, name, of_grad = found.count, grad.numel(), TYPES[one.dtype], TYPES[grad.dtype]
    itemsize = max(one.element_size(), grad.element_size())
    out, out_step = gradient(problem)
    _, dotted = wanted(problem)
    operands = (out, grad, *found.layouts)
    sizes, strides = collapse(grad.shape, *(m.strides for m in operands))
    own, grad_strides, *x_strides = strides
    layout = f"4q2iq{DIMS}{2 * STRIDES}{layouts * STRIDES}"

    def launch(instance: Instance, elements: int, blocks: int, threads: int, shared: int) -> Launch:
        # Flat memory is numbered by elements, and the sizes aren't read.
        counted, scaled = in_vectors(n // elements, sizes, strides)
        repeated = bool(grad_strides) and grad_strides[-1] == 0
        head = (elements, found.step, out_step, logits.strides[0], count, kind, int(repeated))
        spare = [()] * (layouts - len(x_strides))
        places = [step for s in (*scaled, *spare) for step in steps(s)]
        return Launch(
            instance,
            problem.device,
            blocks,
            threads,
            shared=4 * shared,
            pointers=5 + 2 * pointers,
            layout=layout,
            values=(*head, *dims(counted), *places),
        )

    lists = count * (1 + THREADS // WARP)
    blocks = min(_blocks(n, THREADS), MOST)
    scalar = launch(_strided(name, of_grad, found.room, 1), n, blocks, THREADS, lists)
    vector = None
    fitting = [w for w in widths(itemsize) if found.step % w == 0 and out_step % w == 0]
    loaded, repeatable = ((own, *x_strides) if dotted else (own,)), (grad_strides,)
    flat = count <= FEW and name == of_grad and alike(*(operands if dotted else operands[:2]))
    if flat and VECTOR // itemsize in fitting:
        chosen, width = tile or choose(problem), VECTOR // itemsize
        instance, shared = _flat(name, count, width, chosen), chosen.threads + FEW
        vector = launch(instance, n, chosen.blocks, chosen.threads, shared)
        blocks = max(blocks, chosen.blocks)
    elif width := next((w for w in fitting if divides(w, sizes, loaded, repeatable)), 0):
        fewer = min(_blocks(n // width, THREADS), MOST)
        instance = _strided(name, of_grad, found.room, width)
        vector = launch(instance, n // width, fewer, THREADS, lists)
        blocks = max(blocks, fewer)
    run = by_alignment(Guarded(vector, scalar), vector, scalar)
    shares = TensorMeta((blocks, count), (count, 1), torch.float32, problem.device)
    repeats = count if pointers > 1 else 1
    spare = (None,) * (pointers - min(count, pointers))

    def call(grad: Tensor, xs: Any, logits: Tensor, output_mask: Any) -> tuple[Any, Any]:  # noqa: ARG001
        result: Any
        if isinstance(xs, Tensor):
            given = (xs,) * repeats
            result = None if xs_grad is None else xs_grad.empty()
            outs = (result,) * repeats
        else:
            given = xs
            result = outs = tuple(None if m is None else m.empty() for m in xs_grad)
        last, work, arrivals = None, None, None
        if dotted:
            last, work, arrivals = logits_grad.empty(), shares.empty(), ticket(problem.device)
        run(logits, grad, logits, last, work, arrivals, *given, *spare, *outs, *spare)
        return result, last

    return call


def instances() -> Iterator[Instance]:
    """Yield what ordinary calls want."""
    for dtype in FLOATS:
        name, width = TYPES[dtype], VECTOR // dtype.itemsize
        for count in range(1, FEW + 1):
            yield _flat(name, count, width, Tile(0, resident=_resident(count)))
        for room in ((FEW, 1), (FEW, FEW), (MANY, 1), (SOME, SOME), (1, 1)):
            for step in (1, width):
                yield _strided(name, name, room, step)
