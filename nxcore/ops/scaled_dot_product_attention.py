"""scaled_dot_product_attention: values blended by the softmax of queries times keys.

    out = softmax(query key^T * scale + mask) value

Semantics of ``torch.nn.functional.scaled_dot_product_attention``, which chooses one of torch's kernels by a
fixed order. Here each of them is a candidate of its own. Vaswani et al. 2017, arXiv:1706.03762; Dao 2023,
arXiv:2307.08691. Where a gradient is needed, torch's own function serves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.entropy import HALVES
from nxcore.ops.linear_cross_entropy import casts
from nxcore.plugin import (
    LOWER,
    YES,
    Code,
    Cost,
    ErrorCase,
    InvalidInputError,
    OpSpec,
    Param,
    Problem,
    Sample,
    TensorMeta,
    Verdict,
    Way,
    brief,
    no,
    rand,
    require_flag,
    require_tensor,
)


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return ``softmax(query key^T * scale + attn_mask) value``, accumulating in float32 or wider.

    Parameters
    ----------
    query : Tensor
        Shape (..., H, L, E), floating, any strides.
    key, value : Tensor
        Shapes (..., H, S, E) and (..., H, S, Ev), dtype and device of ``query``; with ``enable_gqa``, a
        divisor of its heads.
    attn_mask : Tensor, optional
        Broadcastable to (..., H, L, S): bool, False for a key that takes no part, or floating and added.
    dropout_p : float, default 0.0
        The probability with which a weight becomes 0; above 0, torch's own function serves every call.
    is_causal : bool, default False
        Whether query i sees the keys up to i; without ``attn_mask``.
    scale : float, optional
        By default 1 / sqrt(E).
    enable_gqa : bool, default False
        Whether each head of ``key`` and ``value`` serves several of ``query``.

    Returns
    -------
    Tensor
        Shape (..., H, L, Ev), dtype of ``query``.

    Raises
    ------
    InvalidInputError
        If the arguments' shapes, dtypes or devices don't fit each other, or a setting isn't one of these.

    Examples
    --------
    >>> ones = torch.ones(1, 1, 2, 4)
    >>> nxcore.ops.scaled_dot_product_attention(ones, ones, ones).tolist()
    [[[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]]]
    """
    if attn_mask is not None and attn_mask.shape[-1:] == (1,):  # torch's CUDA kernels take no repeated entry
        attn_mask = attn_mask.expand(*attn_mask.shape[:-1], key.shape[-2]).contiguous()
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _kernel(name: str) -> Any:
    """Return one of torch's kernels, of which none has a public name."""
    return getattr(torch.ops.aten, f"_scaled_dot_product_{name}")


def _way(name: str, doc: str) -> Callable[..., Tensor]:
    """Return one of torch's kernels for CUDA as a function of the operator's arguments."""
    kernel = _kernel(f"{name}_attention")
    # Those with a mask take it, and whether to return the sums of the softmax, before the dropout.
    settings: tuple[Any, ...] = (0.0,) if name == "flash" else (None, False, 0.0)

    def way(*args: Any) -> Tensor:
        query, key, value, _, _, is_causal, scale, _ = args
        found: Tensor = kernel(query, key, value, *settings, is_causal, scale=scale)[0]
        # The others lay the result out as the queries, as torch's own choice does.
        as_is = name != "efficient" or found.stride() == query.stride()
        return found if as_is else torch.empty_like(query).copy_(found)

    way.__doc__, way.__name__, way.__qualname__ = doc, f"by_{name}", f"by_{name}"
    return way


by_flash = _way("flash", "FlashAttention, as torch has it.")
by_efficient = _way("efficient", "The memory-efficient kernel of xFormers, as torch has it.")
by_cudnn = _way("cudnn", "The kernel of cuDNN, as torch has it.")


def by_math(*args: Any) -> Tensor:
    """Two products and a softmax."""
    query, key, value, mask, _, is_causal, scale, gqa = args
    if mask is not None and mask.dtype is torch.bool:  # as torch's own function does before it
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -math.inf)
    given = query, key, value, mask, 0.0, is_causal, None
    found: Tensor = _kernel("attention_math")(*given, scale=scale, enable_gqa=gqa)[0]
    return found


def _drawn(problem: Problem) -> Verdict:
    """Refuse dropout."""
    if problem["dropout_p"]:
        return no(f"dropout_p is {problem['dropout_p']}: its numbers are torch's own", code=Code.ARGUMENT)
    return YES


def _consecutive(problem: Problem) -> Verdict:
    """Refuse queries for which torch's other kernels lay the result out otherwise, and dropout."""
    if not problem["query"].is_contiguous():
        return no("needs contiguous queries: so is its result", code=Code.LAYOUT)
    return _drawn(problem)


def _on_cuda(widths: tuple[torch.dtype, ...], most: int, *, square: bool) -> Callable[[Problem], Verdict]:
    """Return what a kernel takes: these dtypes, and heads of at most ``most``; square where it is causal."""

    def accepts(problem: Problem) -> Verdict:
        """Accept images of heads without a mask."""
        if not (found := _drawn(problem)):
            return found
        query, key, value = problem["query"], problem["key"], problem["value"]
        if query.device.type != "cuda":
            return no(f"needs tensors on cuda, got {query.device}", code=Code.DEVICE)
        if query.dtype not in widths:
            return no(f"needs {' or '.join(map(str, widths))}, got {query.dtype}", code=Code.DTYPE)
        if problem["attn_mask"] is not None or problem["enable_gqa"]:
            return no("needs neither attn_mask nor enable_gqa", code=Code.ARGUMENT)
        shapes = {t.shape[:-2] for t in (query, key, value)}
        if query.ndim != 4 or len(shapes) > 1 or query.shape[-1] != value.shape[-1]:
            return no("needs (N, H, L, E) of the same N, H and E", code=Code.SIZE)
        width = query.shape[-1]
        if width % 8 or width > most:
            return no(f"needs a multiple of 8 up to {most} for E, got {width}", code=Code.SIZE)
        if not plain(query) or any(t.strides[-1] != 1 for t in (key, value)):
            return no("needs images without gaps, and stride 1 along E", code=Code.LAYOUT)
        if square and problem["is_causal"] and query.shape[-2] != key.shape[-2]:
            return no("needs as many queries as keys where is_causal is True", code=Code.SIZE)
        return YES

    return accepts


ACCEPTS = {
    by_flash: _on_cuda(HALVES, 256, square=True),
    by_efficient: _on_cuda((torch.float32, *HALVES), 1024, square=False),
    by_cudnn: _on_cuda(HALVES, 128, square=True),
    by_math: _consecutive,
}
for _call, _accepts in ACCEPTS.items():
    _call.accepts = _accepts  # type: ignore[attr-defined]  # read by the backend "torch"


def check(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: Any, is_causal: Any, scale: Any, gqa: Any
) -> None:
    """Raise unless the operator is defined for the arguments."""
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        require_tensor(tensor, name)
        if tensor.ndim < 2 or tensor.ndim != query.ndim:
            message = f"{name} must have the 2 or more dimensions of query, got shape {tuple(tensor.shape)}"
            raise InvalidInputError(message, argument=name)
        if tensor.device != query.device:
            message = f"{name} must be on the device of query, {query.device}, got {tensor.device}"
            raise InvalidInputError(message, argument=name)
        if tensor.dtype != query.dtype and not casts(query.device):
            message = f"{name} must have the dtype of query, {query.dtype}, got {tensor.dtype}"
            raise InvalidInputError(message, argument=name)
    require_flag(is_causal, "is_causal")
    require_flag(gqa, "enable_gqa")
    if key.shape[-1] != query.shape[-1]:
        message = f"key must have the last size of query, {query.shape[-1]}, got {key.shape[-1]}"
        raise InvalidInputError(message, argument="key")
    if value.shape[-2] != key.shape[-2]:
        message = f"value must have as many rows as key, {key.shape[-2]}, got {value.shape[-2]}"
        raise InvalidInputError(message, argument="value")
    lead = tuple(query.shape[:-2])
    for name in ("key", "value"):
        other = tuple(named[name].shape[:-2])
        fits = other == lead
        if gqa and len(lead) > 1:
            heads = other[-1] or 1
            fits = other[:-1] == lead[:-1] and lead[-1] % heads == 0 and key.shape[-3] == value.shape[-3]
        if not fits:
            wanted = f"{lead}, or a divisor of the last with enable_gqa"
            raise InvalidInputError(f"{name} must begin with {wanted}, got {other}", argument=name)
    if mask is not None:
        _require_mask(mask, (*lead, query.shape[-2], key.shape[-2]), query, causal=is_causal)
    if type(dropout_p) not in (int, float) or not 0 <= dropout_p <= 1:
        message = f"dropout_p must be a number from 0 to 1, got {brief(dropout_p)}"
        raise InvalidInputError(message, argument="dropout_p")
    if scale is not None and (type(scale) not in (int, float) or not math.isfinite(scale)):
        message = f"scale must be a finite number or None, got {brief(scale)}"
        raise InvalidInputError(message, argument="scale")


def _require_mask(mask: Any, shape: tuple[int, ...], query: Any, *, causal: bool) -> None:
    """Raise unless a mask fits weights of this shape."""
    require_tensor(mask, "attn_mask", floating=False)
    if causal:
        raise InvalidInputError("attn_mask must be None where is_causal is True", argument="attn_mask")
    if mask.dtype not in (torch.bool, query.dtype) and not casts(query.device):
        message = f"attn_mask must be bool or {query.dtype}, got {mask.dtype}"
        raise InvalidInputError(message, argument="attn_mask")
    pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
    if not 2 <= mask.ndim <= len(shape) or any(have not in (1, want) for have, want in pairs):
        message = f"attn_mask must be broadcastable to {shape}, got shape {tuple(mask.shape)}"
        raise InvalidInputError(message, argument="attn_mask")
    if mask.device != query.device:
        message = f"attn_mask must be on the device of query, {query.device}, got {mask.device}"
        raise InvalidInputError(message, argument="attn_mask")


def cost(query: Any, key: Any, value: Any, *_: Any) -> Cost:
    """Count arguments and result, and two products; half of them where it is causal isn't left out."""
    rows = query.numel() // max(query.shape[-1], 1)
    written = rows * value.shape[-1] * query.element_size()
    flops = 2 * rows * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return Cost(bytes=query.nbytes + key.nbytes + value.nbytes + written, flops=flops)


def magnitude(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    """Return the blend of absolute values."""
    return reference(query, key, value.abs(), *rest)


def outputs(query: Any, key: Any, value: Any, *_: Any) -> TensorMeta | None:
    """Describe the result of four dimensions, in the layout of the queries; None for others."""
    if query.ndim != 4 or query.shape[-1] != value.shape[-1] or not plain(query):
        return None
    return TensorMeta(query.shape, query.strides, query.dtype, query.device)


def plain(query: Any) -> bool:
    """Return whether each row is consecutive, and each image, whose heads or rows come first."""
    return bool(query.is_dense() and query.strides[-1] == 1 and query.strides[0] == max(query.strides))


def ways(query: Any, key: Any, value: Any, mask: Any, *_: Any) -> tuple[Way, ...]:
    """Divide along the images, without a mask."""
    return (Way((0, 0, 0), 0),) if mask is None and query.ndim == 4 else ()


def _of(
    name: str, size: tuple[int, ...], *tags: str, keys: int = 0, layout: Any = "contiguous", **how: Any
) -> Sample:
    """Return a sample with heads of one size; with as many keys as queries by default."""
    other = (*size[:-2], keys or size[-2], size[-1])
    args = (rand(*size, layout=layout), *(rand(*other, layout=layout) for _ in range(2)))
    return Sample(name, args, how, frozenset(tags or ("edge",)))


SAMPLES = (
    _of("last_block_partly_filled", (2, 3, 37, 16), "smoke"),
    _of("causal", (1, 2, 33, 8), "smoke", is_causal=True),
    _of("other_keys", (2, 2, 5, 24), "smoke", keys=19),
    _of("causal_with_other_keys", (1, 2, 7, 8), keys=19, is_causal=True),
    _of("scaled", (1, 2, 9, 8), "smoke", scale=0.9),
    _of("bool_mask", (2, 3, 9, 8), keys=33, attn_mask=rand(9, 33, low=0, high=2, dtype=torch.bool)),
    _of("added_mask", (2, 3, 9, 8), keys=13, attn_mask=rand(2, 1, 9, 13)),
    _of("masked_row", (1, 2, 3, 8), keys=5, attn_mask=rand(3, 1, low=0, high=2, dtype=torch.bool)),
    _of("odd_head", (1, 2, 9, 7)),
    _of("three_dimensions", (3, 9, 8)),
    _of("two_dimensions", (9, 8)),
    _of("many_keys", (1, 1, 3, 8), keys=700),
    _of("transposed", (2, 3, 5, 8), layout="transposed"),
    _of("channels_last", (2, 3, 5, 8), layout="channels_last"),
    _of("expanded", (2, 3, 5, 8), layout="expanded"),
    _of("sliced", (2, 3, 5, 8), layout="sliced"),
    _of("gaps_in_memory", (2, 3, 5, 8), layout="strided"),
    _of("one_query", (2, 3, 1, 16), keys=21),
    _of("one_key", (2, 3, 4, 16), keys=1),
    Sample("grouped", (rand(2, 6, 5, 8), *(rand(2, 2, 9, 8) for _ in range(2))), {"enable_gqa": True}),
    Sample("wider_values", (rand(2, 3, 5, 8), rand(2, 3, 9, 8), rand(2, 3, 9, 12))),
    Sample("nan", (rand(1, 2, 9, 8, values="lone_nan"), rand(1, 2, 5, 8), rand(1, 2, 5, 8))),
    _of("no_images", (0, 2, 5, 8), "degenerate"),
    _of("prompt", (8, 16, 1024, 64), "bench", is_causal=True),
    _of("image", (8, 12, 197, 64), "bench"),
)

X = rand(2, 3, 5, 8)


def _wrong(name: str, match: str, *, key: Any = X, value: Any = X, query: Any = X, **how: Any) -> ErrorCase:
    return ErrorCase(name, (query, key, value), match, how)


ERRORS = (
    _wrong("integers", "query must have a floating dtype", query=rand(2, 3, 5, 8, dtype=torch.int64)),
    _wrong("dimensions", "key must have the 2 or more dimensions of query", key=rand(3, 5, 8)),
    _wrong("dtype", "value must have the dtype of query", value=rand(2, 3, 5, 8, dtype=torch.float16)),
    _wrong("elsewhere", "key must be on the device of query", key=rand(2, 3, 5, 8, device="meta")),
    _wrong("width", "key must have the last size of query, 8, got 4", key=rand(2, 3, 5, 4)),
    _wrong("rows", "value must have as many rows as key, 5, got 6", value=rand(2, 3, 6, 8)),
    _wrong("heads", r"key must begin with \(2, 3\)", key=rand(2, 1, 5, 8)),
    _wrong(
        "groups",
        r"key must begin with \(2, 3\)",
        key=rand(2, 2, 5, 8),
        value=rand(2, 2, 5, 8),
        enable_gqa=True,
    ),
    _wrong("mask", r"broadcastable to \(2, 3, 5, 5\), got shape \(4, 5\)", attn_mask=rand(4, 5)),
    _wrong("mask_of_integers", "attn_mask must be bool or", attn_mask=rand(5, 5, dtype=torch.int64)),
    _wrong("mask_and_causal", "attn_mask must be None", attn_mask=rand(5, 5), is_causal=True),
    _wrong("probability", "dropout_p must be a number from 0 to 1, got 2", dropout_p=2),
    _wrong("scale", "scale must be a finite number or None", scale="1"),
    _wrong("flag", "is_causal must be True or False, got 1", is_causal=1),
)

SPEC = OpSpec(
    name="scaled_dot_product_attention",
    params=(
        Param("query", "tensor"),
        Param("key", "tensor"),
        Param("value", "tensor"),
        Param("attn_mask", "tensor", None),
        Param("dropout_p", "static", 0.0),
        Param("is_causal", "static", False),
        Param("scale", "static", None, keyword=True),
        Param("enable_gqa", "static", False, keyword=True),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda query, key, *_: max(query.shape[-1] * key.shape[-2], 1),
    rounds=True,
    idioms=MappingProxyType(
        {"flash": by_flash, "efficient": by_efficient, "cudnn": by_cudnn, "math": by_math}
    ),
    outputs=outputs,
    ways=ways,
    autocast=LOWER,
)
