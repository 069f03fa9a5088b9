"""The tiles that nxcore-cuda and nxcore-triton choose for products, held to the best of an H200's record."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nxcore.plugin import Product, TensorMeta

RECORD = Path(__file__).parents[2] / "benchmarks/results/nvidia-h200/2026-11-23-matmul.json"
PAGE = RECORD.parents[3] / "docs/performance/matmul.md"
PLAIN = (
    "256x256x256",
    "1023x1023x1023",
    "1025x1025x1025",
    "1536x1536x1536",
    "3072x3072x3072",
    "4097x4097x4097",
)
CASES = json.loads(RECORD.read_text())["cases"]


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
    }
    return f"cuda {names[replace(tile, parts=1)]}" + (f"/{tile.parts}" if tile.parts > 1 else "")


def test_the_chosen_tile_is_near_the_fastest_of_the_record():
    matmul = pytest.importorskip("nxcore_cuda.matmul")
    shares = []
    for record in CASES:
        times = {row["entrant"]: row["us"] for row in record["rows"] if row["entrant"].startswith("cuda")}
        name = entrant(matmul, matmul.choose(product(record["case"])))
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


def test_the_table_of_the_page_is_the_records():
    matmul = pytest.importorskip("nxcore_cuda.matmul")
    page = PAGE.read_text(encoding="utf-8")
    for record in (r for r in CASES if r["case"]["name"] in ("512", "1024", "2048", "4096", *PLAIN)):
        times = {row["entrant"]: row["us"] for row in record["rows"]}
        base = times["cublas"]
        chosen = base / times[entrant(matmul, matmul.choose(product(record["case"])))]
        best = [_best(times, kind) for kind in ("cuda ", "triton ", "fp32x ")]
        tflops = f"{record['rows'][0]['tflops']:.1f}"
        cells = [
            record["case"]["name"].split("x")[0],
            f"{base:.1f} us, {tflops} TFLOP/s",
            best[0],
            f"{chosen:.2f}",
            *best[1:],
        ]
        assert f"| {' | '.join(cells)} |" in page


def _best(times, kind):
    own = {name: us for name, us in times.items() if name.startswith(kind)}
    return f"{times['cublas'] / min(own.values()):.2f}" if own else ""
