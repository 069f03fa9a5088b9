"""softmax_sum: weights in every warp, then one pass; flat memory where all tensors lie alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, TensorMeta, alike, collapse
from nxcore_cuda.candidates import FEW, MANY, SOME, TYPES, Candidates, by_alignment, factors, gradient, wanted
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, divides, in_vectors, steps, widths
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher, ticket

THREADS = 256


@dataclass(frozen=True)
class Tile:
    """The work of one block.

    Attributes
    ----------
    threads : int
        Of a block.
    items : int
        Vectors of each candidate that one thread loads at once.
    blocks : int
        Blocks that a multiprocessor is to hold, for the compiler; 0 leaves it the choice.
    """

    threads: int = THREADS
    items: int = 1
    blocks: int = 0


def choose(problem: Problem) -> Tile:
    """Return the tile for a problem of flat memory."""
    out = problem.outputs
    vectors = out.nbytes // VECTOR
    threads = next((t for least, t in ((1 << 16, 256), (1 << 14, 128)) if vectors >= least), 64)
    count = Candidates.of(problem["xs"]).count
    return Tile(threads, 2 if count <= 2 and vectors >= 1 << 18 else 1)


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    found = [choose(problem), *(Tile(threads) for threads in (256, 128, 512))]
    if Candidates.of(problem["xs"]).count <= FEW // 2:
        found += [Tile(256, 2), Tile(128, 2), Tile(256, blocks=4)]
    yield from dict.fromkeys((*found, Tile(256, blocks=2)))


def _flat(name: str, count: int, width: int, chosen: Tile) -> Instance:
    return Instance(
        "softmax_sum",
        (name, count, width, chosen.items),
        args=f"softmax_sum_args<{FEW}, 1>",
        threads=max(chosen.threads, THREADS),
        blocks=chosen.blocks,
    )


def _strided(name: str, room: tuple[int, int], width: int) -> Instance:
    args = f"softmax_sum_args<{room[0]}, {room[1]}>"
    return Instance("softmax_sum_strided", (name, *room, width), source="softmax_sum", args=args)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    It is called as ``call(xs, logits)``, ``xs`` a sequence of tensors or one stacked tensor.
    """
    xs, (logits, kind), out = problem["xs"], factors(problem), problem.outputs
    found = Candidates.of(xs)
    pointers, layouts = found.room
    n, name = out.numel(), TYPES[out.dtype]
    width = VECTOR // out.element_size()
    sizes, (own, *others) = collapse(out.shape, out.strides, *(x.strides for x in found.layouts))
    layout = f"3q2i{DIMS}{STRIDES}{layouts * STRIDES}"

    def launch(instance: Instance, width: int, elements: int, threads: int, items: int = 1) -> Launcher:
        # Flat memory is numbered by elements, and the sizes aren't read.
        counted, (out_strides, *x_strides) = in_vectors(n // elements, sizes, (own, *others))
        spare = [()] * (layouts - len(x_strides))
        places = [step for s in (out_strides, *x_strides, *spare) for step in steps(s)]
        grid = -(-n // (width * threads * items))
        head = (elements, found.step, logits.strides[0], found.count, kind)
        return Launch(
            instance,
            problem.device,
            grid,
            threads,
            shared=4 * found.count,
            pointers=pointers + 2,
            layout=layout,
            values=(*head, *dims(counted), *places),
        )

    scalar = launch(_strided(name, found.room, 1), 1, n, THREADS)
    vector = None
    if found.step % width == 0 and n >= width and found.count <= FEW and alike(out, *found.layouts):
        chosen = tile or choose(problem)
        vector = launch(_flat(name, found.count, width, chosen), width, n, chosen.threads, chosen.items)
    else:
        whole = (w for w in widths(out.element_size()) if found.step % w == 0)
        width = next((w for w in whole if divides(w, sizes, (own, *others))), 1)
        if width > 1:
            vector = launch(_strided(name, found.room, width), width, n // width, THREADS)
    run = by_alignment(Guarded(vector, scalar), vector, scalar)
    repeats = found.count if pointers > 1 else 1
    spare = (None,) * (pointers - min(found.count, pointers))

    def call(xs: Any, logits: Tensor) -> Tensor:
        given = (xs,) * repeats if isinstance(xs, Tensor) else xs
        blended = out.empty()
        run(logits, *given, *spare, logits, blended)
        return blended

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        name, width = TYPES[dtype], VECTOR // dtype.itemsize
        for count in range(1, FEW + 1):
            yield _flat(name, count, width, Tile())
        for count in (1, 2):
            yield _flat(name, count, width, Tile(items=2))
        for room in ((FEW, 1), (FEW, FEW), (MANY, 1), (SOME, SOME), (1, 1)):
            for step in (1, width):
                yield _strided(name, room, step)
    yield from _instances_backward()


THREADS_BACKWARD = 256
WARP = 32

ONE_WAVE = 396
FILL = 264  # two blocks for each of 132 multiprocessors: the fastest of those tried for large tensors
"""Blocks that run at once on a large GPU: three for each of 132 multiprocessors.

A constant, not the device's own count, so that a sum has the same bits on every device.
"""

MOST = 1056  # blocks, each of which leaves its shares for the last one to add up


@dataclass(frozen=True)
class Sums:
    """The split of the work.

    Attributes
    ----------
    blocks : int
        Of the grid.
    threads : int
        Of a block.
    resident : int
        Blocks that a multiprocessor is to hold, for the compiler; 0 leaves it the choice.
    streaming : bool
        Candidates are read as data that is not read again soon.
    """

    blocks: int
    threads: int = THREADS_BACKWARD
    resident: int = 3
    streaming: bool = False


def _blocks(vectors: int, threads: int) -> int:
    """Return a number of blocks of which each has as many vectors as the others, or nearly."""
    chunks = -(-vectors // threads)
    wave = ONE_WAVE * THREADS_BACKWARD // threads
    if chunks >= 8 * wave:
        return FILL * THREADS_BACKWARD // threads
    return -(-chunks // -(-chunks // wave))


def _resident(count: int) -> int:
    """Return how many blocks' registers fit, at 9 for each candidate and 16 for the rest."""
    return next(r for most, r in ((5, 4), (9, 3), (FEW, 2)) if count <= most)


def choose_backward(problem: Problem) -> Sums:
    """Return the tile for a problem of flat memory."""
    grad = problem["grad"]
    count = Candidates.of(problem["xs"]).count
    return Sums(_blocks(-(-grad.nbytes // VECTOR), THREADS_BACKWARD), resident=_resident(count))


def sweep_backward(problem: Problem) -> Iterator[Sums]:
    """Yield the tiles worth timing."""
    vectors = -(-problem["grad"].nbytes // VECTOR)
    first = choose_backward(problem)
    found = [first, replace(first, streaming=True)]
    for threads in (128, 512):
        resident = max(first.resident * THREADS_BACKWARD // threads, 1)
        found.append(Sums(_blocks(vectors, threads), threads, resident))
    grids = (264, 396, 528, 792, 1584, 2112, 4224)
    found += [replace(first, blocks=min(blocks, -(-vectors // THREADS_BACKWARD))) for blocks in grids]
    found += [replace(first, resident=resident) for resident in (first.resident - 1, 0) if resident >= 0]
    yield from dict.fromkeys(found)


def _flat_backward(name: str, count: int, width: int, chosen: Sums) -> Instance:
    return Instance(
        "softmax_sum_backward",
        (name, count, width, chosen.streaming),
        args=f"softmax_sum_backward_args<{FEW}, 1>",
        threads=chosen.threads,
        blocks=chosen.resident,
    )


def _strided_backward(name: str, grad: str, room: tuple[int, int], width: int) -> Instance:
    args = f"softmax_sum_backward_args<{room[0]}, {room[1]}>"
    source = "softmax_sum_backward"
    return Instance("softmax_sum_backward_strided", (name, grad, *room, width), source=source, args=args)


def plan_backward(problem: Problem, tile: Sums | None = None) -> Callable[..., tuple[Any, Any]]:
    """Return the launch for one problem.

    It is called as ``call(grad, xs, logits, output_mask)``, which returns ``(xs_grad, logits_grad)``.
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

    def launch(instance: Instance, elements: int, blocks: int, threads: int, shared: int) -> Launcher:
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

    lists = count * (1 + THREADS_BACKWARD // WARP)
    blocks = min(_blocks(n, THREADS_BACKWARD), MOST)
    scalar = launch(_strided_backward(name, of_grad, found.room, 1), n, blocks, THREADS_BACKWARD, lists)
    vector = None
    fitting = [w for w in widths(itemsize) if found.step % w == 0 and out_step % w == 0]
    loaded, repeatable = ((own, *x_strides) if dotted else (own,)), (grad_strides,)
    flat = count <= FEW and name == of_grad and alike(*(operands if dotted else operands[:2]))
    if flat and VECTOR // itemsize in fitting:
        chosen, width = tile or choose_backward(problem), VECTOR // itemsize
        instance, shared = _flat_backward(name, count, width, chosen), chosen.threads + FEW
        vector = launch(instance, n, chosen.blocks, chosen.threads, shared)
        blocks = max(blocks, chosen.blocks)
    elif width := next((w for w in fitting if divides(w, sizes, loaded, repeatable)), 0):
        fewer = min(_blocks(n // width, THREADS_BACKWARD), MOST)
        instance = _strided_backward(name, of_grad, found.room, width)
        vector = launch(instance, n // width, fewer, THREADS_BACKWARD, lists)
        blocks = max(blocks, fewer)
    run = by_alignment(Guarded(vector, scalar), vector, scalar)
    shares = TensorMeta((blocks, count), (count, 1), torch.float32, problem.device)
    repeats = count if pointers > 1 else 1
    spare = (None,) * (pointers - min(count, pointers))

    def call(grad: Tensor, xs: Any, logits: Tensor, output_mask: Any) -> tuple[Any, Any]:
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


def _instances_backward() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        name, width = TYPES[dtype], VECTOR // dtype.itemsize
        for count in range(1, FEW + 1):
            yield _flat_backward(name, count, width, Sums(0, resident=_resident(count)))
        for room in ((FEW, 1), (FEW, FEW), (MANY, 1), (SOME, SOME), (1, 1)):
            for step in (1, width):
                yield _strided_backward(name, name, room, step)
