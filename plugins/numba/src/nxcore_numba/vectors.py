"""Sums in vector registers on the CPU: filters times columns of a tile, and products of runs of rows.

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

RUN = 16
"""Floats of a vector of ``dots``, on any machine: they decide in which order a sum is added up."""

OWN, TERMS = (8, 3) if WIDE else (2, 2)
"""Filters and terms of ``dots``, for the registers of this machine; they decide no result."""

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


def _halve(builder, vector):
    """Return the sum of a vector's lanes: halves, halves of those, and so on."""
    lanes = RUN
    while lanes > 1:
        lanes //= 2
        low, high = (
            builder.shuffle_vector(
                vector,
                ir.Constant(vector.type, ir.Undefined),
                ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(first, first + lanes))),
            )
            for first in (0, lanes)
        )
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


@intrinsic
def dots(typingctx, to, grads, grad_step, grad_line, count, tile, line, places, rows, columns):
    """Write the sums over rows and columns of OWN filters' gradients times TERMS terms of a tile.

    All are addresses, except steps in elements from filter to filter (``grad_step``) and from row to row
    (``grad_line``, ``line``); ``count``, how many filters there are; ``rows`` and ``columns``. Vectors are
    read whole past the last column, and what lies there counts for nothing.
    """
    kind = ir.VectorType(_F32, RUN)

    def codegen(context, builder, signature, args):
        to, grads, grad_step, grad_line, count, tile, line, places, rows, columns = args
        found, x, incoming = (_floats(builder, address) for address in (to, tile, grads))
        offsets = builder.inttoptr(places, _I64.as_pointer())
        function = ir.FunctionType(kind, [kind] * 3)
        fma = cgutils.get_or_insert_function(builder.module, function, f"llvm.fmuladd.v{RUN}f32")
        sums = [[cgutils.alloca_once(builder, kind) for _ in range(TERMS)] for _ in range(OWN)]
        zeros = ir.Constant(kind, [0.0] * RUN)
        for total in (total for of_filter in sums for total in of_filter):
            builder.store(zeros, total)
        terms = [builder.load(builder.gep(offsets, [_number(t)])) for t in range(TERMS)]
        last = builder.sub(count, _number(1))
        starts = []
        for o in range(OWN):  # a filter past the last one is the last one again
            own = builder.select(builder.icmp_signed("<", _number(o), count), _number(o), last)
            starts.append(builder.mul(own, grad_step))
        whole = builder.and_(columns, _number(-RUN))
        rest = builder.trunc(builder.sub(columns, whole), ir.IntType(32))
        index = ir.VectorType(ir.IntType(32), RUN)
        edge = builder.insert_element(ir.Constant(index, ir.Undefined), rest, ir.Constant(ir.IntType(32), 0))
        edge = builder.shuffle_vector(
            edge, ir.Constant(index, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), RUN), [0] * RUN)
        )
        inside = builder.icmp_signed("<", ir.Constant(index, list(range(RUN))), edge)

        def vector(floats, at, masked):
            pointer = builder.bitcast(builder.gep(floats, [at]), kind.as_pointer())
            loaded = builder.load(pointer, align=4)
            return builder.select(inside, loaded, zeros) if masked else loaded

        def step(row, at, masked):
            seen = [vector(x, builder.add(builder.mul(row, line), builder.add(at, t)), masked) for t in terms]
            base = builder.add(builder.mul(row, grad_line), at)
            for start, of_filter in zip(starts, sums, strict=True):
                factor = vector(incoming, builder.add(base, start), masked)
                for term, total in zip(seen, of_filter, strict=True):
                    builder.store(builder.call(fma, [factor, term, builder.load(total)]), total)

        with cgutils.for_range(builder, rows) as down:
            with cgutils.for_range_slice(builder, _number(0), whole, _number(RUN)) as (at, _):
                step(down.index, at, masked=False)
            with builder.if_then(builder.icmp_signed("!=", columns, whole)):
                step(down.index, whole, masked=True)
        for i, total in enumerate(total for of_filter in sums for total in of_filter):
            builder.store(_halve(builder, builder.load(total)), builder.gep(found, [_number(i)]))
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 10), codegen
