"""Which calls of the operators on short rows the kernels take. Imports no toolkit."""

from __future__ import annotations

from nxcore.plugin import YES, Problem, Rows, Verdict, no
from nxcore_cuda.accepts import tensors

LONGEST = 1024
"""Entries of a row that a warp holds in registers."""


def accepts_rows(problem: Problem) -> Verdict:
    """Take short rows that lie evenly in memory."""
    if not (found := tensors(problem)):
        return found
    if (length := problem["logits"].shape[-1]) > LONGEST:
        return no(f"takes rows of at most {LONGEST} entries, got {length}")
    if problem.op == "gumbel_softmax_backward" and any((problem["output_mask"] or ())[1:]):
        return no("computes the gradient of the logits alone, and output_mask asks for more")
    return YES if Rows.of(problem) else no("needs rows that lie at one step from each other in every tensor")
