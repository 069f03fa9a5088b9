"""The reproductions of ``benchmarks/wall.py``: short, without nxcore, and judged by one rule."""

import ast
import inspect
from pathlib import Path

import torch

from benchmarks import wall
from tests.table import for_each

SOURCE = Path(wall.__file__).read_text()


@for_each("name", wall.CASES)
def test_a_case_has_under_ten_lines_and_no_nxcore(name):
    (case,) = ast.parse(inspect.getsource(wall.CASES[name])).body
    assert sum(len(ast.unparse(line).splitlines()) for line in case.body[1:]) < 10
    assert "nxcore" not in ast.unparse(case)


def test_nothing_of_nxcore_is_imported():
    assert len(wall.CASES) == 14
    names = [n for n in ast.walk(ast.parse(SOURCE)) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert not any("nxcore" in ast.unparse(n) for n in names)


def test_the_outcome_is_one_of_four(monkeypatch):
    def case(got, want):
        monkeypatch.setitem(wall.CASES, "one", lambda: (torch.tensor(got), torch.tensor(want)))
        return wall.held("one")

    assert case([1.0, 2.0], [1.0, 2.0]) == {"case": "one", "outcome": "right", "error": 0.0}
    assert case([1.0, 2.1], [1.0, 2.0])["outcome"] == "wrong"
    assert case([0.0], [1e-48])["outcome"] == "right"
    monkeypatch.setitem(wall.CASES, "one", lambda: (torch.ones(9).bfloat16(), torch.ones(9) * 1.003))
    assert wall.held("one")["outcome"] == "right"
    assert case([1.0, float("nan")], [1.0, 2.0])["error"] == float("inf")
    monkeypatch.setitem(wall.CASES, "one", lambda: int("x"))
    assert wall.held("one")["outcome"] == "raised"
    monkeypatch.setitem(wall.CASES, "one", lambda: __import__("no_such_library"))
    assert wall.held("one")["outcome"] == "absent"
