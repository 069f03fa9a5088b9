"""Draws the curves of ``search.md`` from their records: run it where a record has changed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
IMAGES, RESULTS = ROOT / "docs" / "images", ROOT / "benchmarks" / "results"
SEARCH = RESULTS / "nvidia-h200" / "2026-11-26-search-cifar10-50.json"
RETRAINED = RESULTS / "nvidia-h200" / "2026-11-26-retrain-36.json"

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 300, 60, 170, 16, 46
COLOURS = "#1f5fbf", "#b35900", "#1a7f4b", "#7a3fa0"
TICKS = 5

Points = Sequence[tuple[float, float]]


class Chart(NamedTuple):
    """Curves over one axis."""

    across: str
    up: str
    curves: Mapping[str, Points]


def steps(low: float, high: float) -> list[float]:
    """Return round values that cover a range."""
    least = (high - low) / TICKS
    step = next(s * 10.0**e for e in range(-4, 6) for s in (1, 2, 5) if s * 10.0**e >= least)
    first, last = int(low // step), int(-(-high // step))
    return [round(i * step, 6) for i in range(first, last + 1)]


def svg(charts: Sequence[Chart]) -> str:
    """Return charts below each other as one SVG."""
    picture = ET.Element("svg", xmlns="http://www.w3.org/2000/svg")
    picture.set("font-family", "sans-serif")
    picture.set("font-size", "13")
    ET.SubElement(picture, "rect", width="100%", height="100%", fill="white")
    for place, chart in enumerate(charts):
        _drawn(picture, chart, place * HEIGHT)
    picture.set("viewBox", f"0 0 {WIDTH} {HEIGHT * len(charts)}")
    picture.set("width", str(WIDTH))
    picture.set("height", str(HEIGHT * len(charts)))
    return ET.tostring(picture, encoding="unicode") + "\n"


def _drawn(picture: ET.Element, chart: Chart, above: int) -> None:
    """Draw a chart whose upper end is ``above``."""
    points = list(itertools.chain.from_iterable(chart.curves.values()))
    columns = steps(0.0, max(x for x, _ in points))
    rows = steps(min(y for _, y in points), max(y for _, y in points))
    right, low = WIDTH - RIGHT, above + HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (right - LEFT) * (x - columns[0]) / (columns[-1] - columns[0])
        return across, low - (low - above - TOP) * (y - rows[0]) / (rows[-1] - rows[0])

    for value in rows:
        _line(picture, [at(columns[0], value), at(columns[-1], value)], "#dddddd", 1)
        _text(picture, LEFT - 8, at(0.0, value)[1] + 4, f"{value:g}", "end")
    for value in columns:
        _text(picture, at(value, rows[0])[0], low + 18, f"{value:g}", "middle")
    _text(picture, (LEFT + right) / 2, low + 36, chart.across, "middle")
    _text(picture, right + 14, above + TOP + 10, chart.up, "start").set("font-weight", "bold")
    for nth, ((name, curve), colour) in enumerate(zip(chart.curves.items(), COLOURS, strict=False)):
        _line(picture, [at(x, y) for x, y in curve], colour, 2)
        _text(picture, right + 14, above + TOP + 30 + 18 * nth, name, "start").set("fill", colour)


def _line(picture: ET.Element, points: Points, colour: str, width: int) -> None:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    how = {"points": path, "fill": "none", "stroke": colour, "stroke-width": str(width)}
    ET.SubElement(picture, "polyline", how)


def _text(picture: ET.Element, x: float, y: float, text: str, anchor: str) -> ET.Element:
    element = ET.SubElement(picture, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor})
    element.text = text
    return element


def searched(record: Mapping[str, Any]) -> list[Chart]:
    """Return accuracy and entropy by epoch of a search, and the skip connections of its genotype."""
    rows = record["rows"]

    def skips(kind: str) -> Points:
        return [(r["epoch"], [g[0] for g in r["genotype"][kind]].count("skip_connect")) for r in rows]

    by = {"weights' images": "accuracy", "architecture's images": "validation_accuracy"}
    accuracy = {name: [(r["epoch"], 100 * r[key]) for r in rows] for name, key in by.items()}
    return [
        Chart("epoch", "correct, %", accuracy),
        Chart("epoch", "entropy, nats", {"architecture": [(r["epoch"], r["entropy"]) for r in rows]}),
        Chart("epoch", "skip connections", {"normal cell": skips("normal"), "reduction": skips("reduce")}),
    ]


def retrained(record: Mapping[str, Any]) -> list[Chart]:
    """Return the correct images by seconds of training, of both genotypes: held out, and in training."""

    def curves(key: str) -> dict[str, Points]:
        found: dict[str, Points] = {}
        for name, run in record.items():
            ends = itertools.accumulate(row["seconds"] for row in run["epochs"])
            pairs = zip(ends, run["epochs"], strict=True)
            found[name] = [(end, 100 * row[key]) for end, row in pairs if key in row]
        return found

    across = "seconds of training"
    return [
        Chart(across, "held out, correct, %", curves("held_out_accuracy")),
        Chart(across, "in training, correct, %", curves("accuracy")),
    ]


def drawn() -> dict[Path, str]:
    """Return the text of each picture."""
    read = {path: json.loads(path.read_text(encoding="utf-8")) for path in (SEARCH, RETRAINED)}
    return {
        IMAGES / "search-cifar10.svg": svg(searched(read[SEARCH])),
        IMAGES / "retrain-cifar10.svg": svg(retrained(read[RETRAINED])),
    }


if __name__ == "__main__":
    for file, text in drawn().items():
        file.write_text(text, encoding="utf-8")
