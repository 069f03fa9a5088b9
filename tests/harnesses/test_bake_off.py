"""The table of ``docs/harnesses.md`` is that of ``python -m tests.harnesses``."""

import re
from pathlib import Path

import pytest

from tests.harnesses import first, right, second
from tests.harnesses.__main__ import judged, table
from tests.harnesses.rules import RULES, kernels

PAGE = Path(__file__).parents[2] / "docs" / "harnesses.md"


def test_there_are_60_wrong_kernels_and_20_right_ones_of_named_faults():
    assert [len([*kernels(module)]) for module in (first, second, right)] == [36, 24, 20]
    assert all(kernel.__doc__ for module in (first, second, right) for _, kernel, _ in kernels(module))


def test_the_page_names_every_rule():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert all(any(row.startswith(f"| {rule} |") for row in rows) for rule in RULES)


def rows(text):
    """Return rule -> the counts of its row."""
    found = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \| \d+% \| (\d+) \|$", text, re.MULTILINE)
    return {rule: tuple(map(int, counts)) for rule, *counts in found}


@pytest.mark.slow
def test_the_page_has_the_table_of_the_bake_off():
    """Ours to the kernel; of the others some count kernels that read memory as it happens to be."""
    page, now = rows(PAGE.read_text()), rows(table(judged()))
    assert page.keys() == now.keys() == RULES.keys()
    ours = next(rule for rule in RULES if "nxcore" in rule)
    assert page[ours] == now[ours] == (36, 24, 0)
    for rule, counts in page.items():
        assert all(abs(a - b) <= 2 for a, b in zip(counts, now[rule], strict=True)), rule
