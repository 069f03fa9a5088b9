"""Memory that tells: filled with NaN where it is fresh, walled, and guarded on both sides."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WALL = 4096
"""Elements, or bytes of a guard, on either side: a multiple of what any vector load needs."""

PATTERN = 0xA5
"""Of every byte of a guard."""


def poison(tensor: Tensor, value: float = torch.nan) -> None:
    """Fill a tensor with what no right answer holds: NaN, or 85 where there is none."""
    tensor.fill_(value if tensor.is_floating_point() else 85)


@contextlib.contextmanager
def poisoned(*, warn_only: bool) -> Iterator[None]:
    """Have torch fill fresh memory with NaN, or an integer's largest value: what isn't written shows.

    Parameters
    ----------
    warn_only : bool
        Let operators pass that torch has no deterministic way for.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic  # a module with properties, which mypy can't see
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    settings.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        settings.fill_uninitialized_memory = filled


def each(args: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return ``args`` with every tensor in it replaced by ``change(tensor)``."""
    if isinstance(args, Tensor):
        return change(args)
    return type(args)(each(a, change) for a in args) if isinstance(args, tuple | list) else args


def span(tensor: Tensor) -> int:
    """Return how many elements lie between a tensor's first and its last, both counted."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors hold the same bits, any NaN being as good as another."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(((a.contiguous().view(kind) == b.contiguous().view(kind)) | (a.isnan() & b.isnan())).all())


class Walled:
    """A copy of a tensor, laid out alike, between two walls of other elements.

    Parameters
    ----------
    tensor : Tensor
        What is copied, gaps included.
    wall : int
        Elements on either side; an odd number puts the copy where no vector load may start.
    value : float
        What the walls are made of: NaN, or 85 for integers.
    """

    def __init__(self, tensor: Tensor, wall: int = WALL, value: float = torch.nan) -> None:
        count = span(tensor)
        self.memory = tensor.new_empty(count + 2 * wall)
        poison(self.memory, value)
        if count:
            self.memory[wall : wall + count] = tensor.detach().as_strided((count,), (1,))
        self.tensor = self.memory.as_strided(tensor.shape, tensor.stride(), wall)
        self.before = self.memory.clone()
        places = torch.arange(len(self.memory), device=tensor.device)
        self.own = torch.zeros(len(self.memory), dtype=torch.bool, device=tensor.device)
        self.own[places.as_strided(tensor.shape, tensor.stride(), wall).reshape(-1)] = True

    @property
    def scratched(self) -> bool:
        """Whether something wrote into a wall, or into a gap between elements."""
        changed = (_bytes(self.memory) != _bytes(self.before)).view(len(self.memory), -1).any(1)
        return bool((changed & ~self.own).any())


def _bytes(memory: Tensor) -> Tensor:
    return memory.view(torch.uint8)


class Guarded(TorchDispatchMode):
    """While it is entered, every tensor that torch makes anew has guards on both sides.

    Parameters
    ----------
    fill : float, optional
        What fresh memory holds, in place of what torch would put there.
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

    def __init__(self, fill: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.fill = fill
        self.blocks: list[tuple[Tensor, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator of torch; put what it made anew between guards."""
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
        """Whether something wrote into a guard."""
        return any(
            bool((block[:WALL] != PATTERN).any() or (block[WALL + size :] != PATTERN).any())
            for block, size in self.blocks
        )
