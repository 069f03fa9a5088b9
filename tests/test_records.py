"""Every record has a command that makes it anew, in a table of docs/records.md, with flags that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from nxcore.cli import app

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
COMMANDS = [code for row in ROWS for code in re.findall(r"`([^`]+)`", row[1]) if " " in code]


def recorded(row: list[str]) -> set[Path]:
    """Return the files that the first column of a row names."""
    found: set[Path] = set()
    for pattern in re.findall(r"`([^`]+)`", row[0]):
        files = set(RESULTS.glob(pattern if "/" in pattern else f"*/{pattern}"))
        assert files, f"no record is named {pattern}"
        found |= files
    return found


def known(command: str) -> str:
    """Return the text that names a command's flags: a script's source, or the help of nxcore's command."""
    if package := re.search(r"python -m benchmarks\.(\w+)", command):
        return (ROOT / "benchmarks" / package[1] / "__main__.py").read_text(encoding="utf-8")
    if script := re.search(r"benchmarks/(\w+\.py)", command):
        return (ROOT / "benchmarks" / script[1]).read_text(encoding="utf-8")
    words = command.partition("nxcore ")[2].split()
    group = typer.main.get_command(app)
    shown = group.commands[words[0]]
    return " ".join(f'"{flag}"' for param in shown.params for flag in param.opts)


def test_every_record_has_its_command():
    files = {path for path in RESULTS.rglob("*") if path.is_file()}
    left = files - {path for row in ROWS for path in recorded(row)}
    assert not left, "say in docs/records.md by which command: " + ", ".join(p.name for p in left)


@pytest.mark.parametrize("command", [c for c in COMMANDS if re.search(r"benchmarks/\w+\.py|nxcore [a-z]", c)])
def test_a_command_has_the_flags_that_the_table_gives_it(command):
    if command.startswith(("pytest", "ncu --csv")):
        command = command.removeprefix("ncu --csv")
        assert (ROOT / command.split()[1]).exists()
        flags = [] if command.startswith("pytest") else re.findall(r"--[a-z][a-z-]*", command)
    else:
        flags = re.findall(r"(?<=\s)--[a-z][a-z-]*", command.partition(" -m ")[2] or command)
    text = known(command) if flags else ""
    assert [flag for flag in flags if f'"{flag}"' not in text] == []
