"""Sums in vector registers on the CPU: some filters times the same columns of a tile, term by term.

Written as vectors, since LLVM keeps no array of sums in registers where it makes vectors by itself.
"""

# mypy: ignore-errors

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WIDE = bool(llvm.get_host_cpu_features().get("avx512f"))
LANES, VECTORS, FILTERS = (16, 2, 8) if WIDE else (8, 2, 4)
"""Floats of a vector, vectors of a filter's columns, and filters, for the registers of this machine.

They decide no result: a sum has its terms in one order whatever it shares registers with.
"""

COLUMNS = LANES * VECTORS

_F32, _I64 = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)


def _splat(builder, value):
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), mask)


def _floats(builder, address):
    return builder.inttoptr(address, _F32.as_pointer())


def _number(n):
    return ir.Constant(_I64, n)


def _vectors(builder, floats):
    """Yield pointers to the vectors from ``floats`` on, which are aligned as floats are."""
    for v in range(VECTORS):
        yield builder.bitcast(builder.gep(floats, [_number(v * LANES)]), _VECTOR.as_pointer())


@intrinsic
def multiply(typingctx, to, to_step, tile, places, terms, filters, bias, count):
    """Write ``bias[o] + sum over terms t of filters[t, o] * tile[places[t] + column]`` at ``to``.

    All are addresses, except ``to_step``, elements from one filter's columns to the next one's; ``terms``,
    how many there are; and ``count``, how many of the FILTERS filters are written.
    """

    def codegen(context, builder, signature, args):
        to, to_step, tile, places, terms, filters, bias, count = args
        given, shifts = _floats(builder, filters), _floats(builder, bias)
        x, found = _floats(builder, tile), _floats(builder, to)
        offsets = builder.inttoptr(places, _I64.as_pointer())
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(VECTORS)] for _ in range(FILTERS)]
        for o, of_filter in enumerate(sums):
            shift = _splat(builder, builder.load(builder.gep(shifts, [_number(o)])))
            for total in of_filter:
                builder.store(shift, total)
        with cgutils.for_range(builder, terms) as loop:
            start = builder.gep(x, [builder.load(builder.gep(offsets, [loop.index]))])
            columns = [builder.load(pointer, align=4) for pointer in _vectors(builder, start)]
            row = builder.gep(given, [builder.mul(loop.index, _number(FILTERS))])
            for o, of_filter in enumerate(sums):
                factor = _splat(builder, builder.load(builder.gep(row, [_number(o)])))
                for total, column in zip(of_filter, columns, strict=True):
                    builder.store(builder.call(fma, [factor, column, builder.load(total)]), total)
        for o, of_filter in enumerate(sums):
            with builder.if_then(builder.icmp_signed("<", _number(o), count)):
                start = builder.gep(found, [builder.mul(_number(o), to_step)])
                for total, pointer in zip(of_filter, _vectors(builder, start), strict=True):
                    builder.store(builder.load(total), pointer, align=4)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 8), codegen
