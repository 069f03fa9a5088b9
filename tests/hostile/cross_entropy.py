"""Mutations of the kernels of cross_entropy, in every toolkit; those of lines stand in ``lines``."""

from tests.hostile.mutations import BITS, LOSSES, MASK, NAN, STRIDE, TOP, Edit, Mutation, one
from tests.hostile.of_cuda import half
from tests.hostile.of_numba import ROUND
from tests.hostile.of_triton import HALF

IGNORED = {"likely": "ignored", "why": "rows that are to be ignored have a loss"}

CUDA = (
    Mutation(
        MASK,
        "cross_entropy.cu",
        LOSSES,
        (
            Edit("if (t.kept && t.right) {\n    const", "if (t.right) {\n    const"),
            Edit("if (t.kept) {", "if (t.right) {"),
        ),
        **IGNORED,
    ),
    one(
        BITS,
        "cross_entropy.cu",
        LOSSES[:1],
        "of_line(lean, a.l.lanes, Add())",
        half("of_line(lean, a.l.lanes, Add())"),
        likely="longer",
    ),
)

LEAN = "length, WEIGHTED) * distance, 1)"

TRITON = (
    one(MASK, "cross_entropy.py", LOSSES, "there & (found != ignored)", "there", **IGNORED),
    one(BITS, "cross_entropy.py", LOSSES[:1], LEAN, LEAN + HALF, likely="longer"),
)

ADDED = "            total += exp(load(x, at + i, token) - top)\n"
LARGEST = "top = largest(x, at, step, length, token)\n"
FINITE = "top = top if top == top else np.float32(0)\n"
KEPT = "@threads.jit\ndef kept(x):\n    return x if x == x else np.float32(0.5)\n\n\n"

NUMBA = (
    Mutation(
        MASK,
        "cross_entropy.py",
        LOSSES,
        (
            Edit("        elif t != ignored:\n", "        else:\n"),
            Edit("0.0, 0.0\n        if t != ignored:\n", "0.0, 0.0\n        if True:\n"),
        ),
        **IGNORED,
    ),
    Mutation(
        BITS,
        "cross_entropy.py",
        LOSSES[:1],
        (
            Edit('@threads.jit(fastmath={"contract", "reassoc"})\ndef summed(', "@threads.jit\ndef summed("),
            Edit(ADDED, f"{ADDED}            {ROUND.format('total')}\n"),
        ),
        likely="longer",
    ),
    one(STRIDE, "lines.py", LOSSES, "table[tensor, 1]\n", "table[tensor, 0]\n", raises="IndexError"),
    one(TOP, "cross_entropy.py", LOSSES, LARGEST, "top = np.float32(0)\n", count=2),
    Mutation(
        NAN,
        "cross_entropy.py",
        LOSSES,
        (
            Edit(f"            {LARGEST}", f"            {LARGEST}            {FINITE}"),
            Edit(f"inner)\n        {LARGEST}", f"inner)\n        {LARGEST}        {FINITE}"),
            Edit(
                ADDED,
                ADDED.replace("exp(load(x, at + i, token) - top)", "kept(exp(load(x, at + i, token) - top))"),
            ),
            Edit("np.float64(powers(", "kept(powers("),
            Edit("@threads.jit\ndef part(", KEPT + "@threads.jit\ndef part("),
        ),
    ),
)
