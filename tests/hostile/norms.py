"""Mutations of the kernels of norms of rows and groups, in every toolkit."""

from tests.hostile.lines import REASSOC
from tests.hostile.mutations import BITS, GROUP, LAST, MASK, STRIDE, Edit, Mutation, one
from tests.hostile.of_cuda import half
from tests.hostile.of_numba import ROUND
from tests.hostile.of_triton import HALF

CUDA = (
    *(
        Mutation(
            BITS,
            file,
            ops,
            tuple(
                Edit(f"of_line(squares, {n}, Add())", half(f"of_line(squares, {n}, Add())"), 2 // len(lanes))
                for n in lanes
            ),
            likely="large_values",
            why="squares are beyond the largest float16",
        )
        for file, ops, lanes in (
            ("norms.cu", LAST, ("a.l.lanes", "lanes")),
            ("group_norm.cu", GROUP, ("a.l.lanes",)),
        )
    ),
    one(STRIDE, "group_norm.cu", GROUP, "line % groups * channels;", "line % groups;"),
)

TRITON = (
    *(
        Mutation(
            BITS,
            file,
            ops,
            tuple(Edit(f"tl.sum({v} * {v}, 1)", f"tl.sum({v} * {v}, 1){HALF}", n) for v in ("found", "v")),
            likely="large_values",
            why="squares are beyond the largest float16",
        )
        for file, ops, n in (("norms.py", LAST, 2), ("group_norm.py", GROUP, 1))
    ),
    one(STRIDE, "group_norm.py", GROUP, "line % groups * channels)", "line % groups)"),
)

NUMBA = (
    one(MASK, "group_norm.py", GROUP, "(x.shape[0] * x.shape[1]))", "(x.shape[0] * x.shape[1]) + 1)"),
    one(STRIDE, "group_norm.py", GROUP, "line % groups * channels", "line % groups", count=2),
    one(MASK, "norms.py", LAST, "found.length, table_of", "found.length + 1, table_of"),
    Mutation(
        BITS,
        "norms.py",
        (*LAST, *GROUP),
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
)
