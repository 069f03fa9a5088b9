"""Mutations of the kernels of lines, in every toolkit."""

from tests.hostile.cross_entropy import LOSSES
from tests.hostile.mutations import AXIS, AXIS_BACK, BITS, LAST, MASK, NAN, STRIDE, TOP, Edit, Mutation, one
from tests.hostile.of_cuda import MISALIGNED, half
from tests.hostile.of_numba import ROUND
from tests.hostile.of_triton import HALF

ALL = (*AXIS, *AXIS_BACK)
"""What is computed along one axis."""

EVERY, SEEN = (*ALL, *LAST), (*AXIS, *LOSSES)

REASSOC = '@threads.jit(fastmath={"contract", "reassoc"})\n'

SUMS = ("of_line(total, l.lanes", "of_line(total, a.l.lanes")

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
        BITS,
        "softmaxes.cu",
        (*ALL, LOSSES[1]),
        tuple(Edit(f"{line}, Add())", half(f"{line}, Add())")) for line in SUMS),
        likely="wide_result",
    ),
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
    Mutation(
        TOP,
        "softmaxes.cu",
        SEEN,
        (
            Edit("above == minus_infinity() ? 0.0f : above;", "0.0f;"),
            Edit("        top = above;\n", "        top = 0.0f;\n"),
        ),
    ),
    one(
        NAN,
        "softmaxes.cu",
        SEEN,
        "power(widen(v[e]) - base)",
        "is_nan(widen(v[e])) ? 0.0f : power(widen(v[e]) - base)",
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
    Mutation(
        BITS,
        "softmaxes.py",
        (*ALL, LOSSES[1]),
        (
            Edit("    return above, total", f"    return above, total{HALF}"),
            Edit("tl.sum(g if LOG else g * v, 1)", f"tl.sum(g if LOG else g * v, 1){HALF}"),
            Edit("total += tl.sum(g, 1)", f"total += tl.sum(g, 1){HALF}"),
        ),
        likely="longer",
    ),
    Mutation(STRIDE, "lines.py", (*EVERY, *LOSSES), (Edit("column[None, :] * entry", "column[None, :]", 2),)),
    Mutation(
        TOP,
        "softmaxes.py",
        SEEN,
        (
            Edit('base = tl.where(above == float("-inf"), 0.0, above)', "base = tl.zeros_like(above)"),
            Edit("    return above, total", "    return tl.zeros_like(above), total"),
        ),
    ),
    one(
        NAN,
        "softmaxes.py",
        SEEN,
        "    above = tl.maximum(top",
        '    x = tl.where(x == x, x, float("-inf"))\n    above = tl.maximum(top',
    ),
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
    one(MASK, "softmaxes.py", ALL, "found.length, log,", "found.length + 1, log,"),
    Mutation(
        BITS,
        "softmaxes.py",
        (*ALL, LOSSES[1]),
        (
            Edit(REASSOC + "def powers(", "@threads.jit\ndef powers("),
            Edit(REASSOC + "def added(", "@threads.jit\ndef added("),
            *(
                Edit(
                    f"            {line}\n",
                    f"            {line}\n            {ROUND.format('total')}\n",
                    count,
                )
                for line, count in (
                    ("total += p", 2),
                    ("total += load(g, at + i, token)", 1),
                    ("total += load(g, at + i, token) * load(y, place + i, token)", 1),
                )
            ),
        ),
        likely="longer",
    ),
    one(STRIDE, "lines.py", ALL, "table[tensor, 1]\n", "table[tensor, 0]\n", likely="middle"),
    one(TOP, "softmaxes.py", AXIS, "top = largest(x, at, pace, length, token)", "top = np.float32(0)"),
    Mutation(
        NAN,
        "softmaxes.py",
        AXIS,
        (
            Edit(" - top)\n", " - top)\n            p = p if p == p else np.float32(0)\n", 2),
            Edit(
                "length, token)\n        total",
                "length, token)\n        top = top if top == top else FLOAT\n        total",
            ),
        ),
    ),
)
