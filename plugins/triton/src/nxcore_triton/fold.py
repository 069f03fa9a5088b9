"""amax, amin, max, min, argmax, argmin, any, all: one kernel, by what it looks for, in tiles as of a sum.

Elements are turned so that the largest is looked for: by their sign, or to whether they are, or aren't, 0.
Each place of a tile keeps the best that it meets and, where it is requested, its number. At the end the
best of an output's places are compared: NaN is above all, and the first of equals counts. Where there are
few outputs, several programs share one, and a second launch compares what they found.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Reduction
from nxcore_triton import tile as tiles
from nxcore_triton.index import offset
from nxcore_triton.rounding import narrow, widen
from nxcore_triton.sum import Blocks, bind, halves, kept_inside, variations

LARGEST, SMALLEST, SOME, EVERY, FOUND = range(5)
"""The elements to find: by their size, other than 0, or 0; and the best that others found."""

LOOKS = {
    **dict.fromkeys(("amax", "max", "argmax"), LARGEST),
    **dict.fromkeys(("amin", "min", "argmin"), SMALLEST),
    "any": SOME,
    "all": EVERY,
}


@triton.jit
def turned(value, LOOK: tl.constexpr):
    """Return a number that is the larger, the more an element is looked for."""
    if LOOK == 1:
        return -value
    elif LOOK == 2:
        return (value != 0).to(tl.float32)
    elif LOOK == 3:
        return (value == 0).to(tl.float32)
    else:
        return value


@triton.jit
def find(
    x,
    seen,
    out,
    indices,
    outputs,
    terms,
    span,
    part_step,
    kept_sizes,
    kept_strides,
    out_strides,
    sizes,
    strides,
    KEPT: tl.constexpr,
    REDUCED: tl.constexpr,
    LOOK: tl.constexpr,
    GIVES: tl.constexpr,
    VALUES: tl.constexpr,
    NUMBERED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Find the best of BLOCK outputs among up to span terms: program (i, j) starts at term j * span.

    ``GIVES`` is what the result is turned back to: nothing for a second launch.
    """
    part = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * span
    if WIDE:
        k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        first = part * span
        NONE: tl.constexpr = 2**62
    else:
        NONE: tl.constexpr = 2**31 - 1
    x_at = offset(k, kept_sizes, kept_strides, KEPT)
    best = tl.full([BLOCK, TERMS], float("-inf"), tl.float32)
    if NUMBERED:
        at = tl.zeros_like(k)[:, None] + tl.zeros([BLOCK, TERMS], tl.int32) + NONE
    for start in range(first, tl.minimum(first + span, terms), TERMS):
        term = start + tl.arange(0, TERMS)
        place = x_at[:, None] + offset(term, sizes, strides, REDUCED)[None, :]
        mask = (k < outputs)[:, None] & (term < terms)[None, :]
        value = turned(widen(tl.load(x + place, mask, other=0.0)), LOOK)
        value = tl.where(mask, value, float("-inf"))
        if NUMBERED:
            replaces = (value > best) | ((value != value) & (best == best)) | (at == NONE)
            if LOOK == 4:
                number = tl.load(seen + place, mask, other=NONE).to(at.dtype)
            else:
                number = tl.where(mask, term[None, :], NONE).to(at.dtype)
            best = tl.where(replaces, value, best)
            at = tl.where(replaces, number, at)
        else:
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    odd = best != best
    any_odd = tl.max(odd.to(tl.int32), 1) > 0
    top = tl.max(tl.where(odd, float("-inf"), best), 1)
    out_at = offset(k, kept_sizes, out_strides, KEPT) + part * part_step
    if NUMBERED:
        equal = tl.where(any_odd[:, None], odd, best == top[:, None])
        number = tl.min(tl.where(equal, at, NONE), 1)
        tl.store(indices + out_at, number.to(indices.dtype.element_ty), k < outputs)
    if VALUES:
        found = tl.where(any_odd, float("nan"), top)
        if GIVES == 2:
            tl.store(out + out_at, found > 0, k < outputs)
        elif GIVES == 3:
            tl.store(out + out_at, found <= 0, k < outputs)
        else:
            if GIVES == 1:
                found = -found
            tl.store(out + out_at, narrow(found, out.dtype.element_ty), k < outputs)


Run = Callable[[Tensor, Tensor, Tensor, Tensor], None]


def _launch(
    reduction: Reduction, device: torch.device, blocks: Blocks, part_step: int, looks: dict[str, Any]
) -> Run:
    launch, fixed = bind(find, reduction, device, blocks, part_step, **looks)

    def call(x: Tensor, seen: Tensor, out: Tensor, indices: Tensor) -> None:
        launch((x, seen, out, indices), x, seen, out, indices, *fixed)

    return call


def choose(reduction: Reduction) -> Blocks:
    """Return the tile of one program: that of a sum, with half as many terms, since a best has a number."""
    block, span, parts = tiles.reduction(
        reduction.outputs, reduction.terms, kept_inside=kept_inside(reduction)
    )
    return block, max(span // 2, 1), parts


def plan_both(
    problem: Problem, blocks: Blocks | None, *, values: bool, numbered: bool
) -> Callable[..., None]:
    """Return the launches for one problem: ``run(x, out, indices)``, any tensor for what isn't requested."""
    (reduction,), device = Reduction.of_call(problem), problem.device
    outputs, terms = reduction.outputs, reduction.terms
    block, span_terms, parts = blocks or (
        choose(reduction) if numbered else tiles.reduction(outputs, terms, kept_inside=kept_inside(reduction))
    )
    look = LOOKS[problem.op]
    looks = {"NUMBERED": numbered, "WIDE": max(outputs, terms) >= 2**30}
    last = {"GIVES": look, "VALUES": values, **looks}
    span = tiles.cdiv(tiles.cdiv(terms, parts), span_terms) * span_terms
    parts = tiles.cdiv(terms, span)
    if parts == 1:
        alone = _launch(reduction, device, (block, span_terms, 1), 0, {"LOOK": look, **last})
        return lambda x, out, indices: alone(x, x, out, indices)
    work, first, second, last_blocks = halves(reduction, parts, device)
    numbers = replace(work, dtype=torch.int64 if looks["WIDE"] else torch.int32)
    shared = {"LOOK": look, "GIVES": FOUND, "VALUES": True, **looks}
    share = _launch(first, device, (block, span_terms, parts), outputs, shared)
    conclude = _launch(second, device, last_blocks, 0, {"LOOK": FOUND, **last})

    def run(x: Tensor, out: Tensor, indices: Tensor) -> None:
        found = work.empty()
        places = numbers.empty() if numbered else found
        share(x, x, found, places)
        conclude(found, places, out, indices)

    return run


def plan(problem: Problem, tile: Blocks | None = None) -> Callable[..., Any]:
    """Return the launches for one problem: ``call(x, ...)``, with the operator's arguments."""
    outputs = problem.outputs
    if isinstance(outputs, tuple):
        (out, indices), both = outputs, plan_both(problem, tile, values=True, numbered=True)

        def call_for_both(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
            results = out.empty(), indices.empty()
            both(x, *results)
            return results

        return call_for_both
    numbered = problem.op.startswith("arg")
    run = plan_both(problem, tile, values=not numbered, numbered=numbered)

    def call(x: Tensor, *_: Any) -> Tensor:
        result = outputs.empty()
        run(x, result, result)
        return result

    return call


def sweep(problem: Problem) -> Iterator[Blocks]:
    """Yield the blocks worth timing, one program an output or several."""
    (reduction,) = Reduction.of_call(problem)
    yield from dict.fromkeys((choose(reduction), *variations(reduction)))
