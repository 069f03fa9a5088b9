"""Rows that are summed by where they belong: what kernels need, the first axis and no gaps."""

from __future__ import annotations

from nxcore.spec.kernel import YES, Code, Verdict, no
from nxcore.spec.problem import Problem, TensorMeta


def summed_rows(problem: Problem) -> Verdict:
    """Take sums of whole rows along the first axis, of tensors without gaps.

    >>> spec = nxcore.ops.index_add.spec
    >>> args = spec.bind(torch.ones(3, 2), 1, torch.tensor([0]), torch.ones(3, 1))
    >>> summed_rows(Problem.of(spec, args)).reason
    'sums along the first axis, got dim 1'
    """
    named = dict(zip((p.name for p in problem.spec.params), problem.args, strict=True))
    axis, out = named.get("dim", 0), problem.outputs
    if not out.ndim or axis % out.ndim:
        return no(f"sums along the first axis, got dim {axis}", code=Code.SIZE)
    for name, meta in named.items():
        if isinstance(meta, TensorMeta) and not meta.is_contiguous():
            return no(f"needs {name} without gaps, got strides {meta.strides}", code=Code.LAYOUT)
    return YES
