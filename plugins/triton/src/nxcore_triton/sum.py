"""sum, mean, sum_to_size, global_avg_pool2d: one kernel, whose tile is shaped by what lies inside in memory.

A tile is so many outputs by so many terms; partial sums stay in float32 registers, one for each place
of the tile, and are added up as a tree at the end. Where there are few outputs, several programs share
one, and a second launch adds up what they found, in fixed order.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Reduction, TensorMeta
from nxcore_triton import tile
from nxcore_triton.index import offset
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen

Blocks = tuple[int, int, int]
"""Outputs and terms of one tile, and how many programs share an output."""


@triton.jit(do_not_specialize=["scale"])
def add_up(
    x,
    out,
    scale,
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
    SCALED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Write BLOCK sums of up to span terms: program (i, j) starts at output i * BLOCK and term j * span."""
    part = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * span
    if WIDE:
        k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        first = part * span
    x_at = offset(k, kept_sizes, kept_strides, KEPT)
    sums = tl.zeros([BLOCK, TERMS], tl.float32)
    for start in range(first, tl.minimum(first + span, terms), TERMS):
        term = start + tl.arange(0, TERMS)
        at = x_at[:, None] + offset(term, sizes, strides, REDUCED)[None, :]
        mask = (k < outputs)[:, None] & (term < terms)[None, :]
        sums += widen(tl.load(x + at, mask, other=0.0))
    total = tl.sum(sums, 1)
    if SCALED:
        total *= scale
    out_at = offset(k, kept_sizes, out_strides, KEPT) + part * part_step
    tl.store(out + out_at, narrow(total, out.dtype.element_ty), k < outputs)


def bind(
    kernel: Any, reduction: Reduction, device: torch.device, blocks: Blocks, part_step: int, **constants: Any
) -> tuple[Launch, tuple[Any, ...]]:
    """Return the launch of a kernel on a reduction, and what it takes after its tensors and their scale."""
    block, span_terms, parts = blocks
    outputs, terms = reduction.outputs, reduction.terms
    span = tile.cdiv(tile.cdiv(terms, parts), span_terms) * span_terms
    # Triton takes no empty tuple; with rank 0 this one isn't read.
    kept_sizes, kept_strides, out_strides = zip(*(reduction.kept or ((1, 0, 0),)), strict=True)
    sizes, strides = zip(*(reduction.reduced or ((1, 0),)), strict=True)
    launch = Launch(
        kernel,
        (tile.cdiv(outputs, block), tile.cdiv(terms, span)),
        device,
        KEPT=len(reduction.kept),
        REDUCED=len(reduction.reduced),
        **constants,
        BLOCK=block,
        TERMS=span_terms,
    )
    return launch, (outputs, terms, span, part_step, kept_sizes, kept_strides, out_strides, sizes, strides)


def halves(
    reduction: Reduction, parts: int, device: torch.device
) -> tuple[TensorMeta, Reduction, Reduction, Blocks]:
    """Return the shares of so many programs an output, the reductions to and of them, and its blocks."""
    outputs = reduction.outputs
    first_kept, second_kept, step = [], [], 1
    for n, s, o in reversed(reduction.kept):
        first_kept.insert(0, (n, s, step))
        second_kept.insert(0, (n, step, o))
        step *= n
    second = Reduction(tuple(second_kept), ((parts, outputs),))
    block, terms, _ = tile.reduction(outputs, parts, kept_inside=kept_inside(second))
    work = TensorMeta((parts, outputs), (outputs, 1), torch.float32, device)
    return work, Reduction(tuple(first_kept), reduction.reduced), second, (block, terms, 1)


def _launch(
    reduction: Reduction, device: torch.device, blocks: Blocks, part_step: int, *, scaled: bool
) -> Callable[[Tensor, Tensor, float], None]:
    wide = max(reduction.outputs, reduction.terms) >= 2**30
    launch, fixed = bind(add_up, reduction, device, blocks, part_step, SCALED=scaled, WIDE=wide)

    def call(x: Tensor, out: Tensor, scale: float) -> None:
        launch((x, out), x, out, scale, *fixed)

    return call


def kept_inside(reduction: Reduction) -> bool:
    """Return whether neighbours in memory belong to different outputs."""
    kept = [s for _, s, _ in reduction.kept if s]
    reduced = [s for _, s in reduction.reduced if s]
    return bool(kept) and (not reduced or min(kept) < min(reduced))


def plan_reduction(
    reduction: Reduction, device: torch.device, *, scaled: bool = False, blocks: Blocks | None = None
) -> Callable[[Tensor, Tensor, float], None]:
    """Return the launches that sum as ``reduction`` says.

    Parameters
    ----------
    reduction : Reduction
        At least one output and one term.
    scaled : bool
        Multiply the sums.
    blocks : (int, int, int), optional
        The outputs and the terms of one tile, and how many programs share an output.

    Returns
    -------
    callable
        ``call(x, out, scale)``.
    """
    outputs, terms = reduction.outputs, reduction.terms
    inside = kept_inside(reduction)
    block, span_terms, parts = blocks or tile.reduction(outputs, terms, kept_inside=inside)
    if parts == 1:
        return _launch(reduction, device, (block, span_terms, 1), 0, scaled=scaled)
    span = tile.cdiv(tile.cdiv(terms, parts), span_terms) * span_terms
    parts = tile.cdiv(terms, span)
    work, first, second, last = halves(reduction, parts, device)
    share = _launch(first, device, (block, span_terms, parts), outputs, scaled=False)
    conclude = _launch(second, device, last, 0, scaled=scaled)

    def call(x: Tensor, out: Tensor, scale: float) -> None:
        shares = work.empty()
        share(x, shares, 1.0)
        conclude(shares, out, scale)

    return call


def variations(reduction: Reduction) -> Iterator[Blocks]:
    """Yield the blocks worth timing: those chosen, half and twice as many of each."""
    chosen = tile.reduction(reduction.outputs, reduction.terms, kept_inside=kept_inside(reduction))
    block, terms, parts = chosen
    found = {chosen: None}
    for b in (block, 2 * block, block // 2):
        for t in (terms, 2 * terms, terms // 2):
            for p in (parts, 2 * parts, parts // 2):
                if b and t and 1 <= p <= reduction.terms and b * t <= 4 * tile.TERMS:
                    found[b, t, p] = None
    yield from found


def plan(problem: Problem, tile: Blocks | None = None) -> Callable[..., Tensor]:
    """Return the launches for one problem: ``call(x, ...)``, with the operator's arguments."""
    out, (reduction, factor) = problem.outputs, Reduction.scaled(problem)
    averaged = problem.op in ("mean", "global_avg_pool2d")
    run = plan_reduction(reduction, problem.device, scaled=averaged, blocks=tile)

    def call(x: Tensor, *_: Any) -> Tensor:
        total = out.empty()
        run(x, total, factor)
        return total

    return call


def sweep(problem: Problem) -> Iterator[Blocks]:
    """Yield the blocks worth timing."""
    for reduction in Reduction.of_call(problem):
        yield from variations(reduction)
