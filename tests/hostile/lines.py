"""Mutations of the kernels of lines, in every toolkit."""

from tests.hostile.cross_entropy import LOSSES
from tests.hostile.mutations import AXIS, AXIS_BACK, GROUP, LAST, MASK, STRIDE, Edit, Mutation, one
from tests.hostile.of_cuda import MISALIGNED

ALL = (*AXIS, *AXIS_BACK)
"""What is computed along one axis."""

EVERY, SEEN = (*ALL, *LAST), (*AXIS, *LOSSES)

REASSOC = '@threads.jit(fastmath={"contract", "reassoc"})\n'

CUDA = (
    one(MASK, "lines.cuh", (*EVERY, *GROUP), "return line < l.count ? l.length : 0;", "return l.length;"),
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
    one(MASK, "lines.py", (*EVERY, *GROUP), "line < count", "line <= count"),
    Mutation(STRIDE, "lines.py", (*EVERY, *LOSSES), (Edit("column[None, :] * entry", "column[None, :]", 2),)),
)

NUMBA = (one(STRIDE, "lines.py", ALL, "table[tensor, 1]\n", "table[tensor, 0]\n", likely="middle"),)
