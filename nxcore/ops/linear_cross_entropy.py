"""linear_cross_entropy: the cross entropy of a linear layer's result, without all logits at once.

    logits = input linear_weight^T + linear_bias;  out = cross_entropy(logits, target)

Semantics of ``torch.nn.functional.linear_cross_entropy``, which torch has since 2.13, for class indices. A
row of logits is as long as a vocabulary. Here a part of the rows at a time becomes log-probabilities, then
their gradient, in the same memory; compare Wijmans et al. 2024, arXiv:2411.09009. Gradients of a mean or a
sum are made with the loss: to make the logits again would take longer than all that is saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from nxcore.plugin import (
    DEGENERATE,
    Cost,
    ErrorCase,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    brief,
    rand,
    require_shape,
    require_tensor,
)

PARTS, PARTS_OF_LOSS = 4, 8
"""The parts of the rows. Torch holds three tensors of logits in a backward pass, and two for a loss alone."""

Rows = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]
Settings = tuple[str, int, float]


def reference(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross entropy of ``input @ linear_weight.T`` and ``target``, a part of the rows at a time.

    Parameters
    ----------
    input : Tensor
        Shape (N, D), floating, any strides.
    linear_weight : Tensor
        Shape (V, D), V >= 1, dtype and device of ``input``: a row for each class.
    target : Tensor
        int64, shape (N,): classes from 0 to V - 1, or ``ignore_index``.
    linear_bias : Tensor, optional
        Shape (V,), added to the logits.
    weight : Tensor, optional
        Shape (V,): a factor for each class. With it torch's own function runs, which holds all logits.
    reduction : str, default "mean"
        ``"none"``, ``"mean"`` (over the rows that aren't ignored, by their classes' weights) or ``"sum"``.
    ignore_index : int, optional
        Rows with this target have no loss and no gradient; by default -100.
    label_smoothing : float, default 0.0
        From 0 to 1: the share of the uniform distribution in the targets.

    Returns
    -------
    Tensor
        Dtype of ``input``, shape () or, with reduction ``"none"``, (N,).

    Raises
    ------
    InvalidInputError
        If the arguments' shapes, dtypes or devices don't fit each other, or a setting isn't one of these.

    Examples
    --------
    >>> nxcore.ops.linear_cross_entropy(torch.eye(2), torch.eye(2), torch.tensor([0, 1]))
    tensor(0.3133)
    """
    settings = reduction, -100 if ignore_index is None else ignore_index, label_smoothing
    x, w, b = input, linear_weight, linear_bias
    kind = input.device.type
    whole = weight is not None or not input.numel() or not torch.amp.is_autocast_available(kind)
    if whole or _transformed(x, w, b):
        return _of_all_rows(x, w, b, target, weight, settings)
    if casts(input.device):  # as torch casts: the product is in its dtype, the loss in float32
        lower = torch.get_autocast_dtype(kind)
        x, w, b = x.to(lower), w.to(lower), None if b is None else b.to(lower)
    with torch.autocast(kind, enabled=False):
        loss: Tensor
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, w, b)):
            loss = _ByParts.apply(x, w, b, target, settings)  # type: ignore[no-untyped-call]
        else:
            kept = target != settings[1]
            losses = _rows(x, w, b, target, kept, label_smoothing, None, (False,) * 3)[0]
            loss = _reduced(losses, kept, reduction)
        return loss.to(torch.promote_types(input.dtype, torch.float32) if x is not input else input.dtype)


def _transformed(*given: Tensor | None) -> bool:
    """Return whether torch's own function must run: autograd's function with its buffers can't be traced."""
    transform: Any = torch._C._functorch.peek_interpreter_stack()  # noqa: SLF001  there is no public test
    tangents = [forward_ad.unpack_dual(t).tangent for t in given if t is not None]
    return torch.compiler.is_compiling() or transform is not None or any(t is not None for t in tangents)


def casts(device: torch.device) -> bool:
    """Return whether autocast is on for a device."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def _of_all_rows(
    x: Tensor, w: Tensor, b: Tensor | None, target: Tensor, weight: Tensor | None, settings: Settings
) -> Tensor:
    reduction, ignored, smoothing = settings
    logits = functional.linear(x, w, b)
    return functional.cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing
    )


def _reduced(losses: Tensor, kept: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()


def _rows(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    target: Tensor,
    kept: Tensor,
    smoothing: float,
    factors: Tensor | None,
    wanted: tuple[bool, ...],
) -> Rows:
    """Return each row's loss, and the gradients of their sum with ``factors``, by default 1, where wanted.

    Ignored rows have the loss 0, and ``factors`` must be 0 for them.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    classes, parts = len(w), PARTS if any(wanted) else PARTS_OF_LOSS
    factors = kept.to(wide) if factors is None else factors.to(wide)
    losses = torch.empty(len(x), dtype=wide, device=x.device)
    by_x = torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else None
    by_w: Tensor | None = None
    by_b = torch.zeros(classes, dtype=wide, device=x.device) if wanted[2] else None
    at = target.where(kept, 0)[:, None]
    each = (t.chunk(parts) for t in (x, at, kept, factors, losses))
    for i, (rows, places, mask, factor, loss) in enumerate(zip(*each, strict=True)):
        logits = functional.linear(rows, w, b)
        logits = torch.log_softmax(logits, 1, out=logits)
        torch.mul(logits.gather(1, places)[:, 0].to(wide), smoothing - 1, out=loss)
        if smoothing:
            loss.sub_(logits.sum(1, dtype=wide), alpha=smoothing / classes)
        loss.masked_fill_(~mask, 0)
        if not any(wanted):
            del logits  # before the next part's are made
            continue
        by_logits = logits.exp_()
        by_logits.scatter_add_(1, places, by_logits.new_full((), smoothing - 1).expand(places.shape))
        if smoothing:
            by_logits.sub_(smoothing / classes)
        if by_x is not None:
            mine = torch.mm(by_logits, w, out=by_x.chunk(parts)[i])
            torch.mul(mine, factor[:, None], out=mine)
        scaled = (rows * factor[:, None]).to(x.dtype)
        if wanted[1]:
            by_w = by_logits.t() @ scaled if by_w is None else by_w.addmm_(by_logits.t(), scaled)
        if by_b is not None:
            by_b += (factor.to(x.dtype) @ by_logits).to(wide)
        del logits, by_logits
    return losses, by_x, by_w, None if by_b is None else by_b.to(w.dtype)


class _ByParts(torch.autograd.Function):
    """The loss, with the gradients of its sum made at once where they need no more than a factor later.

    In float16 they are made in the backward pass: a gradient that a loss's scale keeps from vanishing would
    have vanished before. So are those of a second backward pass, as the first takes the buffers over.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, target: Tensor, settings: Settings
    ) -> Tensor:
        """Return the loss in float32 or wider."""
        ctx.save_for_backward(x, w, b, target)
        ctx.settings = reduction, ignored, smoothing = settings
        kept = target != ignored
        at_once = reduction != "none" and x.dtype is not torch.float16
        wanted = ctx.needs_input_grad[:3] if at_once else (False,) * 3
        losses, *found = _rows(x, w, b, target, kept, smoothing, None, wanted)
        ctx.made = found if at_once else None
        return _reduced(losses, kept, reduction)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input, weight and bias."""
        (grad,) = grads
        x, w, b, target = ctx.saved_tensors
        reduction, ignored, smoothing = ctx.settings
        wanted, others = ctx.needs_input_grad[:3], (None,) * 2
        if torch.is_grad_enabled():  # a graph of the gradients is wanted
            loss = _of_all_rows(x, w, b, target, None, ctx.settings)
            leaves = [t for t, flag in zip((x, w, b), wanted, strict=True) if flag]
            found = iter(torch.autograd.grad(loss, leaves, grad.to(loss.dtype), create_graph=True))
            return *(next(found) if flag else None for flag in wanted), *others
        kept = target != ignored
        factor = grad / kept.sum() if reduction == "mean" else grad
        made, ctx.made = ctx.made, None
        with torch.autocast(x.device.type, enabled=False):
            if made is None:
                factors = torch.where(kept, factor, 0)
                made = _rows(x, w, b, target, kept, smoothing, factors, wanted)[1:]
            else:  # without a kept row the mean is NaN, but torch's gradient is 0
                factor = torch.where(kept.any(), factor, 0)
                for t in filter(torch.is_tensor, made):
                    torch._foreach_mul_([t], factor.to(t.dtype))  # at the speed of memory, unlike mul_
        return *made, *others


def check(
    x: Any, w: Any, target: Any, b: Any, weight: Any, reduction: Any, ignored: Any, smoothing: Any
) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "input")
    require_tensor(w, "linear_weight")
    if x.ndim != 2:
        raise InvalidInputError(f"input must be (N, D), got shape {tuple(x.shape)}", argument="input")
    rows, features = x.shape
    if w.ndim != 2 or w.shape[1] != features or not w.shape[0]:
        message = f"linear_weight must be (V, {features}), V >= 1, got shape {tuple(w.shape)}"
        raise InvalidInputError(message, argument="linear_weight")
    require_tensor(target, "target", floating=False)
    if target.dtype is not torch.int64:
        message = f"target must be class indices, torch.int64, got {target.dtype}"
        raise InvalidInputError(message, argument="target")
    require_shape(target, (rows,), "target")
    tensors = {"linear_weight": w, "target": target}
    for name, value in (("linear_bias", b), ("weight", weight)):
        if value is not None:
            require_tensor(value, name)
            require_shape(value, (w.shape[0],), name)
            tensors[name] = value
    cast = casts(x.device)
    for name, value in tensors.items():
        if value.device != x.device:
            message = f"{name} must be on the device of input, {x.device}, got {value.device}"
            raise InvalidInputError(message, argument=name)
        if value is not target and value.dtype != x.dtype and not cast:
            message = f"{name} must have the dtype of input, {x.dtype}, got {value.dtype}"
            raise InvalidInputError(message, argument=name)
    if not isinstance(reduction, str) or reduction not in ("none", "mean", "sum"):
        message = f"reduction must be 'none', 'mean' or 'sum', got {brief(reduction)}"
        raise InvalidInputError(message, argument="reduction")
    if ignored is not None and (type(ignored) is not int or not -(2**63) <= ignored < 2**63):
        message = f"ignore_index must be an integer or None, got {brief(ignored)}"
        raise InvalidInputError(message, argument="ignore_index")
    if type(smoothing) not in (int, float) or not 0 <= smoothing <= 1:
        message = f"label_smoothing must be a number from 0 to 1, got {brief(smoothing)}"
        raise InvalidInputError(message, argument="label_smoothing")


def cost(x: Any, w: Any, target: Any, *_: Any) -> Cost:
    """Count the arguments read once, and one product."""
    return Cost(bytes=x.nbytes + w.nbytes + target.nbytes, flops=2 * x.numel() * w.shape[0])


def magnitude(
    x: Any, w: Any, target: Any, b: Any, weight: Any, reduction: Any, ignore_index: Any, *_: Any
) -> Tensor:
    """Return twice the largest logit of each row, on absolute values: a loss is the difference of two."""
    largest = functional.linear(x.abs(), w.abs(), None if b is None else b.abs())
    factor = 1 if weight is None else weight.abs().amax()
    kept = target != (-100 if ignore_index is None else ignore_index)
    losses = (2 * factor * largest.amax(1)).masked_fill(~kept, 0)
    return _reduced(losses, kept, reduction) / (weight.abs().amin() if weight is not None else 1)


def outputs(x: Any, w: Any, target: Any, b: Any, weight: Any, reduction: Any, *_: Any) -> TensorMeta:
    """Describe the loss."""
    shape = (x.shape[0],) if reduction == "none" else ()
    return TensorMeta(shape, (1,) * len(shape), x.dtype, x.device)


def ways(x: Any, w: Any, target: Any, b: Any, weight: Any, reduction: Any, *_: Any) -> tuple[Way, ...]:
    """Divide by row, of which each depends on all of the linear layer; a sum or mean is that of its parts."""
    whole = (None,) * sum(t is not None for t in (b, weight))
    if reduction == "none":
        return (Way((0, None, 0, *whole), 0, audits=True),)
    return (Way((0, None, 0, *whole), None, audits=True, joins=reduction),)


def classes(rows: int, count: int) -> Any:
    """Describe targets."""
    return rand(rows, low=0, high=count, dtype=torch.int64)


def _of(name: str, rows: int, features: int, count: int, *tags: str, **how: Any) -> Sample:
    """Return a sample of plain tensors, with these settings."""
    args = (rand(rows, features), rand(count, features), classes(rows, count))
    return Sample(name, args, how, frozenset(tags or ("edge",)))


SAMPLES = (
    _of("last_part_smaller", 13, 9, 37, "smoke"),
    _of("each_row", 21, 5, 33, "smoke", reduction="none"),
    _of("bias", 9, 7, 65, "smoke", linear_bias=rand(65), reduction="sum"),
    _of("ignored_rows", 17, 6, 5, "smoke", ignore_index=2),
    _of("ignored_rows_each", 17, 6, 5, ignore_index=2, reduction="none"),
    _of("smoothed", 11, 6, 19, "smoke", label_smoothing=0.2),
    _of("smoothed_and_ignored", 11, 6, 4, label_smoothing=0.2, ignore_index=1, linear_bias=rand(4)),
    _of("weighted", 11, 6, 19, weight=rand(19, low=0.5, high=2.0), label_smoothing=0.1),
    _of("weighted_each", 11, 6, 19, weight=rand(19, low=0.5, high=2.0), reduction="none"),
    _of("fewer_rows_than_parts", 3, 8, 17, reduction="none"),
    _of("one_row", 1, 8, 17),
    _of("one_class", 5, 8, 1, "degenerate"),
    _of("all_ignored", 4, 3, 1, "degenerate", ignore_index=0),
    _of("all_ignored_sum", 4, 3, 1, "degenerate", ignore_index=0, reduction="sum"),
    _of("no_rows", 0, 3, 4, "degenerate"),
    _of("no_features", 4, 0, 7, "degenerate"),
    Sample(
        "transposed_and_sliced",
        (rand(12, 7, layout="transposed"), rand(21, 7, layout="sliced"), classes(12, 21)),
        {"reduction": "none"},
    ),
    Sample("gaps_in_memory", (rand(12, 7, layout="strided"), rand(21, 7), classes(12, 21))),
    Sample("expanded", (rand(12, 7, layout="expanded"), rand(21, 7, layout="strided"), classes(12, 21))),
    Sample(
        "exp_overflow",
        (rand(9, 4, low=20, high=40), rand(33, 4, low=-30, high=30), classes(9, 33)),
        {"reduction": "none"},
    ),
    Sample("nan", (rand(9, 5, values="lone_nan"), rand(33, 5), classes(9, 33)), {"reduction": "none"}),
    Sample(
        "infinite", (rand(9, 5, values="inf"), rand(33, 5), classes(9, 33)), {"reduction": "none"}, DEGENERATE
    ),
    _of("language_model", 4096, 2048, 128_256, "bench", "huge"),
    _of("image_head", 512, 768, 21_841, "bench"),
)

X, W, T = rand(4, 3), rand(5, 3), classes(4, 5)


def _wrong(name: str, given: dict[str, Any], match: str) -> ErrorCase:
    return ErrorCase(name, (X, W, T), match, given)


ERRORS = (
    ErrorCase("row", (rand(3), W, T), match=r"input must be \(N, D\), got shape \(3,\)"),
    ErrorCase("integers", (rand(4, 3, dtype=torch.int64), W, T), match="input must have a floating dtype"),
    ErrorCase(
        "features", (X, rand(5, 2), T), match=r"linear_weight must be \(V, 3\), V >= 1, got .*\(5, 2\)"
    ),
    ErrorCase("no_classes", (X, rand(0, 3), T), match=r"V >= 1, got shape \(0, 3\)"),
    ErrorCase("dtype", (X, rand(5, 3, dtype=torch.float16), T), match="linear_weight must have the dtype of"),
    ErrorCase("probabilities", (X, W, rand(4)), match="target must be class indices, torch.int64, got"),
    ErrorCase("targets", (X, W, classes(3, 5)), match=r"target .*\(4,\).* got"),
    _wrong("bias", {"linear_bias": rand(4)}, r"linear_bias .*\(5,\)"),
    _wrong("weight", {"weight": rand(4)}, r"weight .*\(5,\)"),
    _wrong("elsewhere", {"weight": rand(5, device="meta")}, "weight must be on the device"),
    _wrong("reduction", {"reduction": "max"}, "reduction must be 'none', .* got 'max'"),
    _wrong("ignored", {"ignore_index": 0.5}, "ignore_index must be an integer or None"),
    _wrong("smoothing", {"label_smoothing": 2.0}, "label_smoothing must be .* got 2.0"),
)

SPEC = OpSpec(
    name="linear_cross_entropy",
    params=(
        Param("input", "tensor"),
        Param("linear_weight", "tensor"),
        Param("target", "tensor"),
        Param("linear_bias", "tensor", None, keyword=True),
        Param("weight", "tensor", None, keyword=True),
        Param("reduction", "static", "mean", keyword=True),
        Param("ignore_index", "static", None, keyword=True),
        Param("label_smoothing", "static", 0.0, keyword=True),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda x, *_: max(x.shape[1], 1),
    outputs=outputs,
    ways=ways,
    sketches=lambda x, w, *_: {"target": classes(x.shape[0], w.shape[0])},
)
