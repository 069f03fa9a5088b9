"""cross_entropy: the negative logarithm of what the softmax of each row gives to its class.

    loss = -(1 - s) weight[t] logp[t] - s / C sum_c weight[c] logp[c],  logp = log_softmax(input), t = target

with s the label smoothing and C the number of classes. Semantics of ``torch.nn.functional.cross_entropy``,
which takes classes' probabilities too.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.linear_cross_entropy import casts
from nxcore.ops.softmax import apart
from nxcore.plugin import (
    YES,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Verdict,
    Way,
    brief,
    no,
    rand,
    require_tensor,
)

REDUCTIONS = ("none", "mean", "sum")
BYTE = torch.uint8


def axis_of(x: Any) -> int:
    """Return the axis of the classes: of (C,) the first, else the second."""
    return min(len(x.shape) - 1, 1)


def targets_of(x: Any) -> tuple[int, ...]:
    """Return the shape of the targets: without the classes' axis."""
    axis = axis_of(x)
    return (*x.shape[:axis], *x.shape[axis + 1 :])


def reference(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross entropy of logits and class indices, accumulating in float32 or wider.

    Parameters
    ----------
    input : Tensor
        Logits of shape (N, C), (N, C, d1, ...) or (C,), floating, any strides.
    target : Tensor
        int64 or uint8, of the shape without C: classes from 0 to C - 1, or ``ignore_index``. Another one ends
        the call with torch's error, on a CUDA device with one of the device.
    weight : Tensor, optional
        Shape (C,), dtype of ``input``: a factor for each class. It has no gradient, as in torch.
    ignore_index : int, default -100
        Rows with this target have no loss and no gradient.
    reduction : str, default "mean"
        ``"none"``, ``"mean"`` (over the rows that aren't ignored, by their classes' weights) or ``"sum"``.
    label_smoothing : float, default 0.0
        From 0 to 1: the share of the uniform distribution in the targets.

    Returns
    -------
    Tensor
        Dtype of ``input``, shape () or, with reduction ``"none"``, that of ``target``.

    Raises
    ------
    InvalidInputError
        If the arguments' shapes, dtypes or devices don't fit each other, a setting isn't one of these, or
        targets are probabilities, which torch's own function takes.

    Examples
    --------
    >>> nxcore.ops.cross_entropy(torch.eye(2), torch.tensor([0, 1]))
    tensor(0.3133)
    """
    dtype, wide = input.dtype, torch.promote_types(input.dtype, torch.float32)
    if wide is dtype:
        return torchs(input, target, weight, ignore_index, reduction, label_smoothing)
    factor = None if weight is None else weight.to(wide)
    return torchs(input.to(wide), target, factor, ignore_index, reduction, label_smoothing).to(dtype)


def torchs(
    x: Tensor, target: Tensor, weight: Tensor | None, ignored: int, reduction: str, smoothing: float
) -> Tensor:
    """Return what torch's own function does, which rounds half types on the way."""
    return functional.cross_entropy(
        x, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing
    )


def _accepts(problem: Any) -> Verdict:
    """Refuse smoothed losses: torch's function rounds each row's sum to half types on the way."""
    return YES if problem["label_smoothing"] == 0 else no("rounds smoothed losses on the way")


torchs.accepts = _accepts  # type: ignore[attr-defined]  # read by the backend "torch"


def check(x: Any, target: Any, weight: Any, ignored: Any, reduction: Any, smoothing: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "input")
    if not x.ndim:
        raise InvalidInputError("input must be (N, C, ...) or (C,), got shape ()", argument="input")
    require_tensor(target, "target", floating=False)
    if target.dtype not in (torch.int64, BYTE):
        wanted = "class indices, torch.int64 or torch.uint8: torch.nn.functional.cross_entropy takes others"
        raise InvalidInputError(f"target must be {wanted}, got {target.dtype}", argument="target")
    shape = targets_of(x)
    if tuple(target.shape) != shape:
        message = f"target must have shape {shape}, got {tuple(target.shape)}"
        raise InvalidInputError(message, argument="target")
    if weight is not None:
        require_tensor(weight, "weight")
        _require_weight(x, weight)
    for name, value in (("target", target), ("weight", weight)):
        if value is not None and value.device != x.device:
            message = f"{name} must be on the device of input, {x.device}, got {value.device}"
            raise InvalidInputError(message, argument=name)
    require_settings(ignored, reduction, smoothing)
    if target.numel() and not x.numel():
        raise InvalidInputError(f"input must have classes, got shape {tuple(x.shape)}", argument="input")


def _require_weight(x: Any, weight: Any) -> None:
    classes = (x.shape[axis_of(x)],)
    if tuple(weight.shape) != classes or (weight.dtype != x.dtype and not casts(x.device)):
        came = f"{weight.dtype} {tuple(weight.shape)}"
        raise InvalidInputError(f"weight must be {x.dtype} {classes}, got {came}", argument="weight")


def require_settings(ignored: Any, reduction: Any, smoothing: Any) -> None:
    """Raise unless the settings of a loss are some."""
    if type(ignored) is not int or not -(2**63) <= ignored < 2**63:
        message = f"ignore_index must be an integer of 64 bits, got {brief(ignored)}"
        raise InvalidInputError(message, argument="ignore_index")
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        message = f"reduction must be 'none', 'mean' or 'sum', got {brief(reduction)}"
        raise InvalidInputError(message, argument="reduction")
    if type(smoothing) not in (int, float) or not 0 <= smoothing <= 1:
        message = f"label_smoothing must be a number from 0 to 1, got {brief(smoothing)}"
        raise InvalidInputError(message, argument="label_smoothing")


def outputs(x: Any, target: Any, weight: Any, ignored: Any, reduction: Any, _: Any) -> TensorMeta | None:
    """Describe the loss; None where there is nothing."""
    if not x.numel():
        return None
    return TensorMeta.row_major(targets_of(x) if reduction == "none" else (), x.dtype, x.device)


def ways(x: Any, target: Any, weight: Any, ignored: Any, reduction: Any, _: Any) -> tuple[Way, ...]:
    """Divide by row; a sum or mean of rows is that of its parts."""
    whole = () if weight is None else (None,)
    rows = [(d, d - (d > axis_of(x))) for d in range(len(x.shape)) if d != axis_of(x)]
    if reduction == "none":
        return tuple(Way((d, e, *whole), e, audits=True) for d, e in rows)
    return tuple(Way((d, e, *whole), None, audits=True, joins=reduction) for d, e in rows)


def along(x: Tensor, target: Tensor, weight: Tensor | None, ignored: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return along the classes' axis: which rows are kept, their classes, and the weights of these."""
    kept = target != ignored
    at = target.long().where(kept, 0).unsqueeze(axis_of(x))
    own = kept.unsqueeze(axis_of(x)).to(x.dtype)
    return kept, at, own if weight is None else own * weight.to(x.dtype)[at]


def of_classes(x: Tensor, weight: Tensor | None) -> Tensor:
    """Return the weights of the classes, which broadcast to the logits."""
    axis = axis_of(x)
    if weight is None:
        return x.new_ones(()).expand([n if i == axis else 1 for i, n in enumerate(x.shape)])
    return weight.to(x.dtype).view([-1 if i == axis else 1 for i in range(x.ndim)])


def magnitude(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignored: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """Return the loss with the scale of the errors of log-probabilities in place of these."""
    axis = axis_of(x)
    d = apart(x, axis)
    far = 1 + math.log(max(x.shape[axis], 1)) + d + (torch.softmax(x, axis) * d).sum(axis, keepdim=True)
    far = far.nan_to_num(nan=0.0)
    kept, at, own = along(x, target, weight, ignored)
    losses = (1 - smoothing) * own.abs() * far.gather(axis, at)
    if smoothing:
        each = (of_classes(x, weight).abs() * far).sum(axis, keepdim=True)
        losses = losses + (smoothing / x.shape[axis] * each).where(kept.unsqueeze(axis), 0)
    losses = losses.squeeze(axis)
    if reduction == "none":
        return losses
    return losses.sum() * (shift(own) if reduction == "mean" else 1)


def shift(own: Tensor) -> Tensor:
    """Return what errors of a mean's divisor are multiplied by: weights may be below 0."""
    return own.abs().sum() / own.sum() ** 2


def cost(x: Any, target: Any, weight: Any, ignored: Any, reduction: Any, _: Any) -> Cost:
    """Count the arguments read once, and the losses written once."""
    made = target.numel() if reduction == "none" else 1
    return Cost(bytes=x.nbytes + target.nbytes + made * x.element_size(), flops=4 * x.numel())


def terms(x: Any, *_: Any) -> int:
    """Return the number of classes, or of rows, which is larger."""
    classes = int(x.shape[axis_of(x)])
    return max(classes, int(x.numel()) // max(classes, 1), 1)


def classes(shape: tuple[int, ...], count: int) -> Any:
    """Describe targets."""
    return rand(*shape, low=0, high=max(count, 1), dtype=torch.int64)


def _of(name: str, size: tuple[int, ...], *tags: str, **how: Any) -> Sample:
    """Return a sample of logits of a size, with these settings; some describe the logits."""
    described = {key: how.pop(key) for key in ("layout", "values", "low", "high") if key in how}
    x = rand(*size, **described)
    return Sample(name, (x, classes(targets_of(x), size[axis_of(x)])), how, frozenset(tags or ("edge",)))


def _weights(count: int) -> Any:
    return rand(count, low=0.5, high=2.0)


SAMPLES = (
    _of("last_block_partly_filled", (21, 37), "smoke"),
    _of("each_row", (7, 20), "smoke", reduction="none"),
    _of("whole_vectors", (9, 64), "smoke", reduction="sum"),
    _of("ignored_rows", (17, 5), "smoke", ignore_index=2),
    _of("smoothed", (6, 33), "smoke", label_smoothing=0.2),
    _of("weighted", (11, 19), "smoke", weight=_weights(19)),
    _of("nan", (6, 20), "smoke", values="lone_nan", reduction="none"),
    _of("longer_than_a_warp", (3, 1031), reduction="none"),
    _of("longer_than_a_block", (2, 17000), label_smoothing=0.1),
    _of("many_rows", (3000, 6), reduction="sum"),
    _of("smoothed_weighted_and_ignored", (23, 7), weight=_weights(7), label_smoothing=0.3, ignore_index=1),
    _of("weighted_each", (11, 19), weight=_weights(19), reduction="none", label_smoothing=0.1),
    _of("ignored_each", (17, 5), ignore_index=2, reduction="none"),
    _of("segmentation", (2, 5, 3, 7), ignore_index=0),
    _of("segmentation_each", (2, 5, 3, 7), reduction="none", label_smoothing=0.1),
    _of("sequence", (3, 6, 9), weight=_weights(6), reduction="sum"),
    _of("channels_last", (2, 6, 3, 5), layout="channels_last", reduction="none"),
    _of("transposed", (33, 6), layout="transposed", reduction="none"),
    _of("odd_storage_offset", (5, 16), layout="sliced"),
    _of("gaps_in_memory", (4, 6), layout="strided"),
    _of("expanded", (4, 8), layout="expanded", reduction="none"),
    Sample("targets_with_gaps", (rand(9, 8), rand(9, low=0, high=8, dtype=torch.int64, layout="strided"))),
    Sample("bytes", (rand(9, 8), rand(9, low=0, high=8, dtype=BYTE))),
    _of("exp_overflow", (9, 16), low=900, high=905, reduction="none"),
    _of("infinite", (6, 14), values="inf", reduction="none"),
    _of("equal", (3, 24), "degenerate", values="zeros"),
    _of("one_row", (8,)),
    _of("one_class", (5, 1), "degenerate"),
    _of("all_ignored", (4, 1), "degenerate", ignore_index=0),
    _of("no_rows", (0, 4), "degenerate"),
    _of("no_rows_each", (3, 4, 0), "degenerate", reduction="none"),
    _of("long_rows", (512, 4096), "bench"),
    _of("language_model", (1024, 32000), "bench"),
    _of("pixels", (8, 21, 128, 128), "bench", ignore_index=0),
)

X, T = rand(4, 5), classes((4,), 5)


def _wrong(name: str, given: dict[str, Any], match: str) -> ErrorCase:
    return ErrorCase(name, (X, T), match, given)


ERRORS = (
    ErrorCase("number", (rand(), classes((), 1)), r"input must be \(N, C, ...\) or \(C,\), got shape \(\)"),
    ErrorCase("integers", (rand(4, 5, dtype=torch.int64), T), "input must have a floating dtype"),
    ErrorCase("probabilities", (X, rand(4, 5)), "target must be class indices, .* takes others, got"),
    ErrorCase("narrow", (X, rand(4, low=0, high=5, dtype=torch.int32)), "target must be class indices"),
    ErrorCase("targets", (X, classes((3,), 5)), r"target must have shape \(4,\), got \(3,\)"),
    ErrorCase("elsewhere", (X, rand(4, low=0, high=5, dtype=torch.int64, device="meta")), "on the device of"),
    ErrorCase("no_classes", (rand(4, 0), T), r"input must have classes, got shape \(4, 0\)"),
    _wrong("weight", {"weight": rand(4)}, r"weight must be torch.float32 \(5,\), got torch.float32 \(4,\)"),
    _wrong("weights_dtype", {"weight": rand(5, dtype=torch.float16)}, "weight must be torch.float32"),
    _wrong("reduction", {"reduction": "max"}, "reduction must be 'none', .* got 'max'"),
    _wrong("ignored", {"ignore_index": None}, "ignore_index must be an integer of 64 bits, got None"),
    _wrong("smoothing", {"label_smoothing": -0.5}, "label_smoothing must be .* got -0.5"),
)


def _backward(grad: Any, mask: tuple[bool, ...], *args: Any) -> tuple[Any, ...]:
    if any(mask[2:]):
        raise InvalidInputError("weight must not require a gradient, as in torch", argument="weight")
    return grad, *args, (*mask, False)[:3]


SPEC = OpSpec(
    name="cross_entropy",
    params=(
        *(Param("input", "tensor"), Param("target", "tensor"), Param("weight", "tensor", None)),
        Param("ignore_index", "static", -100, keyword=True),
        Param("reduction", "static", "mean", keyword=True),
        Param("label_smoothing", "static", 0.0, keyword=True),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    idioms=MappingProxyType({"cross_entropy": torchs}),
    gradient=Gradient("cross_entropy_backward", _backward, saves=("input", "target", "weight")),
    outputs=outputs,
    ways=ways,
    sketches=lambda x, target, *_: {"target": below(x, target)},
    autocast=MappingProxyType({"cpu": "float32", "cuda": "float32"}),
)


def below(x: Any, target: Any) -> Any:
    """Describe targets of logits."""
    return rand(*target.shape, low=0, high=max(x.shape[axis_of(x)], 1), dtype=target.dtype)
