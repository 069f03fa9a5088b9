"""sep_conv2d_with_stats: sep_conv2d, and the mean and the variance of each channel of what it makes.

    y = sep_conv2d(x, ...);  mean and var over all dimensions of y but the second

What a batch norm behind it needs, as ``batch_norm`` returns it: ``var`` is with correction 1. Both are of y
before it is rounded to 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.ops.batch_norm import accumulator, require_channels, values
from nxcore.ops.sep_conv2d import SPEC as SEP_CONV2D
from nxcore.ops.sep_conv2d import check as check_sep_conv2d
from nxcore.ops.sep_conv2d import convolved, lowered
from nxcore.plugin import Cost, ErrorCase, Gradient, OpSpec, Problem, Sample, TensorMeta, rand
from nxcore.spec import LOWER, Layout

DIMS = (0, 2, 3)


def reference(
    x: Tensor,
    dw_weight: Tensor,
    pw_weight: Tensor,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    relu: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ReLU, depthwise convolution and 1x1 convolution, and each channel's mean and variance.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W).
    dw_weight, pw_weight, stride, padding, dilation, relu
        As in ``sep_conv2d``.

    Returns
    -------
    y : Tensor
        As ``sep_conv2d``.
    mean, var : Tensor
        (channels out,), float32 or wider, without a gradient; ``var`` with correction 1.

    Raises
    ------
    InvalidInputError
        As ``sep_conv2d``; or if ``y`` has one value a channel or none.
    """
    if lower := lowered(x):
        with torch.autocast(x.device.type, enabled=False):
            given = (x.to(lower), dw_weight.to(lower), pw_weight.to(lower))
            return reference(*given, stride, padding, dilation, relu)
    y = convolved(x, dw_weight, pw_weight, stride, padding, dilation, relu)
    var, mean = torch.var_mean(y.detach(), DIMS, correction=1)
    return y.to(x.dtype), mean, var


def check(x: Any, *rest: Any) -> None:
    """Refuse what the operator isn't defined for."""
    check_sep_conv2d(x, *rest)
    if x.ndim != 4:
        raise InvalidInputError(f"x must be (N, C, H, W), got {tuple(x.shape)}", argument="x")
    require_channels(SEP_CONV2D.outputs(x, *rest))


def outputs(x: Any, *rest: Any) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """Describe the result and the statistics."""
    y: TensorMeta = SEP_CONV2D.outputs(x, *rest)
    statistic = TensorMeta((y.shape[1],), (1,), accumulator(x), x.device)
    return y, statistic, statistic


def cost(*args: Any) -> Cost:
    """As sep_conv2d, and four operations an element for the statistics."""
    least, (y, mean, var) = SEP_CONV2D.cost(*args), outputs(*args)
    return Cost(bytes=least.bytes + mean.nbytes + var.nbytes, flops=least.flops + 4 * y.numel())


def magnitude(*args: Any) -> tuple[Tensor, ...]:
    """Return the scales: of y, of absolute values; of its statistics, theirs and what y's errors make."""
    scale, (y, _, var) = SEP_CONV2D.magnitude(*args), reference(*args)
    size, spread = (t.square().mean(DIMS).sqrt() for t in (scale, y))
    return scale, scale.mean(DIMS) + y.abs().mean(DIMS), var.sqrt() * (2 * size + spread)


def terms(*args: Any) -> int:
    """As many as an element of y has, and a channel of it."""
    return SEP_CONV2D.terms(*args) + values(SEP_CONV2D.outputs(*args))


def _backward(grad: Any, mask: tuple[bool, ...], *args: Any) -> tuple[Any, ...]:
    *given, _, _ = args
    return grad, *given, mask


def part(problem: Problem) -> Problem:
    """Return the call of sep_conv2d that one in float32 begins with."""
    return Problem(SEP_CONV2D, problem.args)


def planned(problem: Problem, plan: Callable[[Problem], Callable[..., Tensor]]) -> Callable[..., Any]:
    """Plan a call by a planner of sep_conv2d; the statistics are torch's work."""
    convolution = plan(part(problem))

    def call(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        y = convolution(*args)
        var, mean = torch.var_mean(y, DIMS, correction=1)
        return y, mean, var

    return call


LAYOUTS: dict[str, Layout] = {"gaps_in_memory": "strided", "transposed": "transposed", "expanded": "expanded"}
SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

LAID_OUT = tuple(
    Sample(name, (rand(2, 2, 4, 5, layout=layout), rand(2, 1, 3, 3), rand(3, 2, 1, 1), 1, 1))
    for name, layout in LAYOUTS.items()
)

SAMPLES = (
    Sample("three", (rand(2, 3, 5, 6), rand(3, 1, 3, 3), rand(4, 3, 1, 1), 1, 1), tags=SMOKE),
    Sample(
        "channels_last",
        (rand(2, 2, 4, 5, layout="channels_last"), rand(2, 1, 3, 3), rand(3, 2, 1, 1), 2, 1),
        tags=SMOKE,
    ),
    Sample("negative_counts", (rand(3, 2, 4, 4), rand(2, 1, 3, 3), rand(2, 2, 1, 1)), {"relu": False}),
    *LAID_OUT,
    *(
        Sample(
            f"darts_{side}", (rand(64, c, side, side), rand(c, 1, 3, 3), rand(c, c, 1, 1), 1, 1), tags=BENCH
        )
        for c, side in ((16, 32), (32, 16), (64, 8))
    ),
)

X, DW, PW = rand(2, 2, 4, 4), rand(2, 1, 3, 3), rand(3, 2, 1, 1)

ERRORS = (
    ErrorCase("rank", (rand(2, 4, 4), DW, PW), match=r"x must be \(N, C, H, W\), got \(2, 4, 4\)"),
    ErrorCase("points", (X, DW, rand(3, 3, 1, 1)), match=r"pw_weight must be \(channels out, 2, 1, 1\)"),
    ErrorCase("one_value", (rand(1, 2, 3, 3), DW, PW), match="Expected more than 1 value per channel"),
)

SPEC = OpSpec(
    name="sep_conv2d_with_stats",
    params=SEP_CONV2D.params,
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    outputs=outputs,
    gradient=Gradient("sep_conv2d_backward", _backward, saves=("x", "dw_weight", "pw_weight"), keeps=True),
    autocast=LOWER,
)
