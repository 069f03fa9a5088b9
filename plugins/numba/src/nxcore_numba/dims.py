"""The fewest dimensions that walk several strided tensors together; plain Python, no toolkit."""

from __future__ import annotations

from collections.abc import Sequence

from nxcore.plugin import Problem, TensorMeta

Shape = tuple[int, ...]

KINDS = 3
"""How many dimensions that stay, and how many that fall away, a sum walks."""

DIMS = 4
"""How many dimensions the kernels walk: the innermost in a loop, the others by division."""


def collapse(shape: Shape, strides: Sequence[Shape]) -> list[Shape]:
    """Merge neighbouring dimensions where every operand's strides allow it.

    Parameters
    ----------
    shape : tuple of int
        The shape that all operands share or are broadcast to.
    strides : sequence of tuple of int
        Each operand's strides, 0 where it is broadcast; the first operand's decide the order.

    Returns
    -------
    list of tuple of int
        ``(size, stride of each operand...)`` of each dimension, outermost first; empty for one element.
    """
    axes = [(n, *per) for n, *per in zip(shape, *strides, strict=True) if n != 1]
    axes.sort(key=lambda axis: tuple(-s for s in axis[1:]))
    merged: list[Shape] = []
    for n, *per in axes:
        if merged:
            outer_n, *outer = merged[-1]
            if all(o == n * s for o, s in zip(outer, per, strict=True)):
                merged[-1] = (outer_n * n, *per)
                continue
        merged.append((n, *per))
    return merged


def is_one_number(meta: TensorMeta) -> bool:
    """Return whether every element is the same one in memory, as in the gradient of a sum."""
    return not any(meta.strides_of_extent)


def factors_of(problem: Problem) -> tuple[TensorMeta, bool]:
    """Return the logits or the weights, and whether a softmax makes weights of them."""
    softmax = problem.op.startswith("softmax_sum")
    return problem["logits" if softmax else "weights"], softmax


def candidates_of(xs: TensorMeta | tuple[TensorMeta, ...]) -> tuple[list[TensorMeta], int | None]:
    """Return the candidates' descriptions, and the bytes between them where ``xs`` stacks them.

    Returns
    -------
    metas : list of TensorMeta
    step : int or None
        None for a sequence of tensors.
    """
    if isinstance(xs, tuple):
        return list(xs), None
    one = TensorMeta(xs.shape[1:], xs.strides[1:], xs.dtype, xs.device)
    return [one] * xs.shape[0], xs.strides[0] * xs.element_size()
