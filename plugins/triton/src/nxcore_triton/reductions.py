"""The reductions that a problem asks for. Imports no triton: the answers of ``accepts`` are made of this."""

from __future__ import annotations

from nxcore.plugin import Problem, Reduction, TensorMeta, canonical_dims


def of_sum(problem: Problem) -> Reduction:
    """Return the reduction of a sum."""
    x, out = problem["x"], problem.outputs
    dims = canonical_dims(problem["dim"], x.ndim)
    if problem["keepdim"]:
        return Reduction.of(x, dims, out.strides)
    own = iter(out.strides)
    return Reduction.of(x, dims, tuple(0 if i in dims else next(own) for i in range(x.ndim)))


def of_sum_to_size(problem: Problem) -> Reduction | None:
    """Return the reduction of a sum to a size, None where there is nothing to add up."""
    return of_operand(problem["x"], problem.outputs)


def of_add_backward(problem: Problem) -> tuple[Reduction | None, Reduction | None]:
    """Return each operand's reduction, None where it wasn't broadcast or isn't asked for."""
    x_grad, y_grad = problem.outputs
    return of_operand(problem["grad"], x_grad), of_operand(problem["grad"], y_grad)


def of_operand(grad: TensorMeta, out: TensorMeta | None) -> Reduction | None:
    """Return the reduction of ``grad`` to the shape of ``out``, None where there is nothing to add up."""
    if out is None:
        return None
    lead = grad.ndim - out.ndim
    dims = tuple(i for i, n in enumerate(grad.shape) if n != 1 and (i < lead or out.shape[i - lead] == 1))
    return Reduction.of(grad, dims, (*(0,) * lead, *out.strides)) if dims else None
