"""Strips: the moves that the kernels of windows share.

A lane has some rows and columns of targets on one plane. It goes down the rows of sources that feed them and
loads each once: where columns lie inside in memory, by vectors that are then taken apart in registers; where
channels do, by vectors of channels. Everything about a lane is a tensor of one dimension; a value is one too,
or has a second for the channels.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from nxcore_triton.rounding import narrow, widen
from nxcore_triton.schedule import aligned, chunks, forward, of, window


@triton.jit
def split_up(block, N: tl.constexpr):
    """Return the N columns of a block as a tuple."""
    lanes: tl.constexpr = block.shape[0]
    if N == 1:
        return (block.reshape(lanes),)
    elif N == 2:
        return tl.split(block)
    elif N == 4:
        even, odd = tl.split(block.reshape(lanes, 2, 2))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        return (a, b, c, d)
    else:
        even, odd = tl.split(block.reshape(lanes, 2, 2, 2))
        even_even, even_odd = tl.split(even)
        odd_even, odd_odd = tl.split(odd)
        a, e = tl.split(even_even)
        c, g = tl.split(even_odd)
        b, f = tl.split(odd_even)
        d, h = tl.split(odd_odd)
        return (a, b, c, d, e, f, g, h)


@triton.jit
def put_together(values, N: tl.constexpr):
    """Return N values as the columns of a block."""
    lanes: tl.constexpr = values[0].shape[0]
    if N == 1:
        return values[0].reshape(lanes, 1)
    elif N == 2:
        return tl.join(values[0], values[1])
    elif N == 4:
        even = tl.join(values[0], values[2])
        odd = tl.join(values[1], values[3])
        return tl.join(even, odd).reshape(lanes, 4)
    else:
        even_even = tl.join(values[0], values[4])
        even_odd = tl.join(values[2], values[6])
        odd_even = tl.join(values[1], values[5])
        odd_odd = tl.join(values[3], values[7])
        return tl.join(tl.join(even_even, even_odd), tl.join(odd_even, odd_odd)).reshape(lanes, 8)


@triton.jit
def stand(counts, FORM: tl.constexpr):
    """Return which lanes have work, and each lane's image, first channel, and first row and column."""
    groups, strips, channels, total = counts
    lane = tl.program_id(0) * of(FORM, "lanes") + tl.arange(0, of(FORM, "lanes"))
    if of(FORM, "wide"):
        lane = tl.program_id(0).to(tl.int64) * of(FORM, "lanes") + tl.arange(0, of(FORM, "lanes"))
    ok = lane < total
    if of(FORM, "inside"):
        channel = lane % channels * of(FORM, "vector")
        rest = lane // channels
        group = rest % groups
        rest = rest // groups
        strip = rest % strips
        image = rest // strips
    else:
        group = lane % groups
        rest = lane // groups
        strip = rest % strips
        rest = rest // strips
        channel = rest % channels
        image = rest // channels
    return ok, image, channel, strip * of(FORM, "rows"), group * of(FORM, "columns")


@triton.jit
def plane(pointer, image, channel, strides, FORM: tl.constexpr, TARGET: tl.constexpr):
    """Return where each lane's plane begins, of targets or of sources."""
    at = image.to(tl.int64) * strides[0] + channel.to(tl.int64) * strides[1]
    return pointer + tl.multiple_of(at, aligned(FORM, TARGET))


@triton.jit
def abreast(value, FORM: tl.constexpr):
    """Return what is known of each lane in the shape of values."""
    if of(FORM, "inside"):
        return value[:, None]
    else:
        return value


@triton.jit
def blank(value, dtype: tl.constexpr, FORM: tl.constexpr):
    """Return one value for every lane."""
    if of(FORM, "inside"):
        return tl.full([of(FORM, "lanes"), of(FORM, "vector")], value, dtype)
    else:
        return tl.full([of(FORM, "lanes")], value, dtype)


@triton.jit
def _widened(value):
    if value.dtype.is_floating():
        return widen(value)
    else:
        return value.to(tl.int32)


@triton.jit
def _row(pointer, row, column, strides, ALIGNED: tl.constexpr, FORM: tl.constexpr):
    """Return where a row begins for each lane."""
    if of(FORM, "wide"):
        row = row.to(tl.int64)
        column = column.to(tl.int64)
    if of(FORM, "inside"):
        at = tl.multiple_of(row * strides[2], ALIGNED) + tl.multiple_of(column * strides[3], ALIGNED)
    elif ALIGNED > 1:  # then columns have a stride of 1
        at = tl.multiple_of(row * strides[2], ALIGNED) + tl.multiple_of(column, ALIGNED)
    else:
        at = row * strides[2] + column * strides[3]
    return pointer + at


@triton.jit
def origin(row, column, FORM: tl.constexpr):
    """Return the row and column of sources that each lane counts from."""
    STRIDE_DOWN: tl.constexpr = window(FORM, "down")[1]
    STRIDE_ACROSS: tl.constexpr = window(FORM, "across")[1]
    if forward(FORM):
        return row * STRIDE_DOWN, column * STRIDE_ACROSS
    else:
        return row // STRIDE_DOWN, column // STRIDE_ACROSS


@triton.jit
def _across(columns: tl.constexpr, strides, FORM: tl.constexpr):
    """Return how far so many columns are, where channels lie inside."""
    if of(FORM, "vector") > 1:
        return tl.multiple_of(columns * strides[3], of(FORM, "vector"))
    else:
        return columns * strides[3]


@triton.jit
def _chunk(
    start, column, strides, size, ok, other, FIRST: tl.constexpr, COUNT: tl.constexpr, FORM: tl.constexpr
):
    """Return COUNT columns of sources, from FIRST on, as a tuple."""
    if FIRST < 0:
        ok = ok & (column + FIRST >= 0)
    if of(FORM, "reach") < FIRST + COUNT:
        ok = ok & (column + (FIRST + COUNT) <= size[1])
    if of(FORM, "inside"):
        step = _across(FIRST, strides, FORM)
        at = (start + step)[:, None] + tl.arange(0, of(FORM, "vector"))[None, :]
        return (_widened(tl.load(at, ok[:, None], other=other)),)
    elif COUNT > 1:
        at = (start + FIRST)[:, None] + tl.arange(0, COUNT)[None, :]
        return split_up(_widened(tl.load(at, ok[:, None], other=other)), COUNT)
    elif of(FORM, "unit") > 1:
        return (_widened(tl.load(start + FIRST, ok, other=other)),)
    else:
        return (_widened(tl.load(start + FIRST * strides[3], ok, other=other)),)


@triton.jit
def line(pointer, row, column, strides, size, ok, other, FORM: tl.constexpr):
    """Return a row of each lane's sources, one value a column: ``other`` where it isn't on the image.

    ``column`` is the one that the lane counts from.
    """
    ok = ok & (row >= 0) & (row < size[0])
    start = _row(pointer, row, column, strides, aligned(FORM, False), FORM)
    values = ()
    for i in tl.static_range(len(chunks(FORM))):
        values += _chunk(
            start, column, strides, size, ok, other, chunks(FORM)[i][0], chunks(FORM)[i][1], FORM
        )
    return values


@triton.jit
def take(pointer, row, column, strides, size, ok, FORM: tl.constexpr):
    """Return a row of tensors that lie as the targets do, one value a column; all are on the image."""
    N: tl.constexpr = of(FORM, "columns")
    ok = ok & (row < size[0])
    start = _row(pointer, row, column, strides, aligned(FORM, True), FORM)
    if of(FORM, "inside"):
        values = ()
        for v in tl.static_range(N):
            step = _across(v, strides, FORM)
            at = (start + step)[:, None] + tl.arange(0, of(FORM, "vector"))[None, :]
            values += (widen(tl.load(at, ok[:, None], other=0.0)),)
    elif of(FORM, "whole"):
        values = split_up(
            widen(tl.load(start[:, None] + tl.arange(0, N)[None, :], ok[:, None], other=0.0)), N
        )
    else:
        values = ()
        for v in tl.static_range(N):
            values += (widen(tl.load(start + v * strides[3], ok, other=0.0)),)
    return values


@triton.jit
def _settled(value, dtype: tl.constexpr):
    if dtype.is_floating():
        return narrow(value, dtype)
    else:
        return value.to(dtype)


@triton.jit
def put(pointer, row, column, values, strides, size, ok, FORM: tl.constexpr):
    """Write a row of each lane's targets: one value a column."""
    N: tl.constexpr = of(FORM, "columns")
    dtype: tl.constexpr = pointer.dtype.element_ty
    ok = ok & (row < size[0])
    start = _row(pointer, row, column, strides, aligned(FORM, True), FORM)
    if of(FORM, "inside"):
        for v in tl.static_range(N):
            step = _across(v, strides, FORM)
            at = (start + step)[:, None] + tl.arange(0, of(FORM, "vector"))[None, :]
            tl.store(at, _settled(values[v], dtype), (ok & (column + v < size[1]))[:, None])
    elif of(FORM, "whole"):
        block = _settled(put_together(values, N), dtype)
        tl.store(start[:, None] + tl.arange(0, N)[None, :], block, ok[:, None])
    else:
        for v in tl.static_range(N):
            tl.store(start + v * strides[3], _settled(values[v], dtype), ok & (column + v < size[1]))
