"""Mutations of the kernels of softmaxes, in every toolkit; those of lines stand in ``lines``."""

from tests.hostile.lines import ALL, REASSOC, SEEN
from tests.hostile.mutations import AXIS, BITS, LOSSES, MASK, NAN, TOP, Edit, Mutation, one
from tests.hostile.of_cuda import half
from tests.hostile.of_numba import ROUND
from tests.hostile.of_triton import HALF

SUMS = ("of_line(total, l.lanes", "of_line(total, a.l.lanes")

CUDA = (
    Mutation(
        BITS,
        "softmaxes.cu",
        (*ALL, LOSSES[1]),
        tuple(Edit(f"{line}, Add())", half(f"{line}, Add())")) for line in SUMS),
        likely="wide_result",
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
        "softmaxes.py",
        (*ALL, LOSSES[1]),
        (
            Edit("    return above, total", f"    return above, total{HALF}"),
            Edit("tl.sum(g if LOG else g * v, 1)", f"tl.sum(g if LOG else g * v, 1){HALF}"),
            Edit("total += tl.sum(g, 1)", f"total += tl.sum(g, 1){HALF}"),
        ),
        likely="longer",
    ),
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
