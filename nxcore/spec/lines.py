"""Lines: the elements of tensors along some axes, for operators that reduce these and keep all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nxcore.spec.kernel import YES, Code, Verdict, no
from nxcore.spec.layout import broadcast_strides, collapse
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.spec import FLOATS

KEPT = 2
"""The most dimensions that count lines, after merging."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Tensors of one shape, or that broadcast to it, as lines along some axes.

    Attributes
    ----------
    count, inner, length : int
        The number of lines, how many of them the inner dimension counts, and the entries of each.
    steps : tuple of (int, int, int)
        Of each tensor: from one outer number of a line to the next, from one inner number to the next, and
        from entry to entry; 0 where an element is repeated. Line ``i`` begins at
        ``i // inner * outer_step + i % inner * inner_step``.

    Examples
    --------
    >>> x = TensorMeta.of(torch.ones(2, 3, 4))
    >>> Lines.of((1,), x)
    Lines(count=8, inner=4, length=3, steps=((12, 1, 4),))
    """

    count: int
    inner: int
    length: int
    steps: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, axes: Sequence[int], like: TensorMeta, *others: TensorMeta) -> Lines | None:
        """Describe tensors as lines along ``axes`` of ``like``; None where they need more dimensions."""
        strides = [broadcast_strides(meta, like.shape) for meta in (like, *others)]
        taken = {axis % like.ndim for axis in axes} if like.ndim else set()
        kept = [d for d in range(like.ndim) if d not in taken]
        walks = [_collapsed(like.shape, dims, strides) for dims in (kept, sorted(taken))]
        (sizes, between), (lengths, within) = walks
        if len(sizes) > KEPT or len(lengths) > 1:
            return None
        inner = sizes[1] if len(sizes) == KEPT else 1
        steps = tuple(
            (b[0] if sizes else 0, b[1] if len(sizes) == KEPT else 0, w[0] if lengths else 0)
            for b, w in zip(between, within, strict=True)
        )
        return cls(sizes[0] * inner if sizes else 1, inner, lengths[0] if lengths else 1, steps)

    @classmethod
    def along(cls, problem: Problem) -> Lines | None:
        """Describe the tensors of a call along its ``dim``: the result, then the arguments."""
        return cls.of((problem["dim"],), problem.outputs, *problem.tensors)

    @classmethod
    def rows(cls, problem: Problem) -> Lines | None:
        """Describe the tensors of a call along its ``normalized_shape``: the result, then the arguments."""
        shape = problem["x"].shape
        axes = range(len(shape) - len(problem["normalized_shape"]), len(shape))
        made = problem.outputs[0] if isinstance(problem.outputs, tuple) else problem.outputs
        given = _whole(problem)
        return cls.of(axes, made or TensorMeta.row_major(shape, given[0].dtype, problem.device), *given)

    @classmethod
    def classes(cls, problem: Problem) -> Lines | None:
        """Describe a loss by its logits' lines of classes: logits, targets, losses or their gradient, result.

        Losses lie in the row-major order of the targets; the result is that of a gradient.
        """
        x, target = problem["input"], problem["target"]
        axis = min(x.ndim - 1, 1)
        if not problem.op.endswith("_backward"):
            losses = TensorMeta.row_major(target.shape, torch.float32, problem.device)
            return cls.of((axis,), x, *(_with_axis(meta, axis) for meta in (target, losses)))
        grad = problem["grad"]
        grads = _with_axis(grad, axis) if grad.ndim == target.ndim else grad
        return cls.of((axis,), x, _with_axis(target, axis), grads, problem.outputs[0])

    def vectors(self, width: int) -> bool:
        """Return whether lines are whole vectors of ``width`` elements, and begin where vectors do."""
        return self.length % width == 0 and all(
            entry == 1 and outer % width == inner % width == 0 for outer, inner, entry in self.steps
        )


def _collapsed(
    shape: tuple[int, ...], dims: Sequence[int], strides: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    return collapse([shape[d] for d in dims], *([s[d] for d in dims] for s in strides))


def _with_axis(meta: TensorMeta, axis: int) -> TensorMeta:
    """Return a tensor without the axis of lines as one that has it, with one entry."""
    shape, strides = ((*n[:axis], one, *n[axis:]) for n, one in ((meta.shape, 1), (meta.strides, 0)))
    return TensorMeta(shape, strides, meta.dtype, meta.device)


def _whole(problem: Problem) -> list[TensorMeta]:
    """Return the arguments that have the shape of the lines."""
    named = zip(problem.spec.params, problem.args, strict=True)
    return [value for param, value in named if param.name in ("grad", "x")]


def factors_of(problem: Problem) -> dict[str, TensorMeta]:
    """Return the weight and the bias of a call, where it has them.

    >>> spec = nxcore.ops.rms_norm.spec
    >>> factors_of(Problem.of(spec, spec.bind(torch.ones(2, 3), (3,))))
    {}
    """
    named = ((param.name, value) for param, value in zip(problem.spec.params, problem.args, strict=True))
    return {name: value for name, value in named if name in ("weight", "bias") and value is not None}


def one_axis(problem: Problem) -> Verdict:
    """Take a call along one axis: tensors that are lines, and a result as wide as what it is made of.

    >>> spec = nxcore.ops.cumsum.spec
    >>> bool(one_axis(Problem.of(spec, spec.bind(torch.ones(2, 3), 1))))
    True
    """
    given, made = problem.tensors[0].dtype, problem.outputs.dtype
    forward = len(problem.tensors) == 1
    if made not in FLOATS or (forward and made not in (given, torch.float32)):
        return no(f"needs a result of the dtype of x or float32, got {made} of {given}", code=Code.DTYPE)
    if Lines.along(problem) is None:
        shown = ", ".join(str(meta.strides) for meta in problem.tensors)
        why = f"needs at most {KEPT} dimensions after merging beside the axis, got strides {shown}"
        return no(why, code=Code.LAYOUT)
    return YES


def _alike(problem: Problem) -> Verdict:
    """Take tensors of one dtype, and dense factors of one."""
    given, factors = [meta.dtype for meta in _whole(problem)], factors_of(problem)
    if len(set(given)) > 1:
        return no(f"needs tensors of one dtype beside the weight, got {given}", code=Code.DTYPE)
    if len({meta.dtype for meta in factors.values()}) > 1:
        why = f"needs factors of one dtype, got {[meta.dtype for meta in factors.values()]}"
        return no(why, code=Code.DTYPE)
    for name, meta in factors.items():
        if not meta.is_contiguous():
            return no(f"needs a {name} without gaps, got strides {meta.strides}", code=Code.LAYOUT)
    return YES


def whole_groups(problem: Problem) -> Verdict:
    """Take a call on groups of channels: tensors of one dtype in row-major order, and dense factors of one.

    >>> spec = nxcore.ops.group_norm.spec
    >>> bool(whole_groups(Problem.of(spec, spec.bind(torch.ones(2, 4, 3), 2))))
    True
    """
    for meta in _whole(problem):
        if not meta.is_contiguous():
            return no(f"needs tensors in row-major order, got strides {meta.strides}", code=Code.LAYOUT)
    return _alike(problem)


def last_axes(problem: Problem) -> Verdict:
    """Take a call along its last dimensions: tensors that are lines of one dtype, and dense factors of one.

    >>> spec = nxcore.ops.rms_norm.spec
    >>> bool(last_axes(Problem.of(spec, spec.bind(torch.ones(2, 3), (3,)))))
    True
    """
    if not (verdict := _alike(problem)):
        return verdict
    if Lines.rows(problem) is None:
        why = f"needs at most {KEPT} dimensions after merging beside the rows, got {problem['x'].strides}"
        return no(why, code=Code.LAYOUT)
    return YES


def of_classes(problem: Problem) -> Verdict:
    """Take a loss of logits that are lines, of targets that are int64, and of dense weights.

    >>> spec = nxcore.ops.cross_entropy.spec
    >>> bool(of_classes(Problem.of(spec, spec.bind(torch.ones(2, 3), torch.tensor([0, 2])))))
    True
    """
    target, weight = problem["target"], problem["weight"]
    if target.dtype is not torch.int64:
        return no(f"needs targets of torch.int64, got {target.dtype}", code=Code.DTYPE)
    if weight is not None and not weight.is_contiguous():
        return no(f"needs a weight without gaps, got strides {weight.strides}", code=Code.LAYOUT)
    if Lines.classes(problem) is None:
        why = f"needs at most {KEPT} dimensions after merging beside the classes"
        return no(f"{why}, got strides {problem['input'].strides}", code=Code.LAYOUT)
    return YES
