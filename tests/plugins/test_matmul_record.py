"""The tiles that nxcore-cuda and nxcore-triton choose for products, held to the best of an H200's record."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nxcore.plugin import Product, TensorMeta

RECORD = Path(__file__).parents[2] / "benchmarks/results/nvidia-h200/2026-11-23-matmul.json"
CASES = json.loads(RECORD.read_text())["cases"]


def product(case):
    """Describe the call of a case: its shapes, and which operands are transposed in memory."""

    def operand(name):
        made = torch.empty(case[name], device="meta")
        return made.mT.contiguous().mT if name in case["turned"] else made

    a, b = operand("a"), operand("b")
    return Product.of(*map(TensorMeta.of, (a, b, torch.matmul(a, b))))


def test_the_chosen_tile_is_near_the_fastest_of_the_record():
    matmul = pytest.importorskip("nxcore_cuda.matmul")
    names = {
        matmul.LARGE: "M16-resident",
        matmul.MIDDLE: "S16",
        matmul.SMALL: "T32x2",
        matmul.LEAST: "U32x4",
    }
    shares = []
    for record in CASES:
        times = {row["entrant"]: row["us"] for row in record["rows"] if row["entrant"].startswith("cuda")}
        tile = matmul.choose(product(record["case"]))
        name = f"cuda {names[replace(tile, parts=1)]}" + (f"/{tile.parts}" if tile.parts > 1 else "")
        if name in times:
            shares.append(min(times.values()) / times[name])
    assert len(shares) >= len(CASES) - 2
    assert statistics.median(shares) >= 0.99
    assert sum(share < 0.9 for share in shares) <= 2
    assert min(shares) >= 0.85


def test_the_chosen_tile_of_triton_is_near_the_fastest_of_the_squares():
    matmul = pytest.importorskip("nxcore_triton.matmul")
    for record in CASES[:4]:
        times = {row["entrant"]: row["us"] for row in record["rows"] if row["entrant"].startswith("triton")}
        tile = matmul.choose(product(record["case"]))
        name = f"triton {tile.tall}x{tile.wide}x{tile.depth}{'w4' * (tile.warps == 4)}"
        share = min(times.values()) / times[name + f"/{tile.parts}" * (tile.parts > 1)]
        assert share >= (0.97 if record["case"]["name"] != "512" else 0.85)
