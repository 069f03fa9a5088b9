"""Reductions as data: the reduced axes, and the fewest dimensions that describe the sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nxcore.errors import InvalidInputError
from nxcore.spec.problem import Problem, TensorMeta

OF_AXES = ("sum", "mean", "amax", "amin", "any", "all")
"""The operators that take ``x``, ``dim`` and ``keepdim``, and whose terms have no order."""

NUMBERED = ("max", "min", "argmax", "argmin")
"""Those whose results number the terms of an output."""


def canonical_dims(dim: int | tuple[int, ...] | list[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes that ``dim`` names, sorted, from 0 to ``ndim - 1``.

    As in ``torch.sum``, None and the empty tuple name every axis, and a 0-d tensor has the axes 0 and -1.

    Raises
    ------
    InvalidInputError
        If an axis is out of range, or named twice.

    Examples
    --------
    >>> canonical_dims((-1, 0), 3)
    (0, 2)
    """
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return tuple(range(ndim))
    if not isinstance(dim, int | tuple | list) or isinstance(dim, bool):
        raise InvalidInputError(
            f"dim must be an integer or a sequence of integers, got {type(dim).__name__}", argument="dim"
        )
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    span = max(ndim, 1)
    for d in given:
        if not isinstance(d, int) or isinstance(d, bool):
            raise InvalidInputError(f"dim must hold integers, got {type(d).__name__}", argument="dim")
        if not -span <= d < span:
            raise InvalidInputError(
                f"dim must be in [{-span}, {span - 1}] for a tensor of {ndim} dimensions, got {d}",
                argument="dim",
            )
    wrapped = sorted(d % span for d in given)
    if len(set(wrapped)) != len(wrapped):
        raise InvalidInputError(f"dim must name each axis once, got {given}", argument="dim")
    return tuple(wrapped) if ndim else ()


def summed_dims(shape: tuple[int, ...], size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of ``shape`` that broadcasting from ``size`` added or expanded.

    An added axis counts even where its size is 1: as in torch, undoing it is a sum of one term in new
    memory, not a view.

    >>> summed_dims((5, 2, 3), (1, 3))
    (0, 1)
    """
    lead = len(shape) - len(size)
    return tuple(i for i, n in enumerate(shape) if i < lead or (n != 1 and size[i - lead] == 1))


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction over some axes of a strided tensor, in the fewest dimensions.

    Axes of size 1 are dropped, and neighbouring kept or reduced axes are merged where their strides allow.

    Attributes
    ----------
    kept : tuple of (int, int, int)
        Size, stride in the input and stride in the output of each kept dimension, outermost first, in
        elements.
    reduced : tuple of (int, int)
        Size and stride in the input of each reduced dimension, outermost first.

    Examples
    --------
    >>> Reduction.of_axes(Problem.of(nxcore.ops.sum.spec, (torch.ones(2, 3, 4), 0, False)))
    Reduction(kept=((12, 1, 1),), reduced=((2, 12),))
    """

    kept: tuple[tuple[int, int, int], ...]
    reduced: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, x: TensorMeta, dims: tuple[int, ...], out_strides: tuple[int, ...]) -> Reduction:
        """Describe reducing ``x`` over ``dims``; ``out_strides`` are the output's with keepdim=True."""
        axes = [
            (n, s, o, i in dims)
            for i, (n, s, o) in enumerate(zip(x.shape, x.strides, out_strides, strict=True))
            if n != 1
        ]
        axes.sort(key=lambda axis: -axis[1])  # memory order of the input, outermost first
        merged: list[tuple[int, int, int, bool]] = []
        for n, s, o, gone in axes:
            if merged:
                outer_n, outer_s, outer_o, outer_gone = merged[-1]
                if gone == outer_gone and outer_s == n * s and (gone or outer_o == n * o):
                    merged[-1] = (outer_n * n, s, o, gone)
                    continue
            merged.append((n, s, o, gone))
        return cls(
            kept=tuple((n, s, o) for n, s, o, gone in merged if not gone),
            reduced=tuple((n, s) for n, s, _, gone in merged if gone),
        )

    @classmethod
    def of_axes(cls, problem: Problem) -> Reduction:
        """Describe a call that takes ``x``, ``dim`` and ``keepdim``, such as ``sum`` or ``amax``."""
        x, outputs = problem["x"], problem.outputs
        out = outputs[0] if isinstance(outputs, tuple) else outputs
        dims = canonical_dims(problem["dim"], x.ndim)
        if out.ndim == x.ndim:
            return cls.of(x, dims, out.strides)
        own = iter(out.strides)  # of the kept axes, as without keepdim=True
        return cls.of(x, dims, tuple(0 if i in dims else next(own) for i in range(x.ndim)))

    @classmethod
    def of_numbered(cls, problem: Problem) -> Reduction:
        """Describe such a call whose result numbers the terms of an output, as ``argmax`` does.

        The reduced dimensions keep torch's order, in which terms are numbered, whatever their strides.
        """
        x = problem["x"]
        dims = canonical_dims(problem["dim"], x.ndim)
        merged: list[tuple[int, int]] = []
        for n, s in ((x.shape[i], x.strides[i]) for i in dims if x.shape[i] != 1):
            if merged and merged[-1][1] == n * s:
                merged[-1] = (merged[-1][0] * n, s)
            else:
                merged.append((n, s))
        return replace(cls.of_axes(problem), reduced=tuple(merged))

    @classmethod
    def of_planes(cls, problem: Problem) -> Reduction:
        """Describe a call of a global pool: height and width are reduced, in this order in any layout."""
        x, outputs = problem["x"], problem.outputs
        out = outputs[0] if isinstance(outputs, tuple) else outputs
        found = cls.of(x, (x.ndim - 2, x.ndim - 1), out.strides)
        (height, row), (width, column) = zip(x.shape[-2:], x.strides[-2:], strict=True)
        if row == width * column or 1 in (height, width):
            step = row if width == 1 else column
            return replace(found, reduced=((height * width, step),) if height * width != 1 else ())
        return replace(found, reduced=((height, row), (width, column)))

    @classmethod
    def of_sum_to_size(cls, problem: Problem) -> Reduction | None:
        """Describe a call of ``sum_to_size``; None where there is nothing to add up."""
        return cls._undoing(problem["x"], problem.outputs)

    @classmethod
    def of_add_backward(cls, problem: Problem) -> tuple[Reduction | None, Reduction | None]:
        """Describe each gradient of ``add``; None where nothing was broadcast, or it is not requested."""
        x_grad, y_grad = problem.outputs
        return cls._undoing(problem["grad"], x_grad), cls._undoing(problem["grad"], y_grad)

    @classmethod
    def of_call(cls, problem: Problem) -> list[Reduction]:
        """Describe the reductions of a call of any operator that reduces, ``add_backward`` included."""
        if problem.op in NUMBERED:
            return [cls.of_numbered(problem)]
        if problem.op in OF_AXES:
            return [cls.of_axes(problem)]
        if problem.op == "global_avg_pool2d":
            return [cls.of_planes(problem)]
        if problem.op == "sum_to_size":
            found: tuple[Reduction | None, ...] = (cls.of_sum_to_size(problem),)
        else:
            found = cls.of_add_backward(problem)
        return [reduction for reduction in found if reduction is not None]

    @classmethod
    def _undoing(cls, grad: TensorMeta, out: TensorMeta | None) -> Reduction | None:
        """Describe undoing the broadcast from ``out`` to ``grad``."""
        if out is None or not (dims := summed_dims(grad.shape, out.shape)):
            return None
        return cls.of(grad, dims, (*(0,) * (grad.ndim - out.ndim), *out.strides))

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        total = 1
        for n, _, _ in self.kept:
            total *= n
        return total

    @property
    def terms(self) -> int:
        """The number of terms of each output."""
        total = 1
        for n, _ in self.reduced:
            total *= n
        return total

    @classmethod
    def scaled(cls, problem: Problem) -> tuple[Reduction, float]:
        """Describe the one sum of a call, such as ``sum`` or ``mean``, and its factor."""
        (found,) = cls.of_call(problem)
        return found, 1 / found.terms if problem.op in ("mean", "global_avg_pool2d") else 1.0
