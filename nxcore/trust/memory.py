"""Memory that shows errors of kernels: walled inputs, guarded results, new memory that holds NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WALL = 4096
"""Elements, or bytes of a guard, on either side: a multiple of every vector load's alignment."""

PATTERN = 0xA5
"""The value of every byte of a guard."""


def poison(tensor: Tensor, value: float = torch.nan) -> None:
    """Fill a tensor with a value that no right result has: NaN, or 85 for integers."""
    tensor.fill_(value if tensor.is_floating_point() else 85)


def each(args: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return ``args`` with every tensor in it replaced by ``change(tensor)``."""
    if isinstance(args, Tensor):
        return change(args)
    return type(args)(each(a, change) for a in args) if isinstance(args, tuple | list) else args


def span(tensor: Tensor) -> int:
    """Return the number of elements from a tensor's first to its last in memory, both included."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same bits; all NaNs count as equal."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(((a.contiguous().view(kind) == b.contiguous().view(kind)) | (a.isnan() & b.isnan())).all())


class Walled:
    """A copy of a tensor with the same strides, between two walls of other elements.

    Parameters
    ----------
    tensor : Tensor
        The tensor to copy, including its gaps.
    wall : int
        Elements on either side. An odd number makes the copy misaligned for vector loads.
    value : float
        The value of the walls: NaN, or 85 for integers.
    """

    def __init__(self, tensor: Tensor, wall: int = WALL, value: float = torch.nan) -> None:
        count = span(tensor)
        self.memory = tensor.new_empty(count + 2 * wall)
        poison(self.memory, value)
        if count:
            self.memory[wall : wall + count] = tensor.detach().as_strided((count,), (1,))
        self.tensor = self.memory.as_strided(tensor.shape, tensor.stride(), wall)
        self.before = self.memory.clone()

    @property
    def scratched(self) -> bool:
        """Whether a wall, or a gap between elements, was written."""
        now, before = _bytes(self.memory), _bytes(self.before)
        if torch.equal(now, before):  # as nearly always, by one launch
            return False
        changed = (now != before).view(len(self.memory), -1).any(1)
        places = torch.arange(len(changed), device=changed.device).as_strided(
            self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()
        )
        changed[places.reshape(-1)] = False
        return bool(changed.any())


def _bytes(memory: Tensor) -> Tensor:
    return memory.view(torch.uint8)


class Guarded(TorchDispatchMode):
    """A mode in which every new tensor of torch has guards on both sides.

    Parameters
    ----------
    fill : float, optional
        The content of new memory, in place of torch's.
    """

    FRESH = frozenset(
        {
            torch.ops.aten.empty.memory_format,
            torch.ops.aten.empty_like.default,
            torch.ops.aten.empty_permuted.default,
            torch.ops.aten.empty_strided.default,
            torch.ops.aten.new_empty.default,
            torch.ops.aten.new_empty_strided.default,
        }
    )
    MADE = FRESH | {
        torch.ops.aten.full.default,
        torch.ops.aten.full_like.default,
        torch.ops.aten.new_full.default,
        torch.ops.aten.new_zeros.default,
        torch.ops.aten.ones.default,
        torch.ops.aten.zeros.default,
        torch.ops.aten.zeros_like.default,
    }

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: else torch imports its compiler, which takes a second; see ``Pointwise``."""
        return False

    def __init__(self, fill: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.fill = fill
        self.blocks: list[tuple[Tensor, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator of torch; put a new tensor between guards."""
        made = func(*args, **(kwargs or {}))
        if func not in self.MADE or made.layout is not torch.strided or made.device.type == "meta":
            return made
        width, count = made.element_size(), span(made)
        block = torch.full((count * width + 2 * WALL,), PATTERN, dtype=torch.uint8, device=made.device)
        block[WALL : WALL + count * width] = _bytes(made.as_strided((count,), (1,)))
        guarded = block.view(made.dtype).as_strided(made.shape, made.stride(), WALL // width)
        if func in self.FRESH and self.fill is not None:
            poison(guarded, self.fill)
        self.blocks.append((block, count * width))
        return guarded

    @property
    def scratched(self) -> bool:
        """Whether a guard was written."""
        guards = [part for block, size in self.blocks for part in (block[:WALL], block[WALL + size :])]
        return bool(guards) and bool((torch.cat(guards) != PATTERN).any())
