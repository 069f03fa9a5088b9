"""Tables fit the terminal, and a pipe gets whole words."""

import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console

from nxcore.cli import operators, tables
from nxcore.cli import render as terminal
from tests.table import for_each

NAME = "a_name_that_is_about_as_long_as_the_longest"
ROWS = [
    (NAME, "cuda, numba-cuda", "0.51", "Return a sum of products."),
    ("add", "", "12.00", "Return x + y."),
]


def made():
    table = terminal.table("operator", "kernels", "median", "what it does", right=("median",))
    for row in ROWS:
        table.add_row(*row)
    return table


@pytest.fixture
def printed(monkeypatch, capsys):
    """Print a table as on a screen of a width, or in a pipe; return its lines."""

    def text(show, width, *, live=True, table=None):
        screen = Console(width=width if live else terminal.WIDTH, force_terminal=live, color_system=None)
        monkeypatch.setattr(terminal, "console", lambda: screen)
        show(table or made())
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return text


@for_each("show", [terminal.show, terminal.show_whole], ids=["words", "lines"])
@for_each("width", [50, 60, 80, 100])
def test_no_line_is_wider_than_the_terminal(printed, show, width):
    lines = printed(show, width)
    assert max(map(len, lines)) <= width
    assert any(NAME in line for line in lines)


@pytest.mark.parametrize("width", [60, 76, 80, 90, 100])
def test_no_word_is_broken(printed, width):
    words = " ".join(printed(terminal.show, width)).split()
    for row in ROWS:
        for cell in row:
            assert set(cell.split()) <= set(words)


def test_a_narrow_terminal_gets_a_block_for_each_row(printed):
    assert printed(terminal.show, 60) == [
        NAME,
        "  kernels       cuda, numba-cuda",
        "  median        0.51",
        "  what it does  Return a sum of products.",
        "add",
        "  median        12.00",
        "  what it does  Return x + y.",
    ]


def test_a_block_begins_with_the_first_column_that_has_a_header(printed):
    table = terminal.table("", "check", "found", title="the [title]")
    table.add_row("ok", "x" * 30, "y" * 30)
    assert printed(terminal.show, 40, table=table) == [
        "the [title]",
        "ok " + "x" * 30,
        "  found  " + "y" * 30,
    ]


def test_a_pipe_gets_one_line_a_row_of_figures(printed):
    table = terminal.table("a", "b")
    table.add_row("x " * 60 + "end", "y " * 60 + "end")
    lines = printed(terminal.show_whole, 0, live=False, table=table)
    assert len([line for line in lines if "x x" in line and "y y" in line]) == 1


@for_each("width", [60, 80, 120])
def test_the_operators_fit_a_screen(printed, width):
    lines = printed(lambda _: tables.ops(operators.rows()), width)
    assert "add" in {line.split()[0] for line in lines if line}
    assert max(len(line) for line in lines if not line.startswith("every operator")) <= width


def test_the_operators_fit_a_terminal(tmp_path):
    reading, writing = pty.openpty()
    environment = os.environ | {"COLUMNS": "60", "TERM": "xterm", "NXCORE_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "nxcore", "ops"]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.DEVNULL, env=environment) as child:
        os.close(writing)
        text = b""
        while True:
            try:
                found = os.read(reading, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not found:
                break
            text += found
    os.close(reading)
    assert child.returncode == 0
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).splitlines()]
    assert "add" in {line.split()[0] for line in lines if line}
    assert max(len(line) for line in lines if not line.startswith("every operator")) <= 60


@pytest.mark.parametrize(
    ("columns", "width"), [("60", 60), ("140", 140), ("", 100), ("0", 100), ("wide", 100)]
)
def test_a_pipe_is_as_wide_as_columns_ask(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal.console().width == width
    monkeypatch.delenv("COLUMNS")
    assert terminal.console().width == terminal.WIDTH


def test_a_narrow_pipe_gets_a_block_a_row_and_no_longer_line(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    table = terminal.table("operator", "kernel", "what it does")
    table.add_row(
        "an_operator_of_a_name", "a_kernel_of_a_name_too", "something that takes a few words to say"
    )
    terminal.show(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "an_operator_of_a_name"
    assert max(map(len, lines)) <= 40
