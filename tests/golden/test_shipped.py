"""The choices of the shipped problems, and their explanations, are those of the golden files."""

import difflib

import pytest

from nxcore.offline import shipped
from tests.golden.shipped import golden, written

SHOWN = 40
"""The most lines of a difference that are shown."""


@pytest.mark.parametrize("path", shipped.files(), ids=lambda path: path.name)
def test_choices_and_explanations_are_golden(path):
    before = golden(path).read_text(encoding="utf-8").splitlines()
    moved = list(difflib.unified_diff(before, written(path).splitlines(), lineterm="", n=1))
    assert not moved, "\n".join([*moved[:SHOWN], f"{len(moved)} lines; see tests/golden/README.md"])
