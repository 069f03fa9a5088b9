"""Draw the first cells of a demo's JSON as in the terminal.

python benchmarks/picture.py benchmarks/results/<device>/<date>-demo.json docs/images/demo.svg
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from nxcore.bench.demo import Cell, Row
from nxcore.cli.demo_tables import cell_table

CELLS = 2


def main(source: Path, target: Path) -> None:
    """Read a demo's JSON and write an SVG without external fonts."""
    report = json.loads(source.read_text(encoding="utf-8"))
    console = Console(record=True, width=98, file=io.StringIO(), force_terminal=True, highlight=False)
    device, versions = report["head"]["device"], report["head"]["versions"]
    console.print(f"[bold]{escape(device['name'])}[/bold], torch {versions['torch']}")
    for data in report["cells"][:CELLS]:
        cell = _cell(data)
        console.print()
        console.print(cell_table(cell))
        console.print(f"chosen: [bold]{escape(cell.chosen)}[/bold] ({escape(cell.reason)})", soft_wrap=True)
    svg = console.export_svg(title="nxcore demo")
    target.write_text(re.sub(r"@font-face\s*{.*?}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")


def _cell(data: dict[str, Any]) -> Cell:
    return Cell(**data | {"rows": tuple(Row(**row) for row in data["rows"])})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
