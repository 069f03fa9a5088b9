"""add: elementwise sum with broadcasting and type promotion.

    out = x + alpha * y

Semantics of ``torch.add``; broadcasting as in NumPy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import (
    DEGENERATE,
    SAME,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    broadcast_shapes,
    is_tensor,
    rand,
    require_tensor,
)

Number = int | float


def reference(x: Tensor, y: Tensor | Number, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return ``x + alpha * y``, broadcast and promoted as ``torch.add`` does.

    Parameters
    ----------
    x : Tensor
        Any shape, strides and dtype.
    y : Tensor or number
        Broadcastable with ``x``, on its device (a 0-d tensor may be on the CPU).
    alpha : number, default 1
        Must be an integer where the result has an integer dtype.
    out : Tensor, optional
        The tensor to write and return, with the result's shape, and a dtype that the result can be cast to.
        It may be ``x`` or ``y``, and must not overlap them otherwise.

    Returns
    -------
    Tensor
        The broadcast shape, the promoted dtype, torch's memory format.

    Raises
    ------
    InvalidInputError
        If shapes don't broadcast, devices differ, ``alpha`` doesn't fit the dtype, or ``out`` doesn't fit.

    Examples
    --------
    >>> nxcore.ops.add(torch.ones(2, 1), torch.arange(3.0), alpha=2)
    tensor([[1., 3., 5.],
            [1., 3., 5.]])
    """
    return torch.add(x, y, alpha=alpha, out=out)


def result_dtype(x: Any, y: Any) -> torch.dtype:
    """Return torch's promoted dtype, from tensors or descriptions of them."""
    if is_tensor(x) and is_tensor(y) and x.dtype == y.dtype:
        dtype: torch.dtype = x.dtype
        return dtype
    stand_ins = [
        torch.empty((1,) * v.ndim, dtype=v.dtype, device="meta") if is_tensor(v) else v for v in (x, y)
    ]
    try:
        return torch.result_type(*stand_ins)
    except RuntimeError as error:  # 8-bit floats promote to no other type
        came = " and ".join(str(v.dtype) if is_tensor(v) else type(v).__name__ for v in (x, y))
        raise InvalidInputError(f"x and y must have dtypes that promote to one, got {came}") from error


def broadcast(x: Any, y: Any) -> tuple[int, ...]:
    """Return the shape that ``x`` and ``y`` broadcast to."""
    shapes = [tuple(v.shape) for v in (x, y) if is_tensor(v)]
    plain = all(type(n) is int for shape in shapes for n in shape)
    if plain and len(set(shapes)) == 1:
        return shapes[0]  # a compiler's sizes are symbols: comparing them would add guards
    try:
        return broadcast_shapes(shapes[0], shapes[-1])
    except RuntimeError as error:
        raise InvalidInputError(f"y must broadcast with x, got shapes {shapes[0]} and {shapes[1]}") from error


def check(x: Any, y: Any, alpha: Any, out: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x", floating=False, strided=False)
    if isinstance(y, Tensor):
        require_tensor(y, "y", floating=False, strided=False)
    elif not isinstance(y, int | float | complex):
        raise InvalidInputError(f"y must be a tensor or a number, got {type(y).__name__}", argument="y")
    for name, value in (("y", y), ("alpha", alpha)):
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise InvalidInputError(f"{name} must fit 64 bits, got {value}", argument=name)
    if is_tensor(y) and x.device != y.device and "cpu" not in _scalar_devices(x, y):
        raise InvalidInputError(f"y must be on the device of x, {x.device}, got {y.device}", argument="y")
    if not isinstance(alpha, int | float | complex):
        raise InvalidInputError(f"alpha must be a number, got {type(alpha).__name__}", argument="alpha")
    shape, dtype = broadcast(x, y), result_dtype(x, y)
    if isinstance(alpha, float) and not (dtype.is_floating_point or dtype.is_complex):
        raise InvalidInputError(f"alpha must be an integer for a result of {dtype}, got {alpha}")
    if isinstance(alpha, complex) and not dtype.is_complex:
        raise InvalidInputError(f"alpha must be real for a result of {dtype}, got {alpha}", argument="alpha")
    if isinstance(alpha, bool) and dtype is not torch.bool:
        raise InvalidInputError(f"alpha must not be a bool for a result of {dtype}, got {alpha}")
    if out is not None:
        _check_out(x, y, out, shape, dtype)


def _scalar_devices(x: Any, y: Any) -> set[str]:
    return {v.device.type for v in (x, y) if v.ndim == 0}


def outputs(x: Any, y: Any, alpha: Any, out: Any) -> TensorMeta | None:
    """Describe the sum of dense tensors of one layout, or of a tensor and a number; None for others."""
    if not is_tensor(x):
        return None
    # The ranks first: comparing different sizes would make a trace assume that they always differ.
    alike = x.ndim == y.ndim and y == x if is_tensor(y) else y is not complex and x.dtype.is_floating_point
    # Where a size is 1, torch chooses the stride.
    return x if alike and x.is_dense() and 1 not in x.shape and x.numel() else None


def _check_out(x: Any, y: Any, out: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    require_tensor(out, "out", floating=False)
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise InvalidInputError(
            "out must not be an inference tensor outside torch.inference_mode()", argument="out"
        )
    if tuple(out.shape) != shape:
        raise InvalidInputError(f"out must have shape {shape}, got {tuple(out.shape)}", argument="out")
    if not torch.can_cast(dtype, out.dtype):
        raise InvalidInputError(
            f"out must have a dtype that {dtype} casts to, got {out.dtype}", argument="out"
        )
    device = next((v.device for v in (x, y) if is_tensor(v) and v.device.type != "cpu"), x.device)
    if out.device != device:
        raise InvalidInputError(f"out must be on {device}, got {out.device}", argument="out")
    grads = any(getattr(v, "requires_grad", False) for v in (x, y, out))
    if grads and torch.is_grad_enabled():
        raise InvalidInputError("out can't be differentiated; leave it out or use torch.no_grad()")


def ways(x: Any, y: Any, alpha: Any, out: Any) -> tuple[Way, ...]:
    """Divide along any dimension of the result; all parts take an operand broadcast along it whole."""
    shape = broadcast(x, y)
    from_right = [(size, d - len(shape)) for d, size in enumerate(shape) if size != 1 and out is None]

    def cut(v: Any, size: int, d: int) -> int | None:
        return v.ndim + d if v.ndim + d >= 0 and v.shape[d] == size else None

    tensors = [v for v in (x, y) if is_tensor(v)]
    return tuple(Way(tuple(cut(v, n, d) for v in tensors), len(shape) + d) for n, d in from_right)


def cost(x: Any, y: Any, alpha: Any, out: Any) -> Cost:
    """Count both operands read once, the result written once."""
    shape, dtype = broadcast(x, y), result_dtype(x, y)
    elements = TensorMeta(shape, (0,) * len(shape), dtype, x.device).numel()
    written = out.dtype.itemsize if out is not None else dtype.itemsize
    read = x.nbytes + (y.nbytes if is_tensor(y) else 0)
    return Cost(bytes=read + elements * written, flops=elements * (1 if alpha == 1 else 2))


def magnitude(x: Tensor, y: Any, alpha: Number, out: Any) -> Tensor:
    """Return the sum of absolute values."""
    return torch.add(x.abs(), abs(y), alpha=abs(alpha))


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, y: Any, alpha: Any, out: Any) -> tuple[Any, ...]:
    y_size = tuple(y.shape) if is_tensor(y) else ()
    return grad, tuple(x.shape), y_size, alpha, (*mask, False)[:2]


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("last_block_partly_filled", (rand(1025), rand(1025)), tags=SMOKE),
    Sample("alpha_dropped", (rand(6, 70), rand(6, 70)), {"alpha": -2.5}, SMOKE),
    Sample("row_broadcast", (rand(5, 33), rand(33)), tags=SMOKE),
    Sample("channel_broadcast", (rand(2, 3, 4, 5), rand(3, 1, 1)), {"alpha": 0.5}, SMOKE),
    Sample("out_ignored", (rand(6, 70), rand(6, 70)), {"out": rand(6, 70)}, SMOKE),
    Sample("out_with_gaps", (rand(17, 9), rand(17, 9)), {"out": rand(17, 9, layout="strided")}),
    Sample("one_element", (rand(1), rand(1))),
    Sample("zero_dimensions", (rand(), rand())),
    Sample("no_elements", (rand(0, 3), rand(3)), tags=DEGENERATE),
    Sample("both_broadcast", (rand(7, 1, 5), rand(1, 6, 5))),
    Sample("scalar_tensor", (rand(3, 40), rand())),
    Sample("number", (rand(3, 40), 1.5)),
    Sample("power_of_two_less_one", (rand(4095), rand(4095))),
    Sample("power_of_two", (rand(4096), rand(4096))),
    Sample("power_of_two_plus_one", (rand(4097), rand(4097))),
    Sample("prime", (rand(10007), rand(10007))),
    Sample("transposed", (rand(31, 17, layout="transposed"), rand(31, 17, layout="transposed"))),
    Sample("one_transposed", (rand(31, 17, layout="transposed"), rand(31, 17))),
    Sample(
        "channels_last",
        (rand(2, 3, 4, 5, layout="channels_last"), rand(2, 3, 4, 5, layout="channels_last")),
    ),
    Sample("odd_storage_offset", (rand(257, layout="sliced"), rand(257, layout="sliced"))),
    Sample("gaps_in_memory", (rand(17, 9, layout="strided"), rand(17, 9))),
    Sample("expanded", (rand(6, 8, layout="expanded"), rand(6, 8))),
    Sample("promotion", (rand(50), rand(50, dtype=torch.float32)), {"alpha": 3}),
    Sample("half_operand_scaled_in_half", (rand(50), rand(50, dtype=torch.float16)), {"alpha": 3}),
    Sample("promotion_of_the_first", (rand(50, dtype=torch.float32), rand(50)), {"alpha": 3}),
    Sample("nan", (rand(64, values="nan"), rand(64)), tags=SMOKE),
    Sample("inf_minus_inf", (rand(64, values="inf"), rand(64, values="inf")), {"alpha": -1}),
    Sample("zero_times_inf", (rand(64), rand(64, values="inf")), {"alpha": 0}),
    Sample("denormal", (rand(64, values="denormal"), rand(64, values="denormal")), tags=DEGENERATE),
    Sample("cancellation", (rand(999, low=1000, high=1100), rand(999, low=1000, high=1100)), {"alpha": -1}),
    Sample("small", (rand(1024), rand(1024)), tags=BENCH),
    Sample("medium", (rand(102_400), rand(102_400)), tags=BENCH),
    Sample("large", (rand(4_194_304), rand(4_194_304)), tags=BENCH),
    Sample("bias", (rand(64, 16, 32, 32), rand(16, 1, 1)), tags=BENCH),
    Sample("very_large", (rand(67_108_864), rand(67_108_864)), tags=BENCH | {"huge"}),
)

ERRORS = (
    ErrorCase("shapes", (rand(3), rand(4)), match=r"must broadcast with x, got shapes \(3,\) and \(4,\)"),
    ErrorCase("not_a_tensor", ("a", rand(4)), match="x must be a tensor, got str"),
    ErrorCase("neither_tensor_nor_number", (rand(4), "a"), match="y must be a tensor or a number, got str"),
    ErrorCase("devices", (rand(4), rand(4, device="meta")), match="y must be on the device of x, cpu"),
    ErrorCase(
        "float_alpha_for_integers",
        (rand(4, dtype=torch.int64), rand(4, dtype=torch.int64)),
        match="alpha must be an integer for a result of torch.int64, got 1.5",
        kwargs={"alpha": 1.5},
    ),
    ErrorCase(
        "alpha_not_a_number", (rand(4), rand(4)), match="alpha must be a number", kwargs={"alpha": "a"}
    ),
    ErrorCase(
        "out_of_wrong_shape",
        (rand(4), rand(4)),
        match=r"out must have shape \(4,\), got \(5,\)",
        kwargs={"out": rand(5)},
    ),
    ErrorCase(
        "out_of_wrong_dtype",
        (rand(4), rand(4)),
        match="out must have a dtype that torch.float32 casts to, got torch.int32",
        kwargs={"out": rand(4, dtype=torch.int32)},
    ),
    ErrorCase("huge_number", (rand(4), 2**64), match="y must fit 64 bits, got 18446744073709551616"),
    ErrorCase("out_not_a_tensor", (rand(4), rand(4)), match="out must be a tensor", kwargs={"out": 3}),
)

SPEC = OpSpec(
    name="add",
    params=(
        Param("x", "tensor"),
        Param("y", "operand"),
        Param("alpha", "scalar", 1, keyword=True),
        Param("out", "out", None, keyword=True),
    ),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda x, y, alpha, out: 2,
    outputs=outputs,
    gradient=Gradient("add_backward", _backward),
    ways=ways,
    autocast=SAME,
)
