"""Rows that are turned by angles: what kernels need of them, the fewest dimensions and what is read again."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nxcore.spec.kernel import Code, Verdict, no
from nxcore.spec.layout import broadcast_strides, collapse
from nxcore.spec.needs import merged
from nxcore.spec.problem import Problem, TensorMeta

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turned:
    """The rows of ``rope`` or of its gradient: ``x`` or the gradient, ``cos``, ``sin``, and the result.

    Attributes
    ----------
    sizes : tuple of int
        Of the dimensions that count rows of different angles, outermost first.
    repeats : int
        How many rows, such as heads, the same angles turn.
    steps : tuple of tuple of int
        Of each tensor its strides in these dimensions.
    again : tuple of int
        Of each tensor the elements from one row of the same angles to the next.
    entry : tuple of int
        Of each tensor the elements from entry to entry.
    pairs, rest : int
        Pairs of a row that turn, and entries behind them that don't.
    each : bool
        Whether angles are given for each entry, and not for each pair.

    Examples
    --------
    >>> spec, angles = nxcore.ops.rope.spec, torch.ones(5, 8)
    >>> Turned.of(Problem.of(spec, spec.bind(torch.ones(2, 3, 5, 8), angles, angles))).repeats
    6
    """

    sizes: Sizes
    repeats: int
    steps: tuple[Sizes, ...]
    again: Sizes
    entry: Sizes
    pairs: int
    rest: int
    each: bool

    @classmethod
    def of(cls, problem: Problem) -> Turned:
        """Describe a call whose first gradient is requested, if it is one of gradients."""
        given, cos, sin = problem.args[0], problem["cos"], problem["sin"]
        out = problem.outputs[0] if isinstance(problem.outputs, tuple) else problem.outputs
        shape, width = given.shape[:-1], given.shape[-1]
        angles = (broadcast_strides(_rows(meta), shape) for meta in (cos, sin))
        strides = (out.strides[:-1], given.strides[:-1], *angles)
        sizes, (made, read, by_cos, by_sin) = collapse(shape, *strides)
        alike = [k for k in range(len(sizes)) if not (by_cos[k] or by_sin[k])]
        taken = max(alike, key=lambda k: sizes[k], default=None)
        kept = [k for k in range(len(sizes)) if k != taken]
        steps = (read, by_cos, by_sin, made)
        turning = width if problem["rotary_dim"] is None else problem["rotary_dim"]
        return cls(
            tuple(sizes[k] for k in kept),
            1 if taken is None else sizes[taken],
            tuple(tuple(step[k] for k in kept) for step in steps),
            tuple(0 if taken is None else step[taken] for step in steps),
            tuple(meta.strides[-1] for meta in (given, cos, sin, out)),
            turning // 2,
            width - turning,
            cos.shape[-1] == turning,
        )

    @property
    def rows(self) -> int:
        """How many rows of different angles there are."""
        return math.prod(self.sizes)


def _rows(meta: TensorMeta) -> TensorMeta:
    """Return a tensor without its last dimension."""
    return TensorMeta(meta.shape[:-1], meta.strides[:-1], meta.dtype, meta.device)


def turned_rows(problem: Problem) -> Verdict:
    """Take rows of few dimensions, and angles of one dtype.

    >>> spec, angles = nxcore.ops.rope.spec, torch.ones(5, 8)
    >>> bool(turned_rows(Problem.of(spec, spec.bind(torch.ones(2, 3, 5, 8), angles, angles))))
    True
    """
    given = [problem[name].dtype for name in ("cos", "sin")]
    if given[0] != given[1]:
        return no(f"needs cos and sin of one dtype, got {given}", code=Code.DTYPE)
    found = Turned.of(problem)
    sizes = found.sizes if found.repeats == 1 else (*found.sizes, found.repeats)
    return merged(sizes, 3)  # kernels have a fourth for the places in a row
