"""add_backward: the gradients of add, to both operands.

    grad_x = sum_to_size(grad, x_size);  grad_y = alpha * sum_to_size(grad, y_size)

The transpose of broadcasting is the sum over the broadcast dimensions.
"""

from __future__ import annotations

from itertools import compress
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.sum_to_size import ways
from nxcore.plugin import (
    DEGENERATE,
    Cost,
    ErrorCase,
    InvalidInputError,
    OpSpec,
    Param,
    Problem,
    Sample,
    TensorMeta,
    rand,
    require_flags,
    require_size,
    require_tensor,
    summed_dims,
)

Number = int | float
BOTH = (True, True)


def reference(
    grad: Tensor,
    x_size: tuple[int, ...],
    y_size: tuple[int, ...],
    alpha: Number = 1,
    output_mask: tuple[bool, bool] = BOTH,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of ``add``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the output, floating.
    x_size, y_size : tuple of int
        The operands' shapes; both broadcast to the shape of ``grad``.
    alpha : number, default 1
        As in ``add``.
    output_mask : (bool, bool)
        Which gradients to compute; the other is None.

    Returns
    -------
    x_grad, y_grad : Tensor
        The operands' shapes and the dtype of ``grad``; they may share memory with ``grad``.

    Raises
    ------
    InvalidInputError
        If ``grad`` isn't a floating tensor, or a size doesn't broadcast to its shape.

    Examples
    --------
    >>> nxcore.ops.add_backward(torch.ones(2, 3), (3,), (2, 3), output_mask=(True, False))
    (tensor([2., 2., 2.]), None)
    """
    x_grad = _undo(grad, x_size) if output_mask[0] else None
    if not output_mask[1]:
        return x_grad, None
    y_grad = _undo(grad, y_size)
    if torch.compiler.is_compiling() or alpha != 1:  # a trace cannot branch on a number that may change
        y_grad = y_grad * alpha
    return x_grad, y_grad


def _undo(grad: Tensor, size: tuple[int, ...]) -> Tensor:
    """Sum over broadcast dimensions; return ``grad`` itself where there are none."""
    dims = summed_dims(tuple(grad.shape), size)
    return torch.sum(grad, dims, keepdim=True).view(size) if dims else grad.view(size)


def check(grad: Any, x_size: Any, y_size: Any, alpha: Any, output_mask: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(grad, "grad")
    shape = tuple(grad.shape)
    for name, size in (("x_size", x_size), ("y_size", y_size)):
        require_size(size, name)
        lead = len(shape) - len(size)
        if lead < 0 or any(n not in (1, wide) for n, wide in zip(size, shape[lead:], strict=True)):
            raise InvalidInputError(
                f"{name} must broadcast to the shape of grad, {shape}, got {tuple(size)}", argument=name
            )
    if not isinstance(alpha, int | float):
        raise InvalidInputError(f"alpha must be a number, got {type(alpha).__name__}", argument="alpha")
    if isinstance(alpha, int) and not -(2**63) <= alpha < 2**64:
        raise InvalidInputError(f"alpha must fit 64 bits, got {alpha}", argument="alpha")
    require_flags(output_mask, 2, "output_mask")


def outputs(grad: Any, x_size: Any, y_size: Any, alpha: Any, output_mask: Any) -> Any:
    """Describe the gradients for dense ``grad`` without sizes of 0 or 1; None for others."""
    # Comparing an unknown size would fix it.
    if not all(type(n) is int and n > 1 for n in grad.shape) or not grad.is_dense():
        return None

    def undone(size: tuple[int, ...]) -> TensorMeta:
        if summed_dims(tuple(grad.shape), size):
            return TensorMeta.row_major(tuple(size), grad.dtype, grad.device)
        return TensorMeta(tuple(size), grad.strides, grad.dtype, grad.device)

    sizes = zip((x_size, y_size), output_mask, strict=True)
    return tuple(undone(size) if mask else None for size, mask in sizes)


def idle(problem: Problem) -> str:
    """Return why there is nothing to add up; empty if there is something."""
    return "nothing to add up: no operand with a requested gradient was broadcast" if problem.view else ""


def cost(grad: Any, x_size: Any, y_size: Any, alpha: Any, output_mask: Any) -> Cost:
    """Count grad read once, the gradients written; without broadcasting, a gradient shares grad's memory."""
    written = flops = 0
    for size, mask, scaled in ((x_size, output_mask[0], False), (y_size, output_mask[1], alpha != 1)):
        elements = torch.Size(size).numel()
        if mask and (elements != grad.numel() or scaled):
            written += elements * grad.element_size()
            flops += grad.numel()
    return Cost(bytes=(grad.nbytes if written else 0) + written, flops=flops)


def magnitude(grad: Tensor, x_size: Any, y_size: Any, alpha: Number, output_mask: Any) -> Any:
    """Return the gradients of absolute values."""
    return reference(grad.abs(), x_size, y_size, abs(alpha), output_mask)


def terms(grad: Any, x_size: Any, y_size: Any, alpha: Any, output_mask: Any) -> int:
    """Return how often the smaller operand is repeated."""
    least = min(torch.Size(x_size).numel(), torch.Size(y_size).numel())
    return max(int(grad.numel()) // max(least, 1), 1)


def view(grad: Any, x_size: Any, y_size: Any, alpha: Any, output_mask: Any) -> bool:
    """Return whether no operand with a requested gradient was broadcast."""
    wanted = (size for size, mask in zip((x_size, y_size), output_mask, strict=True) if mask)
    return not any(summed_dims(tuple(grad.shape), size) for size in wanted)


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("row_broadcast", (rand(37, 65), (37, 65), (65,)), {"alpha": 2.0}, SMOKE),
    Sample("channel_broadcast", (rand(4, 3, 5, 6), (4, 3, 5, 6), (3, 1, 1)), {"alpha": -0.5}, SMOKE),
    Sample("long_column", (rand(2049, 3), (2049, 3), (1, 3)), {"alpha": 1}, SMOKE),
    Sample("both_broadcast", (rand(7, 6, 5), (7, 1, 5), (1, 6, 5)), {"alpha": 3.0}),
    Sample("not_broadcast", (rand(6, 50), (6, 50), (6, 50)), {"alpha": 2.0}),
    Sample("to_zero_dimensions", (rand(6, 50), (6, 50), ()), {"alpha": 2.0}),
    Sample("only_first", (rand(6, 50), (1, 50), (6, 50)), {"output_mask": (True, False)}),
    Sample("only_second", (rand(6, 50), (6, 50), (50,)), {"output_mask": (False, True)}),
    Sample("no_elements", (rand(0, 5), (0, 5), (5,)), tags=DEGENERATE),
    Sample("one_element", (rand(1, 1), (1, 1), (1,))),
    Sample("stride_zero_grad", (rand(6, 50, layout="expanded"), (6, 50), (50,))),
    Sample("transposed", (rand(31, 17, layout="transposed"), (31, 17), (17,))),
    Sample("leading_one", (rand(1, 4), (1, 1), (4,)), {"alpha": 3.0}),
    Sample("gaps_in_memory", (rand(31, 18, layout="strided"), (31, 18), (18,))),
    Sample("channels_last", (rand(2, 8, 4, 5, layout="channels_last"), (2, 8, 4, 5), (8, 1, 1))),
    Sample("odd_storage_offset", (rand(33, 17, layout="sliced"), (33, 17), (17,))),
    Sample("nan", (rand(5, 257, values="nan"), (5, 257), (257,)), tags=SMOKE),
    Sample("accumulator_drift", (rand(3001, 16, low=0, high=2), (3001, 16), (16,))),
    Sample("bias", (rand(64, 16, 32, 32), (64, 16, 32, 32), (16, 1, 1)), tags=BENCH),
    Sample("row_bias", (rand(8192, 1024), (8192, 1024), (1024,)), tags=BENCH),
)

ERRORS = (
    ErrorCase("not_a_tensor", (1.0, (4,), (4,)), match="grad must be a tensor, got float"),
    ErrorCase("integers", (rand(4, dtype=torch.int64), (4,), (4,)), match="grad must have a floating dtype"),
    ErrorCase("size", (rand(4), (3,), (4,)), match=r"x_size must broadcast .* \(4,\), got \(3,\)"),
    ErrorCase("rank", (rand(4), (4,), (1, 4)), match=r"y_size must broadcast .* \(4,\), got \(1, 4\)"),
)

SPEC = OpSpec(
    name="add_backward",
    params=(
        Param("grad", "tensor"),
        Param("x_size", "size"),
        Param("y_size", "size"),
        Param("alpha", "scalar", 1),
        Param("output_mask", "static", BOTH),
    ),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    view=view,
    idle=idle,
    outputs=outputs,
    ways=lambda grad, x_size, y_size, alpha, mask: ways(grad, *compress((x_size, y_size), mask)),
)
