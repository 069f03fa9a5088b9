"""rope: pairs of entries turned by the angles of their position: Su et al. 2021, arXiv:2104.09864.

    y = x * cos + turned(x) * sin;  turned(x)[a] = -x[b], turned(x)[b] = x[a] for each pair (a, b)

torch has no such function. Its arguments are those of ``flash_attn.layers.rotary.apply_rotary_emb``, in the
layout of transformers' ``apply_rotary_pos_emb``: cos and sin broadcast to the rows of x. Pairs are entries i
and i + rotary_dim / 2, as in Llama; or neighbours, where ``interleaved``, as in GPT-J and torchtune. The
gradient, ``rope_backward``, is of x the rotation back:

    grad_x = grad * cos - turned(grad * sin);  grad_cos = grad * x;  grad_sin = grad * turned(x)
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.layer_norm import widened
from nxcore.ops.rms_norm import outputs
from nxcore.plugin import (
    DEGENERATE,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    backward_of,
    brief,
    rand,
    require_flag,
    require_tensor,
)


def reference(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, rotary_dim: int | None = None
) -> Tensor:
    """Return ``x`` with the first ``rotary_dim`` entries of its rows turned, computed in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (..., width), floating, any strides; such as (batch, heads, length, head_dim).
    cos, sin : Tensor
        Shape (..., rotary_dim), or (..., rotary_dim / 2): one angle for each pair; floating. They broadcast
        to the rows of ``x``: (length, head_dim), or (batch, 1, length, head_dim).
    interleaved : bool, default False
        Whether pairs are neighbours: entries 0 and 1. Otherwise entry 0 and entry ``rotary_dim / 2`` are one.
    rotary_dim : int, optional
        The entries that turn, an even number; others stay. By default the width of ``x``, which ``cos`` must
        have too: narrower angles may be those of pairs or of a part of a row.

    Returns
    -------
    Tensor
        Shape and dtype of ``x``, row-major.

    Raises
    ------
    InvalidInputError
        If widths, shapes or devices don't fit.

    Examples
    --------
    >>> x, cos, sin = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2), torch.ones(1, 2)
    >>> nxcore.ops.rope(x, cos, sin)
    tensor([[-2.,  1.]])
    """
    size = turning(x, rotary_dim)
    wide, (c, s) = widened(x, cos, sin)
    c, s = (spread(t, size, interleaved) for t in (c, s) if t is not None)
    z = x[..., :size].to(wide)
    return joined(z * c + turned(z, interleaved) * s, x)


def turning(x: Any, rotary_dim: Any) -> int:
    """Return how many entries of a row turn."""
    size: int = x.shape[-1] if rotary_dim is None else rotary_dim
    return size


def turned(x: Tensor, interleaved: bool) -> Tensor:
    """Return the pairs of a tensor turned by a right angle."""
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    parts = (-second, first)
    return torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)


def spread(angles: Tensor, size: int, interleaved: bool) -> Tensor:
    """Return angles of each entry, from those of each pair."""
    if angles.shape[-1] == size:
        return angles
    return angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)


def joined(y: Tensor, x: Tensor) -> Tensor:
    """Return what was turned in the dtype of ``x``, with the entries behind it."""
    y = y.to(x.dtype)
    size = y.shape[-1]
    return (y if size == x.shape[-1] else torch.cat((y, x[..., size:]), -1)).contiguous()


def torchs(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int | None) -> Tensor:
    """Return what is usually written, which rounds half types on the way."""
    size = turning(x, rotary_dim)
    z, c, s = x[..., :size], spread(cos, size, interleaved), spread(sin, size, interleaved)
    return joined(z * c + turned(z, interleaved) * s, x)


def check(x: Any, cos: Any, sin: Any, interleaved: Any, rotary_dim: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x")
    if not x.ndim or x.shape[-1] < 2:
        wanted = "x must have rows of at least 2 entries"
        raise InvalidInputError(f"{wanted}, got shape {tuple(x.shape)}", argument="x")
    require_flag(interleaved, "interleaved")
    width, size = x.shape[-1], turning(x, rotary_dim)
    odd = rotary_dim is not None and (isinstance(rotary_dim, bool) or not isinstance(rotary_dim, int))
    if odd or size % 2 or not 2 <= size <= width:
        wanted = f"rotary_dim must be even, from 2 to {width}, the width of x, which is its default"
        raise InvalidInputError(f"{wanted}, got {brief(rotary_dim)}", argument="rotary_dim")
    known = (size,) if rotary_dim is None else (size, size // 2)
    for value, name in ((cos, "cos"), (sin, "sin")):
        require_tensor(value, name)
        require_angles(value, x, name, known)
    if cos.shape[-1] != sin.shape[-1]:
        message = f"sin must have the {cos.shape[-1]} angles of cos, got {sin.shape[-1]}"
        raise InvalidInputError(message, argument="sin")


def require_angles(value: Any, x: Any, name: str, known: tuple[int, ...]) -> None:
    """Raise unless angles have one of the ``known`` widths, and broadcast to the rows of ``x``."""
    shape, rows = tuple(value.shape), tuple(x.shape[:-1])
    if value.device != x.device:
        message = f"{name} must be on the device {x.device}, got {value.device}"
        raise InvalidInputError(message, argument=name)
    if not shape or shape[-1] not in known:
        wanted = " or ".join(map(str, known))
        hint = "; of others rotary_dim must say how many entries turn" if len(known) == 1 else ""
        message = f"{name} must have {wanted} angles a row, got shape {shape}{hint}"
        raise InvalidInputError(message, argument=name)
    lead = len(rows) - len(shape) + 1
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape[:-1], rows[lead:], strict=True)):
        message = f"{name} must broadcast to the rows of x, {rows}, got shape {shape}"
        raise InvalidInputError(message, argument=name)


def ways(x: Any, cos: Any, sin: Any, interleaved: Any, rotary_dim: Any) -> tuple[Way, ...]:
    """Divide by row, and angles where they aren't repeated."""

    def along(t: Any, dim: int) -> int | None:
        own = dim - x.ndim + t.ndim
        return own if own >= 0 and t.shape[own] > 1 else None

    return tuple(Way((d, along(cos, d), along(sin, d)), d, audits=True) for d in range(x.ndim - 1))


def cost(x: Any, cos: Any, sin: Any, interleaved: Any, rotary_dim: Any) -> Cost:
    """Count x and the angles read once, the result written once."""
    return Cost(bytes=2 * x.nbytes + cos.nbytes + sin.nbytes, flops=3 * x.numel())


def magnitude(x: Tensor, cos: Tensor, sin: Tensor, interleaved: Any, rotary_dim: Any) -> Tensor:
    """Return the result with positive terms."""
    size = turning(x, rotary_dim)
    c, s = (spread(t, size, interleaved).abs() for t in (cos, sin))
    z = x[..., :size]
    return joined(z.abs() * c + turned(z, interleaved).abs() * s, x.abs())


def _backward(grad: Any, mask: tuple[bool, ...], *args: Any) -> tuple[Any, ...]:
    return grad, *args, mask


SMOKE, BENCH = frozenset({"smoke"}), frozenset({"bench"})
WIDE = torch.float32


def _sample(name: str, x: Any, angles: tuple[int, ...], *rest: Any, tags: Any = None, **how: Any) -> Sample:
    given = (x, rand(*angles, **how), rand(*angles, **how), *rest)
    return Sample(name, given, tags=frozenset({"edge"}) if tags is None else tags)


SAMPLES = (
    _sample("last_block_partly_filled", rand(2, 3, 7, 20), (7, 20), tags=SMOKE),
    _sample("whole_vectors", rand(2, 5, 9, 64), (2, 1, 9, 64), tags=SMOKE),
    _sample("neighbours", rand(2, 3, 7, 24), (7, 12), True, 24, tags=SMOKE),
    _sample("neighbours_of_each_entry", rand(1, 9, 5, 32), (5, 32), True),
    _sample("angles_of_pairs", rand(2, 3, 7, 48), (7, 24), False, 48),
    _sample("a_part_turns", rand(2, 3, 7, 40), (7, 16), False, 16),
    _sample("a_part_of_neighbours", rand(2, 3, 7, 37), (7, 6), True, 12),
    _sample("one_kv_head", rand(1, 1, 2, 128), (1, 1, 2, 128)),
    _sample("one_position", rand(3, 8, 1, 64), (3, 1, 1, 64)),
    _sample("angles_of_each_head", rand(2, 3, 5, 16), (2, 3, 5, 16)),
    _sample("heads_after_length", rand(2, 7, 3, 16), (7, 1, 16)),
    Sample("cos_and_sin_apart", (rand(2, 3, 5, 16), rand(5, 16), rand(2, 1, 1, 16))),
    _sample("wide_angles", rand(2, 3, 7, 64), (7, 64), dtype=WIDE),
    _sample("wide_angles_of_neighbours", rand(2, 3, 7, 20), (7, 10), True, 20, dtype=WIDE),
    _sample("many_heads", rand(41, 5, 8), (5, 8)),
    _sample("five_dimensions", rand(2, 3, 2, 5, 16), (5, 16)),
    _sample("one_row", rand(8), (8,)),
    _sample("one_pair", rand(5, 2), (5, 1), False, 2),
    _sample("large_values", rand(3, 40, low=-3e4, high=3e4), (40,)),
    _sample("nan", rand(6, 20, values="nan"), (6, 20)),
    _sample("infinite", rand(6, 20, values="inf"), (6, 20)),
    _sample("no_rows", rand(2, 0, 4), (4,), tags=DEGENERATE),
    _sample("transposed", rand(33, 6, layout="transposed"), (33, 6)),
    _sample("channels_last", rand(2, 8, 3, 6, layout="channels_last"), (3, 6)),
    _sample("odd_storage_offset", rand(5, 16, layout="sliced"), (5, 16), layout="sliced"),
    _sample("gaps_in_memory", rand(3, 4, 8, layout="strided"), (4, 8), layout="strided"),
    _sample("expanded", rand(4, 5, 8, layout="expanded"), (5, 8), layout="expanded"),
    _sample("llama", rand(8, 32, 2048, 128), (2048, 128), tags=BENCH),
    _sample("gpt_j", rand(8, 16, 2048, 256), (2048, 32), True, 64, tags=BENCH),
)

ANGLES = (rand(3, 4), rand(3, 4))
ERRORS = (
    ErrorCase("not_a_tensor", (3.5, *ANGLES), "x must be a tensor, got float"),
    ErrorCase("integers", (rand(3, 4, dtype=torch.int64), *ANGLES), "x must have a floating dtype"),
    ErrorCase("no_pairs", (rand(3, 1), *ANGLES), "x must have rows of at least 2 entries, got shape"),
    ErrorCase("odd_rows", (rand(3, 5), *ANGLES), "must be even, from 2 to 5, the width of x, .* got None"),
    ErrorCase("flag", (rand(3, 4), *ANGLES, 1), "interleaved must be True or False, got 1"),
    ErrorCase("odd_part", (rand(3, 4), *ANGLES, False, 3), "rotary_dim must be even, from 2 to 4, .* got 3"),
    ErrorCase("no_number", (rand(3, 4), *ANGLES, False, 2.0), "rotary_dim must be even, .* got 2.0"),
    ErrorCase("unclear", (rand(3, 8), *ANGLES), "cos must have 8 angles .* rotary_dim must say how many"),
    ErrorCase("angles", (rand(3, 8), *ANGLES, False, 6), "cos must have 6 or 3 angles a row, got shape"),
    ErrorCase("sin", (rand(3, 4), rand(3, 4), rand(3, 2), False, 4), "sin must have the 4 angles of cos"),
    ErrorCase("rows", (rand(5, 4), *ANGLES), r"cos must broadcast to the rows of x, \(5,\), got shape"),
    ErrorCase("more_rows", (rand(4), *ANGLES), r"cos must broadcast to the rows of x, \(\), got"),
    ErrorCase("elsewhere", (rand(3, 4), rand(3, 4, device="meta"), rand(3, 4)), "cos must be on the device"),
)

SPEC = OpSpec(
    name="rope",
    params=(
        *(Param(name, "tensor") for name in ("x", "cos", "sin")),
        Param("interleaved", "static", False),
        Param("rotary_dim", "static", None),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda *_: 2,
    yardsticks=MappingProxyType({"rotate_half": torchs}),
    gradient=Gradient(
        "rope_backward",
        _backward,
        saves=("x", "cos", "sin"),
        reads=MappingProxyType({"x": ("cos", "sin"), "cos": ("x",), "sin": ("x",)}),
    ),
    outputs=outputs,
    ways=ways,
)

Result = tuple[Tensor | None, Tensor | None, Tensor | None]


def gradient(
    grad: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    output_mask: tuple[bool, ...] = (True, True, True),
) -> Result:
    """Return the gradients of ``rope``, computed in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result, of its shape and dtype.
    x, cos, sin, interleaved, rotary_dim
        As in ``rope``. ``x`` is read for the gradients of ``cos`` and ``sin`` alone.
    output_mask : tuple of bool
        Which gradients to compute: of ``x``, ``cos`` and ``sin``.

    Returns
    -------
    x_grad, cos_grad, sin_grad : Tensor or None
        Shapes and dtypes of ``x``, ``cos`` and ``sin``, row-major.

    Raises
    ------
    InvalidInputError
        As ``rope``; or if ``grad`` isn't of the shape, dtype and device of ``x``.

    Examples
    --------
    >>> x, cos, sin = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2), torch.ones(1, 2)
    >>> nxcore.ops.rope_backward(x, x, cos, sin)[0]
    tensor([[ 2., -1.]])
    """
    size, for_x = turning(x, rotary_dim), None
    wide, (c, s) = widened(x, cos, sin)
    g = grad[..., :size].to(wide)
    if output_mask[0]:
        by_cos, by_sin = (spread(t, size, interleaved) for t in (c, s) if t is not None)
        for_x = joined(g * by_cos - turned(g * by_sin, interleaved), grad)
    z = x[..., :size].to(wide)
    for_cos = folded(g * z, cos, interleaved) if output_mask[1] else None
    return for_x, for_cos, folded(g * turned(z, interleaved), sin, interleaved) if output_mask[2] else None


def folded(found: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """Return the sums of all that the same angles turned."""
    half = angles.shape[-1]
    if half != found.shape[-1]:
        found = found.unflatten(-1, (half, 2) if interleaved else (2, half)).sum(-1 if interleaved else -2)
    return found.sum_to_size(angles.shape).to(angles.dtype).contiguous()


def gradient_cost(grad: Any, x: Any, cos: Any, sin: Any, *rest: Any) -> Cost:
    """Count grad and the angles read once, and x for their gradients; the gradients written once."""
    for_x, *others = rest[-1]
    angles = cos.nbytes * (1 + others[0]) + sin.nbytes * (1 + others[1])
    read = x.nbytes * any(others)
    return Cost(bytes=grad.nbytes * (1 + for_x) + read + angles, flops=3 * x.numel() * sum(rest[-1]))


def gradient_magnitude(
    grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: Any, mask: Any
) -> Result:
    """Return the gradients with positive terms."""
    size = turning(x, rotary_dim)
    c, s = (spread(t, size, interleaved).abs() for t in (cos, sin))
    g, z = grad[..., :size].abs(), x[..., :size].abs()
    return (
        joined(g * c + turned(g * s, interleaved).abs(), grad.abs()) if mask[0] else None,
        folded(g * z, cos, interleaved) if mask[1] else None,
        folded(g * turned(z, interleaved).abs(), sin, interleaved) if mask[2] else None,
    )


def gradient_outputs(
    grad: Any, x: Any, cos: Any, sin: Any, interleaved: Any, rotary_dim: Any, mask: Any
) -> tuple[TensorMeta | None, ...] | None:
    """Describe the gradients; None where there is nothing."""
    if not x.numel():
        return None
    made = (TensorMeta.row_major(tuple(t.shape), t.dtype, t.device) for t in (x, cos, sin))
    return tuple(meta if flag else None for meta, flag in zip(made, mask, strict=True))


def gradient_terms(_grad: Any, x: Any, cos: Any, sin: Any, *rest: Any) -> int:
    """Return how many products are added up."""
    least = min(cos.numel(), sin.numel())
    return int(2 * max(x.numel() // max(least, 1), 1)) if any(rest[-1][1:]) else 2


ROW = (rand(2, 3, 6, 24), rand(2, 3, 6, 24), rand(6, 24), rand(6, 24))
FOR_X = (True, False, False)

BACKWARD = backward_of(
    SPEC,
    gradient,
    shape=lambda x, *rest: tuple(x.shape),
    same_dtype=True,
    gradients=3,
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    given=lambda sample: Sample(
        sample.name,
        (rand(*sample.args[0].shape), *sample.args),
        {**sample.kwargs, "output_mask": FOR_X},
        sample.tags,
    ),
    samples=(
        Sample("stride_zero_grad", (rand(2, 3, 6, 24, layout="expanded"), *ROW[1:]), {"output_mask": FOR_X}),
        Sample("gaps_in_grad", (rand(2, 3, 6, 24, layout="strided"), *ROW[1:]), {"output_mask": FOR_X}),
        Sample("all_gradients", ROW),
        Sample("of_pairs", (*ROW[:2], rand(6, 12), rand(6, 12), True, 24)),
        Sample("only_cos", ROW, {"output_mask": (False, True, False)}),
        Sample("only_sin", ROW, {"output_mask": (False, False, True)}),
    ),
    terms=gradient_terms,
    outputs=gradient_outputs,
)
