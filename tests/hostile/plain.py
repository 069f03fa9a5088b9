"""Plain right kernels, tile by tile as a toolkit's are, and the calls of a program that uses them.

Their sources are what ``mutants`` mutates. Nothing here reads nxcore: neither its references nor its samples.
"""

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

TILE = 48

Call = Callable[..., Any]
Dice = random.Random


def add(x, y, alpha):
    z = torch.empty_like(x)
    for start in range(0, x.numel(), TILE):
        stop = min(start + TILE, x.numel())
        left, right = x[start:stop].to(WIDE), y[start:stop].to(WIDE)
        z[start:stop] = left + alpha * right
    return z


def total(rows):
    found = torch.zeros(rows.shape[0], dtype=WIDE)
    for start in range(0, rows.shape[1], TILE):
        stop = min(start + TILE, rows.shape[1])
        found += rows[:, start:stop].to(WIDE).sum(1)
    return found


def mean(rows):
    found = torch.zeros(rows.shape[0], dtype=WIDE)
    for start in range(0, rows.shape[1], TILE):
        stop = min(start + TILE, rows.shape[1])
        found += rows[:, start:stop].to(WIDE).sum(1)
    return found / rows.shape[1]


def amax(rows):
    top = rows[:, 0].clone()
    for start in range(1, rows.shape[1], TILE):
        stop = min(start + TILE, rows.shape[1])
        top = torch.maximum(top, rows[:, start:stop].amax(1))
    return top


def argmax(rows):
    top, at = rows[:, 0].clone(), torch.zeros(rows.shape[0], dtype=torch.int64)
    for i in range(1, rows.shape[1]):
        column = rows[:, i]
        better = (column > top) | (column.isnan() & ~top.isnan())
        top, at = torch.where(better, column, top), torch.where(better, i, at)
    return at


def anything(rows):
    found = torch.zeros(rows.shape[0], dtype=torch.bool)
    for start in range(0, rows.shape[1], TILE):
        stop = min(start + TILE, rows.shape[1])
        found |= (rows[:, start:stop] != 0).any(1)
    return found


def weighted_sum(stack, weights):
    found = torch.zeros(stack.shape[1], dtype=WIDE)
    for i in range(stack.shape[0]):
        for start in range(0, stack.shape[1], TILE):
            stop = min(start + TILE, stack.shape[1])
            found[start:stop] += weights[i].to(WIDE) * stack[i, start:stop].to(WIDE)
    return found


def softmax_sum(stack, logits):
    powers = (logits.to(WIDE) - logits.to(WIDE).max()).exp()
    weights = powers / powers.sum()
    found = torch.zeros(stack.shape[1], dtype=WIDE)
    for i in range(stack.shape[0]):
        for start in range(0, stack.shape[1], TILE):
            stop = min(start + TILE, stack.shape[1])
            found[start:stop] += weights[i] * stack[i, start:stop].to(WIDE)
    return found


def entropy(rows):
    shifted = rows.to(WIDE) - rows.to(WIDE).amax(1, keepdim=True)
    logs = shifted - shifted.exp().sum(1, keepdim=True).log()
    return -(logs.exp() * logs.clamp_min(-1e30)).sum(1)


def matmul(a, b):
    found = torch.zeros(a.shape[0], b.shape[1], dtype=WIDE)
    for start in range(0, a.shape[1], TILE):
        stop = min(start + TILE, a.shape[1])
        found += a[:, start:stop].to(WIDE) @ b[start:stop, :].to(WIDE)
    return found


def column_sums(stack):
    found = torch.zeros(stack.shape[0], stack.shape[2], dtype=WIDE)
    for i in range(stack.shape[0]):
        for j in range(stack.shape[1]):
            found[i] += stack[i, j].to(WIDE)
    return found


def avg_pool2d(x, size, step, pad, every):
    padded = functional.pad(x.to(WIDE), (pad, pad, pad, pad))
    inside = functional.pad(torch.ones_like(x, dtype=WIDE), (pad, pad, pad, pad), value=float(every))
    high = (x.shape[2] + 2 * pad - size) // step + 1
    wide = (x.shape[3] + 2 * pad - size) // step + 1
    found, terms = torch.zeros(2, *x.shape[:2], high, wide, dtype=WIDE)
    for i in range(size):
        for j in range(size):
            part = slice(i, i + (high - 1) * step + 1, step), slice(j, j + (wide - 1) * step + 1, step)
            found += padded[:, :, part[0], part[1]]
            terms += inside[:, :, part[0], part[1]]
    return found / terms


def max_pool2d(x, size, step, pad):
    padded = functional.pad(x, (pad, pad, pad, pad), value=-torch.inf)
    high = (x.shape[2] + 2 * pad - size) // step + 1
    wide = (x.shape[3] + 2 * pad - size) // step + 1
    found = torch.full((*x.shape[:2], high, wide), -torch.inf, dtype=x.dtype)
    for i in range(size):
        for j in range(size):
            part = padded[:, :, i : i + high * step : step, j : j + wide * step : step]
            found = torch.maximum(found, part[..., :high, :wide])
    return found


def depthwise_conv2d(x, weight, step, pad):
    padded = functional.pad(x.to(WIDE), (pad, pad, pad, pad))
    high = (x.shape[2] + 2 * pad - weight.shape[2]) // step + 1
    wide = (x.shape[3] + 2 * pad - weight.shape[3]) // step + 1
    found = torch.zeros(*x.shape[:2], high, wide, dtype=WIDE)
    for i in range(weight.shape[2]):
        for j in range(weight.shape[3]):
            part = padded[:, :, i : i + high * step : step, j : j + wide * step : step][..., :high, :wide]
            found += part * weight[:, 0, i, j].to(WIDE).view(1, x.shape[1], 1, 1)
    return found


WIDE, NARROW = torch.float32, torch.bfloat16


# From a kernel of rows, of a stack or of a flat tensor to one of an operator's arguments.


def _row_major(x, dim):
    """Return the elements that are folded into each result as a row."""
    axes = range(x.ndim) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    folded = sorted(a % x.ndim for a in axes)
    kept = [i for i in range(x.ndim) if i not in folded]
    count = functools.reduce(lambda n, i: n * x.shape[i], folded, 1)
    return x.permute(*kept, *folded).reshape(-1, count)


def _stacked(xs):
    return xs.flatten(1) if torch.is_tensor(xs) else torch.stack([x.reshape(-1) for x in xs])


def _flat(x, y, alpha):
    y = torch.as_tensor(y, dtype=x.dtype)
    return *(t.reshape(-1) for t in torch.broadcast_tensors(x, y)), alpha


def _pair(value):
    return value if isinstance(value, tuple | list) else (value, value)


class Plain(NamedTuple):
    """A plain kernel of an operator.

    Attributes
    ----------
    kernel : callable
        Computes in float32, in a shape of its own.
    shape : callable
        From the operator's arguments to the kernel's.
    like : callable
        Torch's own operator: its result has the form of the kernel's.
    draw : callable
        From a ``Dice``, a size and what makes a tensor of a shape to the arguments of a call.
    fits : callable
        Whether the kernel is for these arguments.
    """

    kernel: Call
    shape: Call
    like: Call
    draw: Call
    fits: Call = lambda *args: True

    def call(self, kernel: Call) -> Call:
        """Return ``kernel`` as one of the operator."""

        def call(*args: Any) -> Any:
            like = self.like(*args)
            values = kernel(*self.shape(*args)).reshape(like.shape)
            out = args[3] if len(args) == 4 and torch.is_tensor(args[3]) else torch.empty_like(like)
            return out.copy_(values)

        return call


def _folding(kernel: Call, like: Call) -> Plain:
    def draw(dice: Dice, size: int, made: Call) -> tuple[Any, ...]:
        dim = dice.choice((0, -1))
        other = dice.choice((3, 8))
        return made(other, size // other) if dim else made(size // other, other), dim, False

    one = kernel is argmax
    fits = (lambda x, dim, keep: isinstance(dim, int)) if one else (lambda *args: True)
    return Plain(kernel, lambda x, dim, keep: (_row_major(x, dim),), like, draw, fits)


def _window(kernel: Call, like: Call) -> Plain:
    average = like is _average

    def draw(dice: Dice, size: int, made: Call) -> tuple[Any, ...]:
        side, flags = 7 + size // 300, (False, True, None) if average else (1, False, False)
        return made(2, 3, side, side + 2), 3, dice.choice((1, 2)), 1, *flags

    def fits(x: Any, size: Any, step: Any, pad: Any, first: Any, *flags: Any) -> bool:
        plain = (
            (not first and flags[1] is None)
            if average
            else _pair(first) == (1, 1) and flags == (False, False)
        )
        square = all(len(set(_pair(v))) == 1 for v in (size, step or size, pad))
        return plain and square and len(x.shape) == 4

    def shape(x: Any, size: Any, step: Any, pad: Any, *flags: Any) -> tuple[Any, ...]:
        return x, _pair(size)[0], _pair(step or size)[0], _pair(pad)[0], *((flags[1],) if average else ())

    return Plain(kernel, shape, like, draw, fits)


def _average(x: Any, size: Any, step: Any, pad: Any, *flags: Any) -> Tensor:
    return functional.avg_pool2d(x, size, step or size, pad, *flags)


def _largest(x: Any, size: Any, step: Any, pad: Any, *flags: Any) -> Tensor:
    return functional.max_pool2d(x, size, step or size, pad)


def _blended(xs: Any, weights: Any) -> Tensor:
    return xs[0] + xs[-1]


def _blend(dice: Dice, size: int, made: Call) -> tuple[Any, ...]:
    shape = (3, size // 9)
    return tuple(made(*shape) for _ in range(3)), made(3)


def _add(x: Any, y: Any, alpha: Any, out: Any) -> Tensor:
    return torch.add(x, y, alpha=alpha)


def _added(dice: Dice, size: int, made: Call) -> tuple[Any, ...]:
    x = made(4, size // 4)
    return (
        x,
        x if dice.random() < 0.1 else made(4, size // 4),
        dice.choice((1, 1, 2.5, -0.5, 3e6, 1e-6)),
        None,
    )


def _filtered(dice: Dice, size: int, made: Call) -> tuple[Any, ...]:
    return made(2, 3, 7 + size // 300, 9), made(3, 1, 3, 3), 1 + size % 2, 1, 1


def _alike(x: Any, weight: Any, step: Any, pad: Any, dilation: Any) -> Tensor:
    return functional.conv2d(x, weight, None, step, pad, 1, x.shape[1])


def _one_step(x: Any, weight: Any, step: Any, pad: Any, dilation: Any) -> bool:
    square = all(isinstance(v, int) or len(set(v)) == 1 for v in (step, pad))
    return (
        square
        and not isinstance(pad, str)
        and _pair(dilation)[0] == _pair(dilation)[1] == 1
        and len(x.shape) == 4
    )


def _product(dice: Dice, size: int, made: Call) -> tuple[Any, ...]:
    return made(9, size // 9), made(size // 9, 7), None


PLAIN = {
    "add": Plain(add, lambda x, y, alpha, out: _flat(x, y, alpha), _add, _added),
    "sum": _folding(total, torch.sum),
    "mean": _folding(mean, torch.mean),
    "amax": _folding(amax, lambda x, dim, keep: torch.amax(x, () if dim is None else dim, keep)),
    "argmax": _folding(argmax, torch.argmax),
    "any": _folding(anything, torch.any),
    "weighted_sum": Plain(weighted_sum, lambda xs, w: (_stacked(xs), w), _blended, _blend),
    "softmax_sum": Plain(softmax_sum, lambda xs, w: (_stacked(xs), w), _blended, _blend),
    "entropy": Plain(
        entropy,
        lambda x: (x.reshape(-1, x.shape[-1]),),
        lambda x: x.sum(-1),
        lambda dice, size, made: (made(size // 8, 8),),
    ),
    "matmul": Plain(
        matmul,
        lambda a, b, precision: (a, b),
        lambda a, b, precision: a @ b,
        _product,
        lambda a, b, precision: len(a.shape) == len(b.shape) == 2,
    ),
    "column_sums": Plain(
        column_sums,
        lambda xs: (torch.stack(tuple(xs)),),
        lambda xs: torch.cat([x.sum(0) for x in xs]),
        lambda dice, size, made: (tuple(made(6, size // 6) for _ in range(2)),),
        lambda xs: (
            len({tuple(x.shape) for x in xs}) == 1 if isinstance(xs, tuple | list) else len(xs.shape) == 3
        ),
    ),
    "avg_pool2d": _window(avg_pool2d, _average),
    "max_pool2d": _window(max_pool2d, _largest),
    "depthwise_conv2d": Plain(
        depthwise_conv2d,
        lambda x, weight, step, pad, dilation: (x, weight, _pair(step)[0], _pair(pad)[0]),
        _alike,
        _filtered,
        _one_step,
    ),
}
"""By the operator's name."""
