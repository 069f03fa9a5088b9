"""Which calls of the elementwise operators and of the sums the kernels take. Imports no toolkit."""

from __future__ import annotations

import dataclasses

from nxcore.plugin import (
    FLOATS,
    YES,
    Problem,
    Reduction,
    TensorMeta,
    Verdict,
    alike,
    broadcast_strides,
    collapse,
    no,
    overlaps,
)
from nxcore_cuda.accepts import tensors
from nxcore_cuda.candidates import FEW, MANY, SOME, STACKED, Candidates, gradient
from nxcore_cuda.layout import MAX_RANK


def _rank(sizes: tuple[int, ...], what: str) -> Verdict:
    if len(sizes) > MAX_RANK:
        return no(f"takes {what} of at most {MAX_RANK} dimensions after merging, got {len(sizes)}: {sizes}")
    return YES


def _candidates(problem: Problem) -> Verdict:
    if not (found := tensors(problem)):
        return found
    xs = Candidates.of(problem["xs"])
    layouts = len(xs.layouts)
    most = STACKED if xs.stacked else MANY if layouts == 1 else SOME
    if xs.count > max(most, FEW):
        how = (
            "stacked candidates"
            if xs.stacked
            else "candidates"
            if layouts == 1
            else "candidates of several layouts"
        )
        return no(f"takes at most {most} {how}, got {xs.count}")
    return YES


def accepts_softmax_sum(problem: Problem) -> Verdict:
    """Take candidates of any layouts, up to a count."""
    if not (found := _candidates(problem)):
        return found
    out = problem.outputs
    if overlaps(out):
        return no(f"needs an output whose elements don't share memory, got strides {out.strides}")
    layouts = Candidates.of(problem["xs"]).layouts
    return _rank(collapse(out.shape, out.strides, *(x.strides for x in layouts))[0], "candidates and output")


def accepts_softmax_sum_backward(problem: Problem) -> Verdict:
    """Take candidates and a gradient of any layouts."""
    if not (found := _candidates(problem)):
        return found
    grad, layouts = problem["grad"], Candidates.of(problem["xs"]).layouts
    out, _ = gradient(problem)
    if overlaps(out):
        return no(f"needs gradients whose elements don't share memory, got strides {out.strides}")
    strides = (out.strides, grad.strides, *(x.strides for x in layouts))
    return _rank(collapse(out.shape, *strides)[0], "grad and candidates")


def as_numbers(problem: Problem) -> Problem:
    """Describe an operand that has no dimensions and lies in the CPU's memory as the number that it is."""
    far = problem.device.type != "cpu"
    args = (
        float if far and isinstance(a, TensorMeta) and a.ndim == 0 and a.device.type == "cpu" else a
        for a in problem.args
    )
    return dataclasses.replace(problem, args=tuple(args))


def accepts_add(problem: Problem) -> Verdict:
    """Take operands that broadcast in few dimensions, or numbers, of any float dtypes."""
    if not (found := tensors(as_numbers(problem))):
        return found
    fresh = problem.outputs
    if fresh.dtype not in FLOATS:
        return no(f"needs a float32, float16 or bfloat16 result, got {fresh.dtype}")
    out = problem["out"] or fresh
    if overlaps(out):
        return no(f"needs an out whose elements don't share memory, got strides {out.strides}")
    operands = [m for m in (problem["x"], problem["y"]) if isinstance(m, TensorMeta)]
    if alike(out, *operands):
        return YES
    strides = (broadcast_strides(m, out.shape) for m in operands)
    return _rank(collapse(out.shape, out.strides, *strides)[0], "operands")


def _reduction(reduction: Reduction) -> Verdict:
    kept, reduced = len(reduction.kept), len(reduction.reduced)
    if max(kept, reduced) > MAX_RANK:
        return no(
            f"takes at most {MAX_RANK} kept and {MAX_RANK} summed dimensions after merging, "
            f"got {kept} and {reduced}"
        )
    return YES


def accepts_sum(problem: Problem) -> Verdict:
    """Take sums over any axes that merge to few."""
    if not (found := tensors(problem)):
        return found
    return _reduction(Reduction.of_sum(problem))


def accepts_sum_to_size(problem: Problem) -> Verdict:
    """Take sums over any axes that merge to few, of which there is at least one."""
    if not (found := tensors(problem)):
        return found
    reduction = Reduction.of_sum_to_size(problem)
    return YES if reduction is None else _reduction(reduction)


def accepts_add_backward(problem: Problem) -> Verdict:
    """Take gradients of which at least one is a sum."""
    if not (found := tensors(problem)):
        return found
    needed = [r for r in Reduction.of_add_backward(problem) if r is not None]
    return next((v for v in map(_reduction, needed) if not v), YES)
