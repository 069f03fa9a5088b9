"""Right kernels: sums in other orders and precisions.

Nothing here reads nxcore, as in the grammar of wrong ones.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.hostile.grammar import World
from tests.hostile.plain import PLAIN, Call


def _terms(op: str, args: tuple[Any, ...]) -> tuple[Tensor, Call]:
    """Return the terms of each result in float64, a row each, and what makes results of the sums."""
    given = tuple(
        t.double() if torch.is_tensor(t) and t.is_floating_point() else t for t in PLAIN[op].shape(*args)
    )
    if op in ("sum", "mean", "entropy"):
        rows = given[0]
        if op == "entropy":
            logs = torch.log_softmax(rows.float(), 1)
            rows = -(logs.exp() * logs.clamp_min(-1e30)).double()
        return rows, lambda sums: sums / rows.shape[1] if op == "mean" else sums
    if op in ("weighted_sum", "softmax_sum"):
        weights = given[1] if op == "weighted_sum" else torch.softmax(given[1].float(), 0).double()
        return (given[0] * weights[:, None]).T, lambda sums: sums
    if op == "matmul":
        a, b = given[:2]
        return (a[:, None, :] * b.T[None]).flatten(0, 1), lambda sums: sums
    if op == "column_sums":
        return given[0].transpose(1, 2).flatten(0, 1), lambda sums: sums
    x, size = given[0], given[1].shape[-1] if torch.is_tensor(given[1]) else given[1]
    parts = torch.nn.functional.unfold(x, size, 1, given[3], given[2]).unflatten(1, (x.shape[1], -1))
    if op == "avg_pool2d":
        counts = torch.nn.functional.unfold(torch.ones_like(x), size, 1, given[3], given[2]).unflatten(
            1, (x.shape[1], -1)
        )
        n = torch.full_like(counts.sum(2), size * size) if given[4] else counts.sum(2)
        return parts.transpose(2, 3).flatten(0, 2), lambda sums: sums / n.flatten().to(sums.dtype)
    weighted = parts * given[1].flatten(1)[None, :, :, None]
    return weighted.transpose(2, 3).flatten(0, 2), lambda sums: sums


SUMS = ("sum", "mean", "entropy", "weighted_sum", "softmax_sum", "matmul", "column_sums", "avg_pool2d",
        "depthwise_conv2d")  # fmt: skip
"""The operators that add up."""


def _in_turn(terms: Tensor) -> Tensor:
    found = torch.zeros(len(terms))
    for column in terms.float().T:
        found = found + column
    return found


def _pairwise(terms: Tensor) -> Tensor:
    terms = terms.float()
    while terms.shape[1] > 1:
        half = terms.shape[1] // 2
        rest = terms[:, 2 * half :]
        terms = torch.cat([terms[:, :half] + terms[:, half : 2 * half], rest], 1)
    return terms.sum(1)


def _kahan(terms: Tensor) -> Tensor:
    found = lost = torch.zeros(len(terms))
    for column in terms.float().T:
        part = column - lost
        new = found + part
        found, lost = new, torch.where(new.isfinite(), (new - found) - part, torch.zeros_like(new))
    return found


def _fused(terms: Tensor) -> Tensor:
    found = torch.zeros(len(terms))
    for column in terms.T:  # the product of two floats is exact in float64
        found = (found.double() + column).float()
    return found


def _lanes(count: int) -> Call:
    def sums(terms: Tensor) -> Tensor:
        lanes = [_in_turn(terms[:, i::count]) for i in range(min(count, terms.shape[1]))]
        return _pairwise(torch.stack(lanes, 1))

    return sums


def _blocks(size: int) -> Call:
    def sums(terms: Tensor) -> Tensor:
        return _in_turn(torch.stack([_in_turn(part) for part in terms.split(size, 1)], 1))

    return sums


def _shuffled(terms: Tensor) -> Tensor:
    return _in_turn(terms[:, torch.randperm(terms.shape[1], generator=torch.Generator().manual_seed(5))])


ORDERS: dict[str, Call] = {
    "in turn": _in_turn,
    "reversed": lambda terms: _in_turn(terms.flip(1)),
    "pairwise": _pairwise,
    "blocks of 16": _blocks(16),
    "blocks of 100": _blocks(100),
    "4 lanes": _lanes(4),
    "32 lanes": _lanes(32),
    "Kahan's": _kahan,
    "float64": lambda terms: terms.sum(1),
    "fused": _fused,
    "another order": _shuffled,
}
"""How a right kernel adds up."""


def ordered(op: str, order: str) -> Callable[[World], Call]:
    """Return what makes a right kernel that adds up in this order."""

    def kernel(*args: Any) -> Tensor:
        terms, finish = _terms(op, args)
        return finish(ORDERS[order](terms))

    def made(world: World) -> Call:
        def call(*args: Any) -> Any:
            like = PLAIN[op].like(*args)
            return torch.empty_like(like).copy_(kernel(*args).reshape(like.shape))

        return call

    return made
