"""Layouts as data: the memory of a tensor as the compact row-major array that DLPack and XLA share.

Imports no jax: the answers of ``accepts`` are made of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from nxcore.plugin import TensorMeta


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor's elements in memory, each once: without dimensions of size 1 and repetitions (stride 0).

    Attributes
    ----------
    order : tuple of int
        The tensor's other dimensions, outermost in memory first.
    shape, strides : tuple of int
        Their sizes and strides: a compact row-major array.
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, meta: TensorMeta) -> Packed | None:
        """Describe a tensor; None where its elements leave gaps in memory, or share it otherwise."""
        kept = [i for i, (n, s) in enumerate(zip(meta.shape, meta.strides, strict=True)) if n != 1 and s != 0]
        order = tuple(sorted(kept, key=lambda i: -meta.strides[i]))
        expected = 1
        for i in reversed(order):
            if meta.strides[i] != expected:
                return None
            expected *= meta.shape[i]
        return cls(order, tuple(meta.shape[i] for i in order), tuple(meta.strides[i] for i in order))

    @property
    def inverse(self) -> tuple[int, ...]:
        """Where each of the tensor's dimensions, in their own order, lies in ``order``."""
        return tuple(sorted(range(len(self.order)), key=self.order.__getitem__))


def repeats(meta: TensorMeta) -> bool:
    """Return whether a tensor repeats elements: no result may."""
    return any(n != 1 and s == 0 for n, s in zip(meta.shape, meta.strides, strict=True))
