"""The candidates of softmax_sum and weighted_sum as their kernels see them.

One layout, a count, and steps if stacked.
Imports no triton: the answers of ``accepts`` are made of this.
"""

from __future__ import annotations

from nxcore.plugin import Problem, TensorMeta


def candidate(xs: TensorMeta | tuple[TensorMeta, ...]) -> tuple[TensorMeta, int, int]:
    """Return one candidate, how many there are, and the step from one to the next if ``xs`` is stacked."""
    if isinstance(xs, TensorMeta):
        return _slice(xs), xs.shape[0], xs.strides[0]
    return xs[0], len(xs), 0


def factors(problem: Problem) -> tuple[TensorMeta, bool]:
    """Return the logits or the weights, and whether a softmax makes weights of them."""
    softmax = problem.op.startswith("softmax_sum")
    return problem["logits" if softmax else "weights"], softmax


def wanted(problem: Problem) -> tuple[int, bool]:
    """Return which candidates' gradients are requested, as bits, and whether the logits' is."""
    xs, mask = problem["xs"], problem["output_mask"]
    _, count, _ = candidate(xs)
    if mask is None:
        return (1 << count) - 1, True
    each = mask[:-1] * count if isinstance(xs, TensorMeta) else mask[:-1]
    return sum(1 << i for i, m in enumerate(each) if m), bool(mask[-1])


def gradient(problem: Problem) -> tuple[TensorMeta, int]:
    """Return the gradient of one candidate, and the step from one to the next if stacked.

    If no candidate's is requested, return a dense tensor of its shape, which gives the order of memory.
    """
    xs_grad, _ = problem.outputs
    if isinstance(xs_grad, TensorMeta):
        return _slice(xs_grad), xs_grad.strides[0]
    for meta in xs_grad or ():
        if meta is not None:
            return meta, 0
    one, _, _ = candidate(problem["xs"])
    for meta in (problem["grad"], one):
        if meta.is_dense():
            return meta, 0
    return TensorMeta.row_major(one.shape, one.dtype, one.device), 0


def _slice(stacked: TensorMeta) -> TensorMeta:
    return TensorMeta(stacked.shape[1:], stacked.strides[1:], stacked.dtype, stacked.device)
