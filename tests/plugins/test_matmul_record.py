"""The tiles that nxcore-cuda and nxcore-triton choose for products, held to the best of records of GPUs."""

import csv
import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nxcore.plugin import Product, TensorMeta

RESULTS = Path(__file__).parents[2] / "benchmarks/results/nvidia-h200"
DOCS = RESULTS.parents[2] / "docs/performance"
PAGE = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in ("matmul.md", "matmul_bounds.md"))
PLAIN = (
    "256x256x256",
    "1023x1023x1023",
    "1025x1025x1025",
    "1536x1536x1536",
    "3072x3072x3072",
    "4097x4097x4097",
)
OF_TEAMS = tuple(f"2026-11-26-matmul-{name}" for name in ("turns", "shapes", "broad", "kept", "chosen"))
RECORDS = tuple(
    json.loads((RESULTS / f"{name}.json").read_text())["cases"]
    for name in ("2026-11-23-matmul", "2026-11-23-matmul-tiles", "2026-11-23-matmul-fp32x", *OF_TEAMS)
)
CASES, LATER = RECORDS[:2]
STAGES = json.loads((RESULTS.parent / "nvidia-h100/2026-11-25-matmul-stages.json").read_text())
"""Tiles of three and four stages, on an H100; ``cuda chosen`` is what was chosen before."""
CHOSEN = json.loads((RESULTS.parent / "nvidia-h100/2026-11-25-matmul-chosen.json").read_text())["cases"]
"""What is chosen in all shapes, on an H100; ``cuda chosen`` has the tiles of four stages."""
AHEAD_OF_TWO = {"512", "768x768x768", "1024", "64x1024x1024b", "64x16384x64"}
NEAR = {"512x512x512a", "512x512x512b", "512x512x512ab", "1000x1000x1000", "128x1024x1024b"}
"""Shapes where four stages are chosen: in those of ``STAGES``, and those timed after they were chosen."""

SPLIT = ("fp32x cuda ", "fp32x triton ", "fp32x parts 128x64x32s3cw4$")
"""The kernels of fp32x that are offered: other entrants by parts sum up otherwise."""


def product(case):
    """Describe the call of a case: its shapes, and which operands are transposed in memory."""

    def operand(name):
        made = torch.empty(case[name], device="meta")
        return made.mT.contiguous().mT if name in case["turned"] else made

    a, b = operand("a"), operand("b")
    return Product.of(*map(TensorMeta.of, (a, b, torch.matmul(a, b))))


def without_teams(matmul, described):
    """Return the tile that would be chosen if slices had no stages of their own."""
    return matmul.in_one_round(described) or matmul.of_least_cost(described)


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


@pytest.mark.parametrize(("cases", "timed"), [(CASES, 35), (LATER, 17)], ids=["first", "later"])
def test_the_tile_of_the_least_cost_is_near_the_fastest_of_a_record(cases, timed):
    """The first record has no straight tiles, neither has tiles of more stages."""
    matmul = pytest.importorskip("nxcore_cuda.matmul")
    shares = []
    for record in cases:
        times = {row["entrant"]: row["us"] for row in record["rows"] if row["entrant"].startswith("cuda")}
        name = entrant(matmul, matmul.of_least_cost(product(record["case"])))
        if name in times:
            shares.append(min(times.values()) / times[name])
    assert len(shares) >= timed
    assert statistics.median(shares) >= 0.99
    assert sum(share < 0.9 for share in shares) <= 1
    assert min(shares) >= 0.85


def test_a_tile_of_four_stages_is_chosen_where_it_was_ahead():
    matmul = pytest.importorskip("nxcore_cuda.matmul")
    found = {}
    for record in STAGES["cases"]:
        times = {row["entrant"]: row["us"] for row in record["rows"] if row["entrant"].startswith("cuda")}
        described = product(record["case"])
        tile, before = without_teams(matmul, described), matmul.of_least_cost(described)
        taken = times["cuda chosen"] if tile == before else times[entrant(matmul, tile)]
        assert taken <= times["cuda chosen"]
        assert min(times.values()) / taken >= (0.95 if tile.stages > 2 else 0.93)
        found[record["case"]["name"]] = tile.stages
    assert {name for name, stages in found.items() if stages == 4} == AHEAD_OF_TWO


def test_tiles_of_four_stages_are_chosen_only_where_they_were_timed():
    matmul = pytest.importorskip("nxcore_cuda.matmul")
    taken = {r["case"]["name"] for r in CHOSEN if without_teams(matmul, product(r["case"])).stages > 2}
    assert taken == AHEAD_OF_TWO | NEAR


def near_rows(matmul):
    """Yield shapes, cuBLAS's time, and the times of the chosen tile, of that before, and of two stages."""
    for record in (r for r in CHOSEN if r["case"]["name"] in NEAR):
        times = {row["entrant"].removeprefix("cuda "): row["us"] for row in record["rows"]}
        described = product(record["case"])
        now, before = (
            entrant(matmul, tile).removeprefix("cuda ")
            for tile in (without_teams(matmul, described), matmul.of_least_cost(described))
        )
        two = {name: us for name, us in times.items() if name[0] in "TUY" and "s4" not in name}
        best = min(two, key=two.__getitem__)
        both = {name: times[name] for name in ("chosen", now)}
        yield record["case"]["name"], times["cublas"], both, (before, times[before]), (best, two[best])


def test_what_was_chosen_before_is_not_ahead_of_four_stages():
    """One tile was timed twice, as ``chosen`` and by its name: the times differ by up to 6%."""
    for _, _, both, before, best in near_rows(pytest.importorskip("nxcore_cuda.matmul")):
        mean = statistics.mean(both.values())
        assert mean <= before[1]
        assert mean <= best[1] * 1.02


def test_the_pages_table_of_shapes_timed_later_is_the_record():
    for name, base, both, before, best in near_rows(pytest.importorskip("nxcore_cuda.matmul")):
        tile = list(both)[1]
        pair = ", ".join(f"{base / us:.2f}" for us in both.values())
        told = (f"{base / us:.2f}, `{label}`" for label, us in (before, best))
        assert f"| {' | '.join([name, f'{base:.1f} us', f'{pair}, `{tile}`', *told])} |" in PAGE


def test_the_pages_table_of_an_h100_is_the_record():
    slower = 0
    for record in CHOSEN:
        rows = {row["entrant"]: row for row in record["rows"]}
        base = rows["cublas"]
        chosen = base["us"] / rows["cuda chosen"]["us"]
        slower += chosen < 0.98
        if record["case"]["name"] not in ("512", "1024", "2048", "4096", *PLAIN):
            continue
        others = (
            [f"{base['us'] / row['us']:.2f}" for name, row in rows.items() if name.startswith(kind)]
            for kind in ("triton", "fp32x")
        )
        cells = [
            record["case"]["name"].split("x")[0],
            f"{base['us']:.1f} us, {base['tflops']:.1f} TFLOP/s",
            f"{chosen:.2f}",
            *("".join(found) for found in others),
        ]
        assert f"| {' | '.join(cells)} |" in PAGE
    assert f"slower than cuBLAS by more than 2% in {slower} of {len(CHOSEN)} shapes" in " ".join(PAGE.split())


def times_of_teams(matmul):
    """Yield shapes, all times of the last record, and the name there of what is chosen now.

    Where it wasn't timed by its name, it is what ``cuda chosen`` was.
    """
    for record in RECORDS[-1]:
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


def test_the_page_counts_the_shapes_that_are_slower_than_cublas():
    page = " ".join(PAGE.split())
    found = times_of_teams(pytest.importorskip("nxcore_cuda.matmul"))
    gains_of = [times["cublas"] / times[name] for _, times, name in found]
    slower = sum(gain < 0.98 for gain in gains_of)
    least = f"at worst {min(gains_of):.2f}"
    assert f"slower than cuBLAS by more than 2% in {slower} of {len(gains_of)} shapes, {least}" in page


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
        assert f"| {' | '.join(cells)} |" in PAGE


def stage_rows(matmul):
    """Yield the rows of the page's table of stages."""
    for record in STAGES["cases"]:
        times = {row["entrant"].removeprefix("cuda "): row["us"] for row in record["rows"]}
        base, before = times.pop("cublas"), times.pop("chosen")
        more = [name for name in times if name.split("/")[0].endswith(("s3", "s4"))]
        two = min(us for name, us in {**times, "chosen": before}.items() if name not in more)
        best = min(more, key=times.__getitem__)
        tile = entrant(matmul, without_teams(matmul, product(record["case"]))).removeprefix("cuda ")
        now = f"{base / times[tile]:.2f}, `{tile}`" if tile in more else ""
        cells = [record["case"]["name"], f"{base:.1f} us", f"{two:.1f} us", f"{before:.1f} us"]
        yield [*cells, f"{times[best]:.1f} us, `{best}`", f"{base / times[best]:.2f}", now]


def test_the_pages_table_of_stages_is_the_record():
    for row in stage_rows(pytest.importorskip("nxcore_cuda.matmul")):
        assert f"| {' | '.join(row)} |" in PAGE


def test_the_pages_table_of_teams_is_the_record():
    for record in json.loads((RESULTS / "2026-11-26-matmul-teams.json").read_text())["cases"]:
        times = {row["entrant"].removeprefix("cuda "): row["us"] for row in record["rows"]}
        base, chosen = times["cublas"], times["chosen"]
        best = min((n for n in times if n[0] in "LMNPQR" or n[:2] == "W4"), key=times.__getitem__)
        cells = [record["case"]["name"], f"{base:.1f} us", f"{chosen:.1f} us", f"{base / chosen:.2f}"]
        assert (
            f"| {' | '.join([*cells, f'{times[best]:.1f} us, `{best}`', f'{base / times[best]:.2f}'])} |"
            in PAGE
        )


CALLS = {
    "nvidia-h100/2026-11-25": (
        (0, "512", "cuBLAS, 64 x 64, 4 blocks share a tile", 64),
        (2, "512", "`U32x4s4`", 128),
        (3, "512", "`T32x2/4`, chosen before", 64),
        (4, "1024", "cuBLAS, 128 x 64", 128),
        (5, "1024", "`Y32x2s3`", 128),
        (6, "1024", "`Y32x2`, chosen before", 128),
        (7, "2048", "`Y16`, chosen", 512),
    ),
    "nvidia-h200/2026-11-23": (
        (0, "4096", "cuBLAS, 256 x 128", 512),
        (1, "4096", "256 x 128, lines as in memory", 512),
        (2, "4096", "128 x 128, `PAIR`", 1024),
    ),
}
"""Calls of the records of counters: their number, their shape, what they are, and their tiles."""


def counters(path):
    """Return the counters of a record, by the number of a call."""
    found = {}
    for line in csv.DictReader(line for line in path.read_text().splitlines() if line.startswith('"')):
        short = line["Metric Name"].replace("smsp__average_warps_issue_stalled_", "")
        value = float(line["Metric Value"].replace(",", ""))
        if short == "smsp__inst_executed.sum":
            short = "instructions"
        found.setdefault(int(line["ID"]), {})[short.split(".")[0].replace("_per_issue_active", "")] = value
    return found


def counter_rows():
    """Yield the rows of the page's table of counters."""
    for name, calls in CALLS.items():
        of_calls = counters(RESULTS.parent / f"{name}-matmul-ncu.csv")
        for call, n, kernel, tiles in calls:
            of = of_calls[call]
            duration, issued = of.get("gpu__time_duration"), of["smsp__inst_executed"]
            yield [
                *(n, kernel, str(tiles)),
                f"{duration / 1e3:.1f} us" if duration else "",
                f"{of['sm__inst_executed_pipe_fma']:.0f}%",
                f"{issued:.2f}",
                f"{of['sm__warps_active'] / 4:.1f}",
                *(
                    f"{of[w]:.2f}"
                    for w in ("long_scoreboard", "short_scoreboard", "dispatch_stall", "barrier", "wait")
                ),
                f"{of['l1tex__data_bank_conflicts_pipe_lsu'] / 1e6:.1f}",
            ]


def test_the_pages_table_of_counters_is_the_records():
    for row in counter_rows():
        assert f"| {' | '.join(row)} |" in PAGE


BOUNDS = {2: ("512", 512, 0.176), 4: ("1024", 1024, 0.169)}
"""Calls of the record of teams: case, extent, and the share of multiply-adds that reads two of one parity."""


def test_the_pages_table_of_bounds_is_the_counters():
    """Of a scheduler; 128 of 132 multiprocessors have a block."""
    found = counters(RESULTS / "2026-11-26-matmul-turns-ncu.csv")
    times = {r["case"]["name"]: r["rows"][0]["us"] for r in RECORDS[3]}
    rows = {}
    for call, (case, n, share) in BOUNDS.items():
        active, issued = found[call]["sm__cycles_active"] * 132 / 128, found[call]["instructions"] / 512
        products = n**3 / 32 / 512
        parts = {
            "active": active,
            "multiply-adds": products,
            "other instructions": issued - products,
            "reads of one parity": share * products,
            "the rest: the first load, waits, sums and stores at the end": active - issued - share * products,
            "active cycles of the aim": (times[case] / 1.5 - 4.35) * 1980,
        }
        for what, cycles in parts.items():
            rows.setdefault(what, []).append(f"{cycles / 1000:.1f}")
    for what, cells in rows.items():
        assert f"| {what} | {' | '.join(cells)} |" in PAGE


def test_numbas_times_on_the_page_are_the_records():
    record = json.loads((RESULTS.parent / "amd-epyc-2-cores/2026-11-25-matmul-numba.json").read_text())
    for case in record["cases"]:
        torchs, numbas = (min(case["ms"][name]) for name in ("torch", "numba"))
        assert f"| {case['n']} | {torchs:.2f} ms | {numbas:.2f} ms | {torchs / numbas:.2f} |" in PAGE
        assert torchs < numbas, "then nxcore-numba should have a kernel"


def test_the_pages_tables_of_kept_stages_are_the_records():
    for record, kinds in (("kept-trial", ("F0", "F1")), ("kept", ("chosen", "F8s8i7"))):
        cases = json.loads((RESULTS / f"2026-11-26-matmul-{record}.json").read_text())["cases"]
        for case in cases:
            times = {row["entrant"].removeprefix("cuda "): row["us"] for row in case["rows"]}
            if kinds[-1] not in times:
                continue
            base, own = times["cublas"], [times[kind] for kind in kinds]
            found = [f"{us:.1f} us" for us in (base, times["O8s4u2i4"], *own)]
            if record == "kept":
                found[2:] = [", ".join(found[2:]), ", ".join(f"{base / us:.2f}" for us in own)]
            else:
                found.append(f"{base / own[-1]:.2f}")
            assert f"| {case['case']['name']} | {' | '.join(found)} |" in PAGE


def gains(name, kind):
    """Yield the best gain of a kind over cuBLAS in each record that has one, the latest first."""
    for record in (r for cases in reversed(RECORDS) for r in cases if r["case"]["name"] == name):
        base = record["rows"][0]["us"]
        own = [row["us"] for row in record["rows"] if f"{row['entrant']}$".startswith(kind)]
        if own:
            yield f"{base / min(own):.2f}"
