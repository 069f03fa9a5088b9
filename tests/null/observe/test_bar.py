"""Progress: a bar in a terminal, lines elsewhere if they are wanted."""

import io
import sys

from nxcore.observe import bar
from tests.stand_ins import stand_in

sys_has = stand_in(sys)


def test_elsewhere_there_are_lines_or_nothing(capsys):
    with bar.shown("compiles", lines=True) as advance:
        advance("numba of add", 1, 2)
    assert capsys.readouterr().err == "compiled 1/2: numba of add\n"
    with bar.shown("compiles") as advance:
        advance("numba of add", 1, 2)
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_is_for_a_terminal_alone(sys_has, capsys):
    bar.told("compiles")
    assert capsys.readouterr().err == ""
    sys_has(stderr=(terminal := Terminal()))
    bar.told("compiles")
    assert terminal.getvalue() == "compiles\n"


def test_a_terminal_shows_a_bar_that_leaves_nothing_behind(monkeypatch, sys_has):
    sys_has(stderr=(terminal := Terminal()))
    monkeypatch.setenv("TERM", "xterm")
    with bar.shown("compiles") as advance:
        advance("numba of add", 1, 2)
    assert "numba of add" in terminal.getvalue()
