"""Budgets may only fall, and what they count is what a change adds."""

import ast

import pytest

from tests import budgets
from tests.budgets import BUDGETS, Budget


@pytest.mark.parametrize("budget", BUDGETS, ids=[budget.name for budget in BUDGETS])
def test_a_budget_is_kept(budget: Budget) -> None:
    now = budget.count()
    assert now <= budget.most, f"{budget.name}: {now:,}; take from elsewhere what the change adds"


def test_numbers_are_counted_where_they_are_fixed() -> None:
    tree = ast.parse(
        "A: float = 2.5\nB = (3, 4)\nC = 1\nD = True\n"
        "class E:\n    f: int = 5\n"
        "def g(h=6, *, i=0.5):\n    j = 7\n    return h + 8\n"
    )
    assert budgets.numbers(tree) == 6


def test_calls_are_counted_by_their_whole_name() -> None:
    tree = ast.parse("monkeypatch.setattr(a, 'b', 1)\nother.setattr(a)\n# monkeypatch.setattr(c)\n")
    assert budgets.calls(tree, "monkeypatch.setattr") == 1


def test_the_table_names_what_is_too_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        vars(budgets), "BUDGETS", (Budget("things", 3, 2, lambda: 3), Budget("more", 3, 2, lambda: 4))
    )
    assert budgets.main() == 1
    head, things, more = capsys.readouterr().out.splitlines()
    assert head.split() == ["now", "most", "target"]
    assert things.split() == ["things", "3", "3", "2"]
    assert more.split() == ["more", "4", "3", "2", "too", "many"]
