"""The tiles that nxcore-cuda and nxcore-triton choose for products, held to the best of records of GPUs."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nxcore.plugin import Product, TensorMeta

RESULTS = Path(__file__).parents[2] / "benchmarks/results/nvidia-h200"
PAGE = (RESULTS.parents[2] / "docs/performance/matmul.md").read_text(encoding="utf-8")
CASES, KEPT, CHOSEN = (
    json.loads((RESULTS / f"{name}.json").read_text())["cases"]
    for name in ("2026-11-23-matmul", "2026-11-26-matmul-kept", "2026-11-26-matmul-chosen")
)


def product(case):
    """Describe the call of a case: its shapes, and which operands are transposed in memory."""

    def operand(name):
        made = torch.empty(case[name], device="meta")
        return made.mT.contiguous().mT if name in case["turned"] else made

    a, b = operand("a"), operand("b")
    return Product.of(*map(TensorMeta.of, (a, b, torch.matmul(a, b))))


def entrant(matmul, tile):
    """Return the name of a tile in the record."""
    names = {
        matmul.LARGE: "M16-resident",
        matmul.MIDDLE: "S16",
        matmul.SMALL: "T32x2",
        matmul.LEAST: "U32x4",
        matmul.STRAIGHT: "Y16",
        matmul.SLICED: "Y32x2",
        matmul.DEEP: "U32x4s4",
        matmul.AHEAD: "Y16s4",
        matmul.OCTET: "P8s4u2i7",
        matmul.BROAD: "O8s4u2i4",
        matmul.KEPT: "F8s8i7",
        matmul.DUET: "R2s4u2",
        matmul.QUARTET: "R4s4u2i3",
        matmul.LEGION: "K1r16s4h1",
    }
    bare = tile.kind if isinstance(tile, matmul.Slices) else replace(tile, parts=1)
    return f"cuda {names[bare]}" + (f"/{tile.parts}" if tile.parts > 1 else "")


def test_the_tile_of_the_least_cost_is_near_the_fastest_of_a_record():
    """The record has no straight tiles, and none of more stages."""
    matmul = pytest.importorskip("nxcore_cuda.matmul")
    shares = []
    for record in CASES:
        times = {row["entrant"]: row["us"] for row in record["rows"] if row["entrant"].startswith("cuda")}
        name = entrant(matmul, matmul.of_least_cost(product(record["case"])))
        if name in times:
            shares.append(min(times.values()) / times[name])
    assert len(shares) >= 35
    assert statistics.median(shares) >= 0.99
    assert sum(share < 0.9 for share in shares) <= 1
    assert min(shares) >= 0.85


def times_of_teams(matmul):
    """Yield shapes, all times of the last record, and the name there of what is chosen now.

    Where it wasn't timed by its name, it is what ``cuda chosen`` was.
    """
    for record in CHOSEN:
        times = {row["entrant"]: row["us"] for row in record["rows"]}
        name = entrant(matmul, matmul.choose(product(record["case"])))
        yield record["case"]["name"], times, name if name in times else "cuda chosen"


def test_what_is_chosen_is_near_the_fastest_of_the_record_of_teams():
    """A product of its own by every team."""
    shares = {}
    for shape, times, name in times_of_teams(pytest.importorskip("nxcore_cuda.matmul")):
        shares[shape] = min(us for other, us in times.items() if other != "cublas") / times[name]
    assert len(shares) == 64
    assert statistics.median(shares.values()) >= 0.995
    assert {name for name, share in shares.items() if share < 0.95} <= {
        "4096x4096x16",
        "4096x64x4096",
        "8*128x128x128",
        "96*197x64x197b",
        "96*197x197x64",
    }


def test_the_chosen_tile_of_triton_is_near_the_fastest_of_the_squares():
    matmul = pytest.importorskip("nxcore_triton.matmul")
    for record in CASES[:4]:
        times = {row["entrant"]: row["us"] for row in record["rows"] if row["entrant"].startswith("triton")}
        tile = matmul.choose(product(record["case"]))
        name = f"triton {tile.tall}x{tile.wide}x{tile.depth}{'w4' * (tile.warps == 4)}"
        share = min(times.values()) / times[name + f"/{tile.parts}" * (tile.parts > 1)]
        assert share >= (0.97 if record["case"]["name"] != "512" else 0.85)


def test_the_pages_gains_are_the_records():
    found = {record["case"]["name"]: {r["entrant"]: r["us"] for r in record["rows"]} for record in KEPT}
    for name in ("512", "1024", "2048", "4096"):
        base = found[name]["cublas"]
        assert f"| {name} | {base:.1f} | {base / found[name]['cuda chosen']:.2f} |" in PAGE
