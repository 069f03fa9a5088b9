"""Lines on the CPU: where each begins, sums along one, and the threads that share them out."""

# mypy: ignore-errors

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nxcore_numba import threads
from nxcore_numba.functions import bits, number
from nxcore_numba.half import load

TABLE = types.int64[:, ::1]
"""A row a tensor, the result first: the steps between outer and inner numbers of lines, and entries."""

PARTS = 256
"""The most parts that lines are shared out in."""

RUN = 4096
"""Entries that are added up in float32; the sums of runs are added up in float64."""


@intrinsic
def whole(typingctx, address, index):
    """Return ``address[index]`` of a tensor of int64."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(pointer, [args[1]], inbounds=True))

    return types.int64(types.int64, types.int64), codegen


@threads.jit
def start(table, tensor, line, inner):
    """Return where a line begins in a tensor."""
    return line // inner * table[tensor, 0] + line % inner * table[tensor, 1]


@threads.jit(inline="always")
def ordered(x):
    """Return a whole number that is larger where a float32 is; NaN of positive sign is above all."""
    raw = bits(x)
    return types.int32(raw ^ types.int32(types.int32(raw >> types.int32(31)) & types.int32(0x7FFFFFFF)))


@threads.jit
def largest(x, at, step, length, token):
    """Return the largest entry of a line; NaN need not be the result where there is one."""
    found = types.int32(-(2**31) + 0x7FFFFF)  # minus infinity
    if step == 1:
        for i in range(length):
            found = max(found, ordered(load(x, at + i, token)))
    else:
        for i in range(length):
            found = max(found, ordered(load(x, at + i * step, token)))
    return number(
        types.int32(found ^ types.int32(types.int32(found >> types.int32(31)) & types.int32(0x7FFFFFFF)))
    )


def table_of(found):
    """Return the steps of all tensors as the kernels take them."""
    return np.array(found.steps, dtype=np.int64)
