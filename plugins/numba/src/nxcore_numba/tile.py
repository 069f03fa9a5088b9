"""Tiles in scratch memory: float32 values and int32 numbers, read and written by raw address.

A kernel works on a tile in passes, and no pass writes memory that it reads. Each access names its pass by a
token, a number of a type of its own, so that LLVM can vectorise with any number of pointers. A pass may read
memory that an earlier pass has written, since its scope differs.
"""

# mypy: ignore-errors

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nxcore_numba.half import scope

FIRST, SECOND, DONE, APART = np.int8(0), np.uint8(0), np.int16(0), np.uint16(0)
"""The tokens: the pass that reads the gathered tile, the one after it, the one that writes the result, and
one that changes a tile in place by numbers from elsewhere."""

STEP = 64
"""Passes run over a multiple of so many elements, which vectors fill: tiles have room for the surplus."""

SURPLUS = 512
"""Elements of that room."""

_F32, _I32 = ir.FloatType(), ir.IntType(32)
_NAMES = {types.int8: "first", types.uint8: "second", types.int16: "done", types.uint16: "apart"}


def _read(element, result):
    def typed(typingctx, address, index, token):
        def codegen(context, builder, signature, args):
            pointer = builder.gep(builder.inttoptr(args[0], element.as_pointer()), [args[1]], inbounds=True)
            value = builder.load(pointer)
            value.set_metadata("alias.scope", scope(builder, _NAMES[token]))
            return value

        return result(types.int64, types.int64, token), codegen

    return typed


def _write(element, given):
    def typed(typingctx, address, index, value, token):
        def codegen(context, builder, signature, args):
            pointer = builder.gep(builder.inttoptr(args[0], element.as_pointer()), [args[1]], inbounds=True)
            builder.store(args[2], pointer).set_metadata("noalias", scope(builder, _NAMES[token]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, given, token), codegen

    return typed


take = intrinsic(_read(_F32, types.float32))
"""``take(address, index, token)`` returns a float32 that the pass only reads."""

take_whole = intrinsic(_read(_I32, types.int32))
"""``take_whole(address, index, token)`` returns an int32 that the pass only reads."""

put = intrinsic(_write(_F32, types.float32))
"""``put(address, index, value, token)`` writes a float32 that the pass doesn't read."""

put_whole = intrinsic(_write(_I32, types.int32))
"""``put_whole(address, index, value, token)`` writes an int32 that the pass doesn't read."""


def _look(element, result):
    def typed(typingctx, address, index):
        def codegen(context, builder, signature, args):
            pointer = builder.gep(builder.inttoptr(args[0], element.as_pointer()), [args[1]], inbounds=True)
            return builder.load(pointer)

        return result(types.int64, types.int64), codegen

    return typed


peek_whole = intrinsic(_look(_I32, types.int32))
"""``peek_whole(address, index)`` returns an int32 that the pass also writes."""

_WHOLE = {types.uint8: ir.IntType(8), types.int32: _I32, types.int64: ir.IntType(64)}


VECTOR = 16
"""The elements that ``stream`` writes at once: 64 bytes, a line of the cache."""


@intrinsic
def stream(typingctx, to, source, index, weight):
    """Write ``weight`` times ``VECTOR`` float32 of ``source`` past the caches; ``to`` is aligned to as many.

    A store through the caches reads first what it is about to overwrite.
    """
    vector = ir.VectorType(_F32, VECTOR)

    def codegen(context, builder, signature, args):
        places = [builder.inttoptr(a, _F32.as_pointer()) for a in args[:2]]
        to, source = (
            builder.bitcast(builder.gep(p, [args[2]], inbounds=True), vector.as_pointer()) for p in places
        )
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), args[3], ir.Constant(_I32, 0))
        lanes = ir.Constant(ir.VectorType(_I32, VECTOR), [0] * VECTOR)
        splat = builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), lanes)
        done = builder.store(builder.fmul(builder.load(source, align=4), splat), to, align=4 * VECTOR)
        done.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_I32, 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32), codegen


@intrinsic
def fence(typingctx):
    """Have what ``stream`` wrote seen by all threads before anything that follows."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def load_whole(typingctx, address, index, token):
    """Return the uint8 or int32 ``address[index]`` as int32, from memory that the whole kernel only reads."""

    def codegen(context, builder, signature, args):
        kind = _WHOLE[token]
        pointer = builder.gep(builder.inttoptr(args[0], kind.as_pointer()), [args[1]], inbounds=True)
        value = builder.load(pointer)
        value.set_metadata("alias.scope", scope(builder, "inputs"))
        return builder.zext(value, _I32) if kind.width < 32 else value

    return types.int32(types.int64, types.int64, token), codegen


@intrinsic
def store_whole(typingctx, address, index, value, token):
    """Write a number as uint8, int32 or int64 to ``address[index]``, in memory that is never read."""

    def codegen(context, builder, signature, args):
        kind, value = _WHOLE[token], args[2]
        if kind.width != signature.args[2].bitwidth:
            value = builder.trunc(value, kind) if kind.width < 32 else builder.sext(value, kind)
        pointer = builder.gep(builder.inttoptr(args[0], kind.as_pointer()), [args[1]], inbounds=True)
        builder.store(value, pointer).set_metadata("noalias", scope(builder, "inputs", "done"))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value, token), codegen
