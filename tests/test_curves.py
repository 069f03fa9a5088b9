"""The curves of ``docs/search.md`` are drawn from the records as they are."""

import pytest

from docs import curves


@pytest.mark.parametrize("file", curves.drawn(), ids=lambda file: file.name)
def test_curves_are_those_of_the_records(file):
    assert file.read_text(encoding="utf-8") == curves.drawn()[file]


@pytest.mark.parametrize(
    ("low", "high", "want"), [(0, 50, [0, 10, 20, 30, 40, 50]), (1.63, 2.08, [1.6, 1.7, 1.8, 1.9, 2.0, 2.1])]
)
def test_an_axis_has_round_values(low, high, want):
    assert curves.steps(low, high) == want
