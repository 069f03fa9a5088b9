"""Which rows and columns of an image feed which of a lane's outputs: all known when a kernel is compiled.

An axis is ``(back, kernel, stride, padding, dilation)``. Forward, targets are a window's outputs and sources
its inputs; back, as in a gradient, it is the other way round. Either is counted from where a lane's begin: a
lane has so many rows and columns of targets, in a gradient a multiple of the stride, so that every lane sees
the same taps. Each function runs in Python, whether a kernel or a test calls it.
"""

# mypy: ignore-errors

from __future__ import annotations

from dataclasses import dataclass

import triton

Axis = tuple[bool, int, int, int, int]


@dataclass(frozen=True)
class Form:
    """The compile-time parameters of a kernel of strips.

    Attributes
    ----------
    rows, columns : int
        The targets of a lane.
    unit : int
        The columns of sources that may be loaded at once: they are aligned, and on the image as a whole or
        not at all.
    vector : int
        The channels of a lane.
    inside : bool
        Neighbours in memory are channels, not columns.
    whole : bool
        A row of a lane's targets is one aligned vector on the image.
    reach : int
        The columns of sources from where the last lane's begin to the end of the image.
    lanes : int
        The lanes of a program.
    abreast : int
        How many of them have the same targets of neighbouring channels, in a reduction over targets.
    wide : bool
        Lanes, or elements of an image, need 64 bits.
    """

    down: Axis
    across: Axis
    rows: int
    columns: int
    unit: int
    vector: int
    inside: bool
    whole: bool
    reach: int
    lanes: int
    abreast: int
    wide: bool


@triton.constexpr_function
def reached(axis, source, target):
    """Return the tap by which ``source`` feeds ``target``, or -1."""
    back, kernel, stride, padding, dilation = axis
    span = target + padding - source * stride if back else source + padding - target * stride
    found, rest = divmod(span, dilation)
    return found if rest == 0 and 0 <= found < kernel else -1


@triton.constexpr_function
def sources(axis, targets):
    """Return the sources that feed any of the first ``targets`` targets, in order."""
    back, kernel, stride, padding, dilation = axis
    found = set()
    for target in range(targets):
        for a in range(kernel):
            if not back:
                found.add(target * stride - padding + a * dilation)
            elif (target + padding - a * dilation) % stride == 0:
                found.add((target + padding - a * dilation) // stride)
    return tuple(sorted(found))


@triton.constexpr_function
def of(form, name):
    """Return an attribute of a form as a kernel needs it."""
    return getattr(form, name)


@triton.constexpr_function
def aligned(form, target):
    """Return of how many elements the places of targets, or of sources, are a multiple."""
    if form.inside:
        return form.vector
    return form.unit if not target else form.columns if form.whole else 1


@triton.constexpr_function
def taps(form):
    """Return how many taps a window has down and across."""
    return form.down[1], form.across[1]


@triton.constexpr_function
def forward(form):
    """Return whether sources are the inputs of the window."""
    return not form.down[0]


@triton.constexpr_function
def window(form, axis):
    """Return the kernel, stride, padding and dilation along an axis."""
    return getattr(form, axis)[1:]


@triton.constexpr_function
def lines(form):
    """Return the rows of sources that a lane needs, in order."""
    return sources(form.down, form.rows)


@triton.constexpr_function
def tap(form, i, row):
    """Return the row of taps by which line ``i`` feeds the targets of ``row``, or -1."""
    return reached(form.down, sources(form.down, form.rows)[i], row)


@triton.constexpr_function
def feeding(form, row):
    """Return the lines that feed the targets of ``row``; where there are none, the first."""
    found = sources(form.down, form.rows)
    return [i for i, source in enumerate(found) if reached(form.down, source, row) >= 0] or [0]


@triton.constexpr_function
def begins(form, i, row):
    """Return whether line ``i`` is the first that feeds the targets of ``row``."""
    return feeding(form, row)[0] == i


@triton.constexpr_function
def ends(form, i, row):
    """Return whether line ``i`` is the last that feeds the targets of ``row``."""
    return feeding(form, row)[-1] == i


@triton.constexpr_function
def chunks(form):
    """Return the loads of one line, as (first, count), that bring every source of a lane's columns.

    At the ends, only the aligned half, quarter and so on that is needed.
    """
    unit, found = form.unit, []
    needed = sources(form.across, form.columns)
    for group in sorted({n // unit for n in needed}):
        inside = [n - group * unit for n in needed if n // unit == group]
        first, count = 0, unit
        while count > 1:
            half = count // 2
            if inside[0] >= first + half:
                first, count = first + half, half
            elif inside[-1] < first + half:
                count = half
            else:
                break
        found.append((group * unit + first, count))
    return tuple(found)


@triton.constexpr_function
def loaded(form):
    """Return every column of sources that ``chunks`` load, in order."""
    return tuple(first + i for first, count in chunks(form) for i in range(count))


@triton.constexpr_function
def place(form, column, b):
    """Return which of ``loaded`` feeds the targets of ``column`` by tap ``b``, or -1."""
    for i, source in enumerate(loaded(form)):
        if reached(form.across, source, column) == b:
            return i
    return -1
