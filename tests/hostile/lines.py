"""Mutations of the kernels of lines, in every toolkit."""

from tests.hostile.cross_entropy import LOSSES
from tests.hostile.mutations import AXIS, AXIS_BACK, BITS, LAST, MASK, STRIDE, Edit, Mutation, one
from tests.hostile.of_cuda import MISALIGNED, half
from tests.hostile.of_numba import ROUND
from tests.hostile.of_triton import HALF

ALL = (*AXIS, *AXIS_BACK)
"""What is computed along one axis."""

EVERY, SEEN = (*ALL, *LAST), (*AXIS, *LOSSES)

REASSOC = '@threads.jit(fastmath={"contract", "reassoc"})\n'

CUDA = (
    Mutation(
        BITS,
        "norms.cu",
        LAST,
        tuple(
            Edit(f"of_line(squares, {lanes}, Add())", half(f"of_line(squares, {lanes}, Add())"))
            for lanes in ("a.l.lanes", "lanes")
        ),
        likely="large_values",
        why="squares are beyond the largest float16",
    ),
    one(MASK, "lines.cuh", EVERY, "return line < l.count ? l.length : 0;", "return l.length;"),
    Mutation(
        STRIDE,
        "lines.cuh",
        (*EVERY, *LOSSES),
        (
            Edit("one[0] = line[i * entry]", "one[0] = line[i]"),
            Edit("line[i * entry] = values", "line[i] = values"),
        ),
        raises=MISALIGNED,
    ),
)

TRITON = (
    Mutation(
        BITS,
        "norms.py",
        LAST,
        tuple(Edit(f"tl.sum({v} * {v}, 1)", f"tl.sum({v} * {v}, 1){HALF}") for v in ("found", "v")),
        likely="large_values",
        why="squares are beyond the largest float16",
    ),
    one(MASK, "lines.py", EVERY, "line < count", "line <= count"),
    Mutation(STRIDE, "lines.py", (*EVERY, *LOSSES), (Edit("column[None, :] * entry", "column[None, :]", 2),)),
)

NUMBA = (
    one(MASK, "norms.py", LAST, "found.length, table_of", "found.length + 1, table_of"),
    Mutation(
        BITS,
        "norms.py",
        LAST,
        (
            Edit(REASSOC + "def spreads(", "@threads.jit\ndef spreads("),
            Edit("squares += v * v\n", f"squares += v * v\n            {ROUND.format('squares')}\n", 2),
        ),
        likely="large_values",
    ),
    Mutation(
        STRIDE,
        "norms.py",
        LAST,
        (
            Edit("start(table, 0, line, inner), table[1, 2]", "start(table, 0, line, inner), table[0, 2]"),
            Edit("step, pace = table[1, 2], table[2, 2]", "step, pace = table[1, 2], table[0, 2]"),
        ),
    ),
    one(STRIDE, "lines.py", ALL, "table[tensor, 1]\n", "table[tensor, 0]\n", likely="middle"),
)
