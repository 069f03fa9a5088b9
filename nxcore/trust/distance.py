"""Distance of a result from torch's own, in the call's own dtype and without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.problem import leaves
from nxcore.spec.spec import OpSpec
from nxcore.trust.truth import ACCUMULATOR, ROUNDOFF, share_of, widened


def strays(spec: OpSpec, args: tuple[Any, ...], native: Any, result: Any, slack: float = 1.0) -> Tensor:
    """Return a tensor of one bool: whether a result is too far from torch's own for both to be right.

    The allowed distance is twice the bound of gate (a). It is computed in the call's own dtype or in float32,
    on the call's own device, without waiting for it. A result that passes gate (a), as torch's own does,
    never strays. NaN strays where torch has a number, and infinity where torch has none. ``args`` have no
    ``out``, ``native`` is the reference's result, and ``slack`` a factor on the allowed distance.
    """
    pairs = list(zip(leaves(result), leaves(native), strict=True))
    found = torch.zeros((), dtype=torch.bool, device=pairs[0][1].device)
    rounds = not spec.exact and any(t.dtype.is_floating_point for _, t in pairs)
    scales = leaves(spec.magnitude(*widened(args, half=True))) if rounds else iter(())
    terms, share = max(spec.terms(*args), 1), share_of(spec, args)
    alike: dict[torch.dtype, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for y, t in pairs:
        scale = next(scales, t)
        if t.numel():
            alike.setdefault(t.dtype, []).append((y, t, scale))
    for dtype, group in alike.items():
        # An operator over many tensors has dozens of outputs, and each launch takes the host microseconds.
        y, t = (_joined([row[i] for row in group]) for i in range(2))
        fine = y == t
        if dtype.is_floating_point:
            fine |= y.isnan() & t.isnan()
        if not spec.exact and dtype.is_floating_point:
            info, u = torch.finfo(dtype), ROUNDOFF[dtype]
            quantum = info.smallest_normal * info.eps + terms * torch.finfo(torch.float32).smallest_normal
            wide, own = widened(y, half=True), widened(t, half=True)
            scale = _joined([row[2].broadcast_to(row[1].shape) for row in group])
            bound = (own.abs() * u).add(scale, alpha=ACCUMULATOR * terms**0.5 + share / 4)
            fine |= (wide - own).abs() <= bound.mul_(8 * slack).add_(2 * quantum * slack)
        found |= ~fine.all()
    return found


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of several tensors in one row; a single tensor as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat([t.reshape(-1) for t in tensors])
