"""softmax_sum: flat memory where candidates and output lie alike, else one place worked out for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nxcore.plugin import FLOATS, Problem, alike, collapse
from nxcore_cuda.candidates import FEW, MANY, SOME, TYPES, Candidates, by_alignment, factors
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, divides, in_vectors, steps, widths
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch

THREADS = 256


@dataclass(frozen=True)
class Tile:
    """How much one block does.

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

    Returns
    -------
    callable
        ``call(xs, logits)``, ``xs`` a sequence of tensors or one stacked tensor.
    """
    xs, (logits, kind), out = problem["xs"], factors(problem), problem.outputs
    found = Candidates.of(xs)
    pointers, layouts = found.room
    n, name = out.numel(), TYPES[out.dtype]
    width = VECTOR // out.element_size()
    sizes, (own, *others) = collapse(out.shape, out.strides, *(x.strides for x in found.layouts))
    layout = f"3q2i{DIMS}{STRIDES}{layouts * STRIDES}"

    def launch(instance: Instance, width: int, elements: int, threads: int, items: int = 1) -> Launch:
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
    """Yield what ordinary calls want."""
    for dtype in FLOATS:
        name, width = TYPES[dtype], VECTOR // dtype.itemsize
        for count in range(1, FEW + 1):
            yield _flat(name, count, width, Tile())
        for count in (1, 2):
            yield _flat(name, count, width, Tile(items=2))
        for room in ((FEW, 1), (FEW, FEW), (MANY, 1), (SOME, SOME), (1, 1)):
            for step in (1, width):
                yield _strided(name, room, step)
