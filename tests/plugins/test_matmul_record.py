"""The tiles that nxcore-cuda and nxcore-triton choose for products, held to the best of an H200's records."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nxcore.plugin import Product, TensorMeta

RESULTS = Path(__file__).parents[2] / "benchmarks/results/nvidia-h200"
PAGE = RESULTS.parents[2] / "docs/performance/matmul.md"
PLAIN = (
    "256x256x256",
    "1023x1023x1023",
    "1025x1025x1025",
    "1536x1536x1536",
    "3072x3072x3072",
    "4097x4097x4097",
)
RECORDS = tuple(
    json.loads((RESULTS / f"2026-11-23-{name}.json").read_text())["cases"]
    for name in ("matmul", "matmul-tiles", "matmul-fp32x")
)
CASES, LATER = RECORDS[:2]


SPLIT = ("fp32x cuda ", "fp32x triton ", "fp32x parts 128x64x32s3cw4$")
"""The kernels of fp32x that are offered: other entrants by parts sum up otherwise."""


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
    }
    return f"cuda {names[replace(tile, parts=1)]}" + (f"/{tile.parts}" if tile.parts > 1 else "")


@pytest.mark.parametrize(("cases", "timed"), [(CASES, 35), (LATER, 17)], ids=["first", "later"])
def test_the_chosen_tile_is_near_the_fastest_of_a_record(cases, timed):
    """The first record has no straight tiles."""
    matmul = pytest.importorskip("nxcore_cuda.matmul")
    shares = []
    for record in cases:
        times = {row["entrant"]: row["us"] for row in record["rows"] if row["entrant"].startswith("cuda")}
        name = entrant(matmul, matmul.choose(product(record["case"])))
        if name in times:
            shares.append(min(times.values()) / times[name])
    assert len(shares) >= timed
    assert statistics.median(shares) >= 0.99
    assert sum(share < 0.9 for share in shares) <= 1
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
    """What is chosen is of the latest record that has it, the best of any record."""
    matmul = pytest.importorskip("nxcore_cuda.matmul")
    page = PAGE.read_text(encoding="utf-8")
    for record in (r for r in CASES if r["case"]["name"] in ("512", "1024", "2048", "4096", *PLAIN)):
        name, base = record["case"]["name"], record["rows"][0]
        chosen = entrant(matmul, matmul.choose(product(record["case"])))
        cells = [
            name.split("x")[0],
            f"{base['us']:.1f} us, {base['tflops']:.1f} TFLOP/s",
            max(gains(name, "cuda ")),
            [*gains(name, f"{chosen}$"), ""][0],
            max(gains(name, "triton ")),
            max([*gains(name, SPLIT), ""]),
        ]
        assert f"| {' | '.join(cells)} |" in page


def test_numbas_times_on_the_page_are_the_records():
    record = json.loads((RESULTS.parent / "amd-epyc-2-cores/2026-11-25-matmul-numba.json").read_text())
    page = PAGE.read_text(encoding="utf-8")
    for case in record["cases"]:
        torchs, numbas = (min(case["ms"][name]) for name in ("torch", "numba"))
        assert f"| {case['n']} | {torchs:.2f} ms | {numbas:.2f} ms | {torchs / numbas:.2f} |" in page
        assert torchs < numbas, "then nxcore-numba should have a kernel"


def gains(name, kind):
    """Yield the best gain of a kind over cuBLAS in each record that has one, the latest first."""
    for record in (r for cases in reversed(RECORDS) for r in cases if r["case"]["name"] == name):
        base = record["rows"][0]["us"]
        own = [row["us"] for row in record["rows"] if f"{row['entrant']}$".startswith(kind)]
        if own:
            yield f"{base / min(own):.2f}"
