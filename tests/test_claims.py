"""The figures of the README and of the page on figures, computed again from the records that they name."""

import importlib.util
import json
import math
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.steps import Turn, windows
from nxcore.settings import FORMER

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = " ".join(README.split())
FIGURES = (ROOT / "docs" / "performance" / "figures.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks/results/nvidia-h200"
RECORD = RESULTS / "2026-11-22-block.jsonl"
DEPTHWISE = RESULTS / "2026-11-21-depthwise.jsonl"
CONFORMANCE = RESULTS / "2026-11-22-conformance.json"


def _rows(record: Path = RECORD) -> list[dict[str, Any]]:
    lines = record.read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["record"] == "row"]


def _cells() -> list[list[dict[str, Any]]]:
    cells = defaultdict(list)
    for row in _rows():
        cells[row["op"], row["sample"], row["dtype"]].append(row)
    return list(cells.values())


def _summary(ratios: list[float]) -> str:
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    slower = sum(r < 1 for r in ratios)
    return f"{mean:.2f}x | {min(ratios):.2f}x | {slower} of {len(ratios)}"


def _always(label: str) -> str:
    return _summary([r["ratio"][0] for r in _rows() if r["label"] == label and r.get("ratio")])


def test_the_table_of_policies_is_the_records() -> None:
    won = [[r["ratio"][0] for r in cell if r["verdict"] == "FAST"] for cell in _cells()]
    assert f"| always Triton | {_always('triton')} |" in README
    assert f"| always Numba-CUDA, where it can | {_always('numba-cuda')} |" in README
    assert f"over the {len(_cells())} cells (operator and size, float32) of" in PROSE
    assert f"nxcore's rule, on the same timings | {_summary([max(w, default=1.0) for w in won])} |" in re.sub(
        r"\*\*", "", README
    )


@pytest.mark.parametrize(
    ("filters", "sample", "dtype"),
    [
        ("3 x 3, float32", "imagenet_k3", "float32"),
        ("7 x 7, float32", "imagenet_k7", "float32"),
        ("3 x 3 dilated, bfloat16, channels_last", "imagenet_k3_channels_last_dilation2", "bfloat16"),
    ],
)
def test_the_table_of_depthwise_convolutions_is_the_records(filters: str, sample: str, dtype: str) -> None:
    cell = {
        row["label"]: row
        for row in _rows(DEPTHWISE)
        if (row["op"], row["sample"], row["dtype"]) == ("depthwise_conv2d", sample, dtype)
    }
    times = {label: row["device_us"] for label, row in cell.items() if "device_us" in row}
    assert min(times, key=lambda label: times[label]) == "cuda"
    figures = " | ".join(f"{times[label]:.1f}" for label in ("torch", "inductor", "cuda"))
    assert f"| {filters} | {figures}, CUDA C++ | {cell['cuda']['ratio'][0]:.2f}x |" in FIGURES


def test_the_search_step_is_the_records() -> None:
    text = (RESULTS / "2026-11-26-none-search-step.json").read_text(encoding="utf-8")
    plain, ours = (json.loads(text)["rows"][name] for name in ("plain", "patched"))
    took, torchs = f"{ours['eager_ms']:.0f}", f"{plain['eager_ms']:.0f}"
    assert f"takes {took} ms on an H200 where torch's takes {torchs}, and" in PROSE
    assert f"| eager | {torchs} ms | {took} ms |" in FIGURES
    assert f"| in a CUDA graph | {plain['captured_ms']:.0f} ms | {ours['captured_ms']:.0f} ms |" in FIGURES
    added = (f"{row['peak_gib'] - row['before_gib']:.1f}" for row in (plain, ours))
    assert "| memory that a step adds | {} GiB | {} GiB |".format(*added) in FIGURES


def test_the_search_on_cifar10_is_the_records() -> None:
    found = json.loads((RESULTS / "2026-11-22-search-cifar10-long.json").read_text(encoding="utf-8"))
    rows, steps = found["rows"], 25_000 // 64
    search = [row["seconds"] for row in rows if row["phase"] == "search"]
    assert f"{statistics.median(search[1:]):.1f} s an epoch of {2 * steps} passes" in FIGURES
    epochs = f"CIFAR-10: {len(search)} epochs of search, {len(rows) - len(search)} of training"
    training = [row["seconds"] for row in rows if row["phase"] == "retraining"]
    spent = sum(of[0] - statistics.median(of[1:]) for of in (search, training))
    minutes = f"{found['seconds'] / 60:.0f} minutes, of which {spent / 60:.0f} were compilation and measuring"
    assert f"| {epochs} | one H200, {minutes};" in FIGURES
    assert f"| {found['held_out_accuracy']:.2%} of the held-out images |" in FIGURES


def test_the_search_on_digits_is_the_records() -> None:
    path = ROOT / "benchmarks/results/amd-epyc-2-cores/2026-11-22-search-digits.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    share, images = f"{found['held_out_accuracy']:.2%}", found["held_out_images"]
    assert f"two CPU cores, {found['wall_s']:.0f} s | {share} of {images} held-out images |" in FIGURES
    seconds = found["at_the_end_of_make_demo"]["seconds"]
    assert f"\n{share} of {images} held-out images, {seconds:.0f} s of training\n```" in README


def test_the_page_of_conformance_is_the_records() -> None:
    found = importlib.util.spec_from_file_location("rendering", ROOT / "benchmarks" / "conformance.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    assert page == module.render(CONFORMANCE.relative_to(ROOT))
    cells = json.loads(CONFORMANCE.read_text(encoding="utf-8"))["cells"]
    assert {cell["outcome"] for cell in cells} == {"verified", "declined"}  # none is absent, none wrong


@pytest.mark.parametrize("record", [RECORD, DEPTHWISE], ids=lambda path: path.stem)
def test_no_row_of_a_record_is_wrong_or_below_the_floor(record: Path) -> None:
    verdicts = {row["verdict"] for row in _rows(record)}
    assert verdicts <= {"BASE", "FAST", "SAME", "SLOW", "AMBG", "DECLINED"}


def _gains(path: str) -> dict[str, float]:
    """Return the median gain of each model under the default policy, over the later half of the turns."""
    gains = {}
    record = ROOT / "benchmarks/results" / path
    for row in map(json.loads, record.read_text(encoding="utf-8").splitlines()):
        if row.get("policy", "auto") in ("auto", "online") and not row["name"].startswith("darts"):
            found = [(Turn(**p), Turn(**o)) for _, p, o in row["turns"]]
            later = [(p.seconds, o.seconds) for p, o in found[len(found) // 2 :] if not p.apart]
            gains[row["name"]] = statistics.median(p / o for p, o in later)
    return gains


def test_the_gains_of_classifiers_are_the_records() -> None:
    record = json.loads((ROOT / "benchmarks/results/nvidia-h200/2026-11-28-programs.json").read_text())
    times = {(row["name"], row["way"]): row["ms"] for row in record["rows"]}
    ways = ("accelerated", "cudagraphs")
    over = {way: {n: times[n, "plain"] / ms for (n, w), ms in times.items() if w == way} for way in ways}
    mine, torchs = over["accelerated"], over["cudagraphs"]
    named = sorted(gain for name, gain in mine.items() if ", " not in name)  # training on one GPU
    assert f"at {named[0]:.2f}x (ConvNeXt-tiny) to {named[-1]:.2f}x (T5) there" in PROSE
    gib = {(row["name"], row["way"]): row["gib"] for row in record["rows"] if row["gib"]}
    room = [most / gib[name, "plain"] for (name, way), most in gib.items() if way == "accelerated"]
    assert f"reserves {min(room):.1f} to {max(room):.1f} times the memory" in PROSE
    beside = {name: mine[name] / torchs[name] for name in torchs if ", " not in name}
    assert f"{statistics.geometric_mean(beside.values()):.2f} times as fast as torch's" in PROSE
    assert f"over [fourteen](docs/programs.md#figures), at worst {min(beside.values()):.2f} (GraphS" in PROSE
    assert len(beside) == 14
    page = (ROOT / "docs/programs.md").read_text(encoding="utf-8")
    assert all(f"{gain:.2f}x" in page for found in (mine, torchs) for gain in found.values())
    gains = _gains("nvidia-h100/2026-11-26-steps-replayed.json")
    page = (ROOT / "docs/performance/models.md").read_text(encoding="utf-8")
    low, high = gains["convnext_tiny"], gains["regnet_y_800mf"]
    assert f"from {low:.2f} (ConvNeXt-tiny) to {high:.2f} (RegNet)" in " ".join(page.split())


def test_the_page_of_modules_has_the_least_and_the_largest_gains() -> None:
    page = " ".join((ROOT / "docs/modules.md").read_text(encoding="utf-8").split())
    tables = (ROOT / "docs/performance/models.md").read_text(encoding="utf-8").split("\n## ")
    gains = {
        heading: sorted(float(gain) for gain in re.findall(r"\| ([\d.]+) \[[\d.]+, [\d.]+\] \|", rows))
        for heading, _, rows in (table.partition("\n") for table in tables)
    }
    half, single = gains["bfloat16 autocast, channels_last"], gains["float32"]
    assert len(half) == len(single) == 10, "five models by two policies"
    assert f"at {half[0]:.2f} (ConvNeXt-tiny) to {half[-1]:.2f} (MobileNetV3) times the speed" in page
    assert f"at {single[0]:.2f} to {single[-1]:.2f} in `float32`" in page


@pytest.mark.parametrize("name", ["26-steps-windows", "26-steps-windows-again", "27-steps-decided"])
def test_the_speeds_of_replayed_models_are_the_records(name: str) -> None:
    page = (ROOT / "docs/performance/models.md").read_text(encoding="utf-8")
    record = ROOT / f"benchmarks/results/nvidia-h200/2026-11-{name}.json"
    for row in map(json.loads, record.read_text(encoding="utf-8").splitlines()):
        found = [(at, Turn(**p), Turn(**o)) for at, p, o in row["turns"]]
        later = [(p.seconds, o.seconds) for _, p, o in found[len(found) // 2 :] if not p.apart]
        plain, ours = (1e3 * statistics.median(column) for column in zip(*later, strict=True))
        low, middle, high = statistics.quantiles([p / o for p, o in later], n=4)
        ratios = [ratio for _, ratio in windows(found)]
        worst = f"{min(ratios):.2f}" if ratios else "-"
        shown = f"{plain:.1f} ms | {ours:.1f} ms | {middle:.2f} [{low:.2f}, {high:.2f}] | {worst}"
        assert f" | `{FORMER.get(row['policy'], row['policy'])}` | {shown} | " in page
        assert min(ratios, default=1.0) >= 1, "the page says that none is slower than plain"


def test_the_program_on_a_cpu_has_its_kernels_when_the_page_says() -> None:
    record = ROOT / "benchmarks/results/intel-xeon-2-cores/2026-11-27-program-threads.txt"
    _, disk, empty, *_ = re.split(r"\n\n", record.read_text(encoding="utf-8"))
    page = " ".join((ROOT / "docs/learning.md").read_text(encoding="utf-8").split())
    quiet, busy = (
        max(map(float, re.findall(r"([\d.]+) s", text))) for text in re.findall("serve: .*;", disk)
    )
    assert f"{quiet} s where they lie on disk, and after {busy} s beside a busy process" in page
    first = re.findall(r"([\d.]+) it serves", empty)
    assert f"From an empty cache the first serves after {first[0]} s" in page
    gains = [float(g) for g in re.findall(r"\(\+([\d.]+)%\)", disk)]
    assert len(gains) == 2, "faster in each"


def test_the_gains_of_expressions_are_those_of_the_record() -> None:
    record = ROOT / "benchmarks/results/amd-epyc-2-cores/2026-11-26-pointwise.json"
    page = (ROOT / "docs" / "pointwise.md").read_text(encoding="utf-8")
    gains = defaultdict(list)
    for row in json.loads(record.read_text(encoding="utf-8"))["rows"]:
        gains[row["expression"]].append(f"{row['rows']['numba']['gain']:.2f}")
    assert len(gains) == 6
    for text, found in gains.items():
        assert f"| `{text}` | {' | '.join(found)} |" in page


def test_the_reductions_on_an_h200_are_those_of_the_record() -> None:
    rows = json.loads((RESULTS / "2026-11-26-reductions.json").read_text(encoding="utf-8"))["rows"]
    page = (ROOT / "docs/performance/sum.md").read_text(encoding="utf-8")
    shown = 0
    for row in (r for r in rows if r["sample"].startswith("attention_")):
        ours = row["kernels"]
        times = f"{row['torch_us']:.1f} | {ours['cuda']:.1f} | {ours['cupy']:.1f} | {row['gain']:.2f}"
        axes = row["sample"].removeprefix("attention_").replace("_", " ")
        line = f"| `{row['op']}` | {axes} | {times} | met |"
        shown += row["met"] and line in page
    table = page.partition("| operator | axes of")[2].partition("\n\n")[0]
    assert shown == len(table.splitlines()) - 2


def test_the_claims_of_others_are_those_of_the_record() -> None:
    record = json.loads((RESULTS / "2026-11-26-claims-one-allocation.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in record["rows"]}
    page = (ROOT / "docs/performance/claims.md").read_text(encoding="utf-8")
    places = {"small": "first with gradients", "medium": "second", "large": "third", "xlarge": "fourth"}
    for name, words in places.items():
        row = rows[f"softmax_sum {name} with gradients"]
        mark = "**" if row["met"] else ""
        figures = f"{row['claimed']} | {mark}{row['first']['ratio']:.2f}{mark} | {row['us']['ours']:.0f} | "
        assert f"| the {words} | {figures}{row['us']['stacked']:.0f} | {row['bound']['ratio']:.2f} |" in page
