"""Products of matrices that ``matmul.py`` times: squares, tall, wide, skinny, odd, turned, batched."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SIDES = (512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Case:
    """A call by name: shapes, and which operands are transposed in memory."""

    name: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    turned: str = ""

    def operands(self) -> tuple[Tensor, Tensor]:
        """Return random operands."""
        generator = torch.Generator("cuda").manual_seed(0)
        return _random(self.a, generator, "a" in self.turned), _random(self.b, generator, "b" in self.turned)


def _random(shape: tuple[int, ...], generator: torch.Generator, turned: bool) -> Tensor:
    given = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    made = torch.rand(given, generator=generator, device="cuda") - 0.5
    return made.mT if turned else made


def _plain(rows: int, terms: int, columns: int, turned: str = "") -> Case:
    return Case(f"{rows}x{terms}x{columns}{turned}", (rows, terms), (terms, columns), turned)


def _heads(count: int, rows: int, terms: int, columns: int, turned: str = "") -> Case:
    name = f"{count}*{rows}x{terms}x{columns}{turned}"
    return Case(name, (count, rows, terms), (count, terms, columns), turned)


CASES = (
    *(Case(f"{n}", (n, n), (n, n)) for n in SIDES),
    *(_plain(n, n, n) for n in (128, 256, 384, 640, 768, 1536, 3072)),
    *(_plain(n, n, n) for n in (127, 511, 1000, 1023, 1025, 2047, 4097)),
    *(_plain(n, n, n, turned) for n in (512, 2048) for turned in ("a", "b", "ab")),
    *(_plain(n, 4096, 4096) for n in (1, 2, 8, 16, 32, 64, 128, 256)),
    *(_plain(n, 1024, 1024, "b") for n in (1, 16, 64, 128, 256)),
    *(_plain(4096, 4096, n) for n in (1, 16, 64)),
    *(_plain(4096, n, 4096) for n in (16, 64, 256)),
    *(_plain(n, 16384, n) for n in (16, 64, 256)),
    *(_plain(8192, 512, n, "b") for n in (512, 2048)),
    *(_plain(2048, n, 4096, "b") for n in (768, 1024)),
    *(_plain(33, 1000, 77) for _ in range(1)),
    *(_plain(1000, 33, 4000) for _ in range(1)),
    *(_heads(64, 256, 64, 256, turned) for turned in ("", "b")),
    *(_heads(96, 197, 64, 197, turned) for turned in ("", "b")),
    _heads(96, 197, 197, 64),
    *(_heads(8, n, n, n) for n in (128, 512, 1024)),
    _heads(1024, 32, 32, 32),
    _heads(256, 64, 64, 64),
    _heads(16, 1024, 64, 1024, "b"),
    _heads(32, 512, 128, 512, "b"),
)
