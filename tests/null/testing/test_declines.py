"""The list of what kernels refuse: read as it was written, and what is wrong with it is named."""

import pytest

from nxcore.errors import InvalidInputError
from nxcore.testing.declines import Declines, Place


def test_a_list_of_refusals_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "declines.txt"
    found = Declines.read(path)
    found.replace(
        [
            (Place("cpu", "add", "a", "number"), "float32", "needs a tensor, at 0x7f12"),
            (Place("cpu", "add", "a", "number"), "float16", "needs a tensor, at 0x8f12"),
            (Place("cpu", "add", "a", "nan"), "float32", None),
            (Place("cpu", "add", "a", "inf"), "float16", "needs: a tensor"),
            (Place("cpu", "add", "a", "inf"), "float32", None),
            (Place("cuda", "sum", "b", "repeats_itself"), "float32", "doesn't claim it"),
        ]
    )
    path.write_text(str(found))
    again = Declines.read(path)
    assert again == found
    assert "    inf[float16]: needs: a tensor\n    number: needs a tensor, at 0x...\n" in path.read_text()
    number, inf = (Place("cpu", "add", "a", name) for name in ("number", "inf"))
    assert again.verdict(number, "bfloat16", "needs a tensor, at 0x1") == ""
    assert again.verdict(number, "float32", "another").endswith("but refused for 'another'")
    assert again.verdict(number, "float32", None).endswith("but it was taken")
    assert again.verdict(inf, "float32", "no").startswith("a refusal that isn't listed")
    assert again.verdict(inf, "float32", None) == ""
    again.replace([(number, "float32", None)])
    assert number not in again.reasons
    assert inf in again.reasons


def test_a_part_that_is_not_there_is_not_reviewed():
    assert Declines().verdict(Place("cuda", "add", "a", "number"), "float32", "whatever") == ""


@pytest.mark.parametrize("line", ["    number, needs a tensor", "    number two: needs a tensor"])
def test_a_line_that_is_not_one_is_named(tmp_path, line):
    path = tmp_path / "declines.txt"
    path.write_text(f"[cpu]\nadd\n  a\n{line}\n")
    with pytest.raises(InvalidInputError, match="line 4: needs"):
        Declines.read(path)
