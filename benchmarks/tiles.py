"""Tiles of products that ``matmul.py`` times, by name, and which of them suit a case."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nxcore_cuda import matmul as cuda
from nxcore_cuda import matmul_split as cuda_split
from nxcore_triton import matmul as triton
from nxcore_triton import matmul_parts as triton_parts
from products import Case

from nxcore.plugin import Product

CUDA = {
    "L16": cuda.Tile(256, 128, 8, 16, 16),
    "L32": cuda.Tile(256, 128, 8, 16, 32),
    "L8": cuda.Tile(256, 128, 8, 16, 8),
    "L16-by-term": cuda.Tile(256, 128, 8, 16, 16, by_line=False),
    "M16x2": cuda.Tile(128, 128, 8, 16, 16, 2),
    "M32x2": cuda.Tile(128, 128, 8, 16, 32, 2),
    "M16-resident": cuda.Tile(128, 128, 8, 8, 16, resident=2, by_line=False),
    "M16": cuda.Tile(128, 128, 8, 8, 16),
    "S16x2": cuda.Tile(64, 128, 8, 8, 16, 2),
    "S32x2": cuda.Tile(64, 128, 8, 8, 32, 2),
    "S32x4": cuda.Tile(64, 128, 8, 16, 32, 4),
    "T32x4": cuda.Tile(64, 64, 8, 8, 32, 4),
    "T16x4": cuda.Tile(64, 64, 8, 8, 16, 4),
    "T32x2": cuda.Tile(64, 64, 8, 8, 32, 2, resident=2),
    "T32x2-by-term": cuda.Tile(64, 64, 8, 8, 32, 2, resident=3, by_line=False),
    "S16-resident": cuda.Tile(64, 128, 8, 8, 16, 1, resident=3, by_line=False),
    "S16": cuda.Tile(64, 128, 8, 8, 16, 1, resident=2),
    "V16": cuda.Tile(128, 128, 8, 16, 16, resident=2, by_line=False, straight=True, order=2),
    "V16-rows": cuda.Tile(128, 128, 8, 16, 16, resident=2, by_line=False, straight=True, order=1),
    "V16-held": cuda.Tile(128, 128, 8, 16, 16, resident=2, by_line=False, order=2),
    "V32": cuda.PAIR,
    "N16": cuda.Tile(128, 128, 8, 8, 16, resident=2, by_line=False, straight=True, order=2),
    "W16": cuda.Tile(64, 128, 8, 16, 16, resident=4, by_line=False, straight=True, order=1),
    "W16-held": cuda.Tile(64, 128, 8, 16, 16, resident=4, by_line=False, order=1),
    "X16": cuda.Tile(256, 128, 8, 16, 16, by_line=False, straight=True, order=2),
    "X16-held": cuda.Tile(256, 128, 8, 16, 16, by_line=False, order=2),
    "Y16": cuda.STRAIGHT,
    "Z32x2": cuda.Tile(64, 64, 8, 8, 32, 2, resident=3, by_line=False, straight=True, order=2),
    "Y32x2": cuda.SLICED,
    "S16-rows": cuda.Tile(64, 128, 8, 8, 16, resident=2, order=1),
    "L16-rows": cuda.Tile(256, 128, 8, 16, 16, order=1),
    "U32x8": cuda.Tile(64, 32, 8, 8, 32, 8),
    "U32x4": cuda.Tile(64, 32, 8, 8, 32, 4, resident=2),
    "U32x4s3": cuda.Tile(64, 32, 8, 8, 32, 4, resident=2, straight=True, stages=3),
    "U32x4s4": cuda.DEEP,
    "U32x8s4": cuda.Tile(64, 32, 8, 8, 32, 8, straight=True, stages=4),
    "T32x2s4": cuda.Tile(64, 64, 8, 8, 32, 2, resident=2, straight=True, stages=4),
    "T32x4s4": cuda.Tile(64, 64, 8, 8, 32, 4, straight=True, stages=4),
    "S32x2s3": cuda.Tile(64, 128, 8, 8, 32, 2, straight=True, stages=3),
    "Y32x2s3": replace(cuda.SLICED, stages=3),
    "Y32x4s3": replace(cuda.SLICED, slices=4, stages=3),
    "Y16s4": cuda.AHEAD,
    "P8s4u2i7": cuda.OCTET,
    "R2s4u2": cuda.DUET,
    "R4s4u2i3": cuda.QUARTET,
    "K1r16s4h1": cuda.LEGION,
    "O8s4u2i7": replace(cuda.OCTET, tall=32, wide=64),
    "O8s4u2i4": cuda.BROAD,
    "F8s8i7": cuda.KEPT,
    "O8s4u2i2": replace(cuda.BROAD, pieces=2),
    "O8s4u2i3": replace(cuda.BROAD, pieces=3),
    "O8s4u2i5": replace(cuda.BROAD, pieces=5),
    "O8s3u2i4": replace(cuda.BROAD, stages=3),
    "O8s6u2i4": replace(cuda.BROAD, stages=6),
    "O8s4u4i4": replace(cuda.BROAD, depth=256, turn=4),
    "O8s4u1i4": replace(cuda.BROAD, depth=64, turn=1),
    "O4s4u2i4": replace(cuda.BROAD, team=4),
    "O2s4u2i4": replace(cuda.BROAD, team=2),
    "R4s4u2i4": replace(cuda.QUARTET, pieces=4),
    "R4s4u2i2": replace(cuda.QUARTET, pieces=2),
    "R4s3u2i3": replace(cuda.QUARTET, stages=3),
    "R4s5u2i3": replace(cuda.QUARTET, stages=5),
    "Q4r16s3i8": cuda.Slices(64, 128, 8, 16, 64, 4, team=4, stages=3, pieces=8),
    "Q4s4u2i4": cuda.Slices(64, 128, 8, 16, 64, 4, team=4, turn=2, pieces=4),
    "T8s3u2i7": cuda.Slices(64, 64, 8, 8, 128, 8, team=8, turn=2, pieces=7, stages=3),
}
"""Tiles by name: large to tiny, the depth, the slices, and the stages where there are more than two."""

SPLIT = {
    "128x128x32": cuda_split.LARGE,
    "128x128x16": cuda_split.Split(128, 128, 64, 32, 16),
    "128x64x32": cuda_split.Split(128, 64, 32, 32, 32),
    "64x64x32": cuda_split.SMALL,
    "128x128x32cut": cuda_split.Split(128, 128, 64, 32, 32, rounded=False),
    "128x64x32cut": cuda_split.Split(128, 64, 32, 32, 32, resident=2, rounded=False),
    "64x64x32cut": cuda_split.Split(64, 64, 32, 32, 32, resident=4, rounded=False),
}
"""Tiles of the class fp32x: split factors on tensor cores."""

Parts = triton_parts.Tile
PARTS = {
    "128x64x32": Parts(),
    "64x128x32": Parts(64, 128),
    "64x64x32": Parts(64, 64, stages=4),
    "128x128x32": Parts(128, 128, warps=8),
    "128x64x64": Parts(128, 64, 64, warps=8),
    "128x256x32": Parts(128, 256, warps=8),
}
"""Tiles of the class fp32x: six products of bfloat16 parts."""

TRITON = {
    "128x128x16": triton.Tile(128, 128, 16),
    "128x128x32": triton.Tile(128, 128, 32),
    "128x256x16": triton.Tile(128, 256, 16),
    "64x128x16w4": triton.Tile(64, 128, 16, warps=4),
    "64x64x32w4": triton.Tile(64, 64, 32, warps=4),
    "32x64x32w4": triton.Tile(32, 64, 32, warps=4),
    "16x64x64w4": triton.Tile(16, 64, 64, warps=4),
}


def parts_for(product: Product, tall: int, wide: int) -> list[int]:
    """Return how many blocks may share a tile: one, and what fills half the device up to four times."""
    tiles = math.prod(product.batch) * -(-product.rows // tall) * -(-product.columns // wide)
    found = {1} | {int(f * cuda.FILL // tiles) for f in (0.5, 1, 2, 3, 4)}
    return sorted(n for n in found if n == 1 or 2 <= n <= product.terms // 64)


def tiles_for(case: Case, product: Product, only: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entrants of a case that match a pattern, as ``cuda Y16/2 of 1024``."""
    for name, tile in _tiles(case, product):
        if re.search(only, f"{name} of {case.name}"):
            yield name, tile


def _tiles(case: Case, product: Product) -> Iterator[tuple[str, Any]]:
    """Yield the entrants of a case: all that don't waste most of a tile or of a slice."""
    square = case.name.isdigit()
    outputs = product.rows * product.columns * math.prod(product.batch)
    vectors = all(way.vectors for way in cuda.Way.both(product))
    for name, tile in CUDA.items():
        if isinstance(tile, cuda.Slices) and not vectors:
            continue
        if (tile.tall > 64 and tile.tall >= 2 * product.rows) or (
            tile.wide > 64 and tile.wide >= 2 * product.columns
        ):
            continue
        if tile.slices > 2 and outputs > 640 * tile.tall * tile.wide:
            continue
        if not square and name.endswith(("by-term", "L8", "L32", "M32x2")):
            continue
        own = tile.for_product(product) if isinstance(tile, cuda.Slices) else tile
        if tile is cuda.KEPT and cuda.choose(product) != own:
            continue
        for parts in parts_for(product, tile.tall, tile.wide)[: 1 if tile is cuda.KEPT else None]:
            yield f"cuda {name}{f'/{parts}' * (parts > 1)}", replace(own, parts=parts)
    yield "cuda chosen", cuda.choose(product)
    for name, split in SPLIT.items() if square and product.rows >= 1024 else ():
        yield f"fp32x cuda {name}", split
    for name, parts in PARTS.items() if min(product.rows, product.columns, product.terms) >= 1023 else ():
        yield f"fp32x parts {name}", parts
    for block in TRITON.values() if square and product.rows >= 1024 else ():
        if block.tall >= 64:
            for depth in (32, 64):
                made = replace(triton.split(block), depth=depth)
                yield f"fp32x triton {block.tall}x{block.wide}x{depth}w{block.warps}", made
    for name, block in TRITON.items() if square else ():
        for parts in parts_for(product, block.tall, block.wide)[:3]:
            yield f"triton {name}{f'/{parts}' * (parts > 1)}", replace(block, parts=parts)
    yield "triton chosen", triton.choose(product)
