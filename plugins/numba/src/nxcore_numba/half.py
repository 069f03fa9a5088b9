"""Elements in memory: float32, float16 and bfloat16 read and written as float32, by raw address.

Numba has no arithmetic for half types on the CPU, so an element's type travels as a token, a number of
a stand-in type: float32 for float32, uint16 for float16, int16 for bfloat16, float64 for float64. A raw
address instead of an array lets one compiled signature serve every shape and count of tensors.
"""

# mypy: ignore-errors

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nxcore_numba import threads

FLOAT = np.float32(0)
"""The token of float32, and its zero."""

TOKENS = {
    torch.float32: FLOAT,
    torch.float16: np.uint16(0),
    torch.bfloat16: np.int16(0),
    torch.float64: np.float64(0),
}
"""The stand-in of each element type."""

KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
"""The number of each element type, for ``load_any``."""

_F32, _I16, _I32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)
_MEMORY = {
    types.float32: _F32,
    types.uint16: ir.HalfType(),
    types.int16: _I16,
    types.float64: ir.DoubleType(),
}


def type_of(dtype):
    """Return the Numba type of a dtype's token, for signatures."""
    return {0: types.float32, 1: types.uint16, 2: types.int16, 3: types.float64}[KINDS[dtype]]


def scope(builder, *names):
    """Return the alias scope of what is only read in a pass over memory.

    Without it a loop over eight candidates would need a run-time overlap test for each before LLVM
    vectorised it, and an in-place call would fail that test and run one element at a time.
    """
    module = builder.module
    domain = module.add_metadata(["nxcore"])
    return module.add_metadata([module.add_metadata([name, domain]) for name in names])


def _element(builder, address, index, token):
    memory = _MEMORY[token]
    base = builder.inttoptr(address, memory.as_pointer())
    return builder.gep(base, [index], inbounds=True)


def _widen(builder, value, token):
    """Return an element as float32."""
    if token == types.uint16:
        return builder.fpext(value, _F32)
    if token == types.int16:  # bfloat16 is the upper half of a float32
        bits = builder.shl(builder.zext(value, _I32), ir.Constant(_I32, 16))
        return builder.bitcast(bits, _F32)
    return builder.fptrunc(value, _F32) if token == types.float64 else value


def _narrow(builder, value, token):
    """Round float32 to an element, to nearest, ties to even; NaN stays NaN."""
    if token == types.uint16:
        return builder.fptrunc(value, ir.HalfType())
    if token == types.int16:
        bits = builder.bitcast(value, _I32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(_I32, 0x7FFF)), odd)
        rounded = builder.trunc(builder.lshr(rounded, ir.Constant(_I32, 16)), _I16)
        # Rounding up the bits of a NaN could carry it over into an infinity.
        return builder.select(builder.fcmp_unordered("uno", value, value), ir.Constant(_I16, 0x7FC0), rounded)
    return builder.fpext(value, ir.DoubleType()) if token == types.float64 else value


@intrinsic
def load(typingctx, address, index, token):
    """Return ``address[index]`` as float32, from memory that the whole kernel only reads."""

    def codegen(context, builder, signature, args):
        value = builder.load(_element(builder, args[0], args[1], token))
        value.set_metadata("alias.scope", scope(builder, "inputs"))
        return _widen(builder, value, token)

    return types.float32(types.int64, types.int64, token), codegen


@intrinsic
def flag(typingctx, address, index):
    """Return whether the byte ``address[index]``, an element of a tensor of bool, is True."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        value = builder.load(builder.gep(pointer, [args[1]], inbounds=True))
        value.set_metadata("alias.scope", scope(builder, "inputs"))
        return builder.icmp_unsigned("!=", value, ir.Constant(ir.IntType(8), 0))

    return types.boolean(types.int64, types.int64), codegen


@intrinsic
def store(typingctx, address, index, value, token):
    """Round the float32 ``value`` to ``address[index]``, in memory that ``load`` never reads later.

    Its element may be one that ``load`` read to compute this very value: that order can't be lost.
    """

    def codegen(context, builder, signature, args):
        pointer = _element(builder, args[0], args[1], token)
        done = builder.store(_narrow(builder, args[2], token), pointer)
        done.set_metadata("noalias", scope(builder, "inputs", "done"))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, token), codegen


@intrinsic
def peek(typingctx, address, index):
    """Return float32 ``address[index]`` from memory that the kernel also writes, such as scratch."""

    def codegen(context, builder, signature, args):
        return builder.load(_element(builder, args[0], args[1], types.float32))

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def scratch(typingctx, count):
    """Return the address of ``count`` float32 on the stack; ``count`` is a literal."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    room = ir.ArrayType(_F32, count.literal_value)

    def codegen(context, builder, signature, args):
        with builder.goto_entry_block():
            space = builder.alloca(room)  # cgutils.alloca_once would fill it with zeros
            space.align = 64
        return builder.ptrtoint(space, ir.IntType(64))

    return types.int64(count), codegen


@threads.jit
def load_any(address, index, kind):
    """Return ``address[index]`` as float64, from an element type known only at run time."""
    if kind == 0:
        return np.float64(load(address, index, np.float32(0)))
    if kind == 1:
        return np.float64(load(address, index, np.uint16(0)))
    if kind == 2:
        return np.float64(load(address, index, np.int16(0)))
    return np.float64(load(address, index, np.float64(0)))


@threads.jit
def store_any(address, index, value, kind):
    """Round ``value`` to ``address[index]``, of an element type known only at run time."""
    if kind == 0:
        store(address, index, np.float32(value), np.float32(0))
    elif kind == 1:
        store(address, index, np.float32(value), np.uint16(0))
    elif kind == 2:
        store(address, index, np.float32(value), np.int16(0))
    else:
        store(address, index, np.float32(value), np.float64(0))
