"""Memory that shows errors of kernels: inputs between walls, guarded results, new memory that holds NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nxcore.spec.problem import leaves

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


class Walls:
    """Copies of all tensors of ``args``, with their strides and gaps, in one memory a dtype and device.

    On either side are ``wall`` elements at least, of a ``value``, or 85 for integers. An odd number makes the
    copies, the attribute ``args``, misaligned for vector loads.
    """

    def __init__(self, args: Any, wall: int = WALL, value: float = torch.nan) -> None:
        groups: dict[Any, list[Tensor]] = {}
        for t in leaves(args):
            groups.setdefault((t.dtype, t.device), []).append(t.detach())
        self._memories = [_walled(group, wall, value) for group in groups.values()]
        made = {key: iter(copies) for key, (copies, *_) in zip(groups, self._memories, strict=True)}
        self.args = each(args, lambda t: next(made[t.dtype, t.device]))

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        return not all(torch.equal(_bytes(memory), _bytes(before)) for _, memory, before in self._memories)

    @property
    def scratched(self) -> bool:
        """Whether a wall, or a gap between elements, was written."""
        for copies, memory, before in self._memories:
            now, then = _bytes(memory), _bytes(before)
            if torch.equal(now, then):  # as nearly always, by one launch
                continue
            changed = (now != then).view(len(memory), -1).any(1)
            for copy in copies:
                places = torch.arange(len(changed), device=changed.device).as_strided(
                    copy.shape, copy.stride(), copy.storage_offset()
                )
                changed[places.reshape(-1)] = False
            if bool(changed.any()):
                return True
        return False


def _walled(tensors: Sequence[Tensor], wall: int, value: float) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return copies between walls, their memory, and what that holds."""
    starts = [wall]
    for t in tensors:
        starts.append(-(-(starts[-1] + span(t)) // WALL) * WALL + wall)
    memory = tensors[0].new_empty(starts.pop())
    poison(memory, value)
    placed = list(zip(tensors, starts, strict=True))
    flat = [t.as_strided((span(t),), (1,)) for t in tensors]
    torch._foreach_copy_([memory[at : at + span(t)] for t, at in placed], flat)
    copies = [memory.as_strided(t.shape, t.stride(), at) for t, at in placed]
    return copies, memory, memory.clone()


def bits(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return a copy of the bytes of all tensors, side by side: one a dtype and device."""
    groups: dict[Any, list[Tensor]] = {}
    for t in tensors:
        groups.setdefault((t.dtype, t.device), []).append(t.detach().resolve_conj().resolve_neg().reshape(-1))
    return [_bytes(torch.cat(group)) for group in groups.values()]


def same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether ``bits`` are the same: the host waits once a dtype, whatever the number of tensors."""
    return len(some) == len(others) and all(map(torch.equal, some, others))


def _bytes(memory: Tensor) -> Tensor:
    return memory.view(torch.uint8)


class Guarded(TorchDispatchMode):
    """A mode in which every new tensor of torch has guards on both sides.

    Parameters
    ----------
    fill : float, optional
        The content of new memory, in place of torch's.
    walled : bool
        False for new memory as torch makes it, without guards.
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

    def __init__(self, fill: float | None = None, *, walled: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.fill, self.walled = fill, walled
        self.blocks: list[tuple[Tensor, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator of torch; put a new tensor between guards."""
        made = func(*args, **(kwargs or {}))
        if func not in self.MADE or made.layout is not torch.strided or made.device.type == "meta":
            return made
        if not self.walled:
            if func in self.FRESH and self.fill is not None:
                poison(made, self.fill)
            return made
        width, count = made.element_size(), span(made)
        block = torch.full((count * width + 2 * WALL,), PATTERN, dtype=torch.uint8, device=made.device)
        guarded = block.view(made.dtype).as_strided(made.shape, made.stride(), WALL // width)
        if func in self.FRESH and self.fill is not None:
            poison(guarded, self.fill)
        else:
            block[WALL : WALL + count * width] = _bytes(made.as_strided((count,), (1,)))
        self.blocks.append((block, count * width))
        return guarded

    @property
    def scratched(self) -> bool:
        """Whether a guard was written."""
        guards = [part for block, size in self.blocks for part in (block[:WALL], block[WALL + size :])]
        return bool(guards) and bool((torch.cat(guards) != PATTERN).any())
