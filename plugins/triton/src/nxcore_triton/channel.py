"""Channels of images as the kernels of batch_norm walk through them, and how programs share each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nxcore.plugin import TensorMeta, collapse
from nxcore_triton.tile import cdiv

FILL = 264  # programs for 132 multiprocessors; a constant, so that a sum has the same bits on every device
MOST = 128  # programs that share a channel: each reads what all of them left
BLOCK = 1024


@dataclass(frozen=True)
class Channels:
    """Operands of one shape, (N, C, ...): a channel's elements, and from one to the next.

    Attributes
    ----------
    channels, count : int
        How many there are, and how many values each has.
    sizes : tuple of int
        Of a channel, outermost first.
    strides : tuple of tuple of int
        In these dimensions, one an operand.
    between : tuple of int
        From one channel to the next, one an operand.
    block, span : int
        Elements that a program reads at once, and of its slice.
    """

    channels: int
    count: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    between: tuple[int, ...]
    block: int
    span: int

    @classmethod
    def of(cls, *operands: TensorMeta) -> Channels:
        """Describe operands, in the order of the first one's memory."""
        first = operands[0]

        def rest(values: Sequence[int]) -> tuple[int, ...]:
            return (values[0], *values[2:])

        sizes, strides = collapse(rest(first.shape), *(rest(m.strides) for m in operands))
        channels, count = first.shape[1], math.prod(sizes)
        splits = min(cdiv(FILL, channels), MOST)
        block = min(max(1 << (count - 1).bit_length(), 32), BLOCK)
        span = cdiv(cdiv(count, splits), block) * block
        return cls(channels, count, sizes, strides, tuple(m.strides[1] for m in operands), block, span)

    @property
    def rank(self) -> int:
        """How many dimensions a channel has."""
        return len(self.sizes)

    @property
    def splits(self) -> int:
        """How many programs share a channel."""
        return cdiv(self.count, self.span)
