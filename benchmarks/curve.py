"""Draw accuracies of a search's record over the minutes of its training.

python benchmarks/curve.py benchmarks/results/<device>/<date>-search-<data>.json docs/images/<name>.svg
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 300, 48, 16, 200, 44
LINES = {  # of a row's figures: the name, and a colour that can be told from the others in grey too
    ("search", "validation_accuracy"): ("validation, in the search", "#1b6ca8"),
    ("retraining", "accuracy"): ("training, of the found network", "#b0b0b0"),
    ("retraining", "held_out_accuracy"): ("held out, of the found network", "#c2410c"),
}


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """Return name -> colour and points: minutes of training, and percent."""
    minutes = [seconds / 60 for seconds in itertools.accumulate(row["seconds"] for row in rows)]
    return {
        name: (colour, [(m, 100 * r[key]) for m, r in zip(minutes, rows, strict=True) if r["phase"] == phase])
        for (phase, key), (name, colour) in LINES.items()
    }


def svg(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture; text is in the reader's own font."""
    found = curves(rows)
    most = max(x for _, points in found.values() for x, _ in points)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + wide * x / most, TOP + high * (1 - y / 100)

    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    parts = [f'<svg {head} font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for percent in range(0, 101, 20):
        _, y = at(0, percent)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + wide}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{percent}%</text>')
    for minute in range(0, int(most) + 1, 2):
        x, y = at(minute, 0)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle" fill="#555">{minute}</text>')
    parts.append(
        f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 6}" text-anchor="middle">minutes of training</text>'
    )
    for colour, points in found.values():
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for i, (name, (colour, points)) in enumerate(found.items()):
        y = TOP + 16 + 34 * i
        parts.append(
            f'<text x="{LEFT + wide + 12}" y="{y}" fill="{colour}">{name}</text>'
            f'<text x="{LEFT + wide + 12}" y="{y + 14}" fill="#555">{points[-1][1]:.1f}% at the end</text>'
        )
    return "".join(parts) + "</svg>\n"


if __name__ == "__main__":
    record = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(svg(record["rows"]), encoding="utf-8")
