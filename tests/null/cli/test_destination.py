"""Files and folders that a command writes: one error line at once, and no result lost at the end."""

import os

import pytest
from typer.testing import CliRunner

from nxcore.cli import app, render
from nxcore.errors import InvalidInputError
from tests.null import fakes
from tests.stand_ins import stand_in

os_has = stand_in(os)

NOWHERE = "/proc/self/nowhere/x.md"
WRITING = (
    ("demo", "--json", NOWHERE),
    ("wisdom", "export", NOWHERE),
    ("wisdom", "lock", NOWHERE),
    ("wisdom", "merge", NOWHERE, "--output", NOWHERE),
    ("bench", "--record", NOWHERE),
    ("report", NOWHERE, "--output", NOWHERE),
)


@pytest.mark.parametrize("words", WRITING, ids=" ".join)
def test_a_command_says_at_once_that_it_cannot_write(words, as_default):
    as_default(fakes.session())
    with pytest.raises(InvalidInputError, match=r"^(FILE|--\w+) must be a f.*got /proc/self/nowhere/x\.md: "):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_file_gets_its_folder_and_is_not_made(tmp_path):
    path = tmp_path / "new" / "record.jsonl"
    assert render.file(path, "--record") == path
    assert path.parent.is_dir()
    assert not path.exists()


def test_a_folder_is_no_file_and_a_file_no_folder(tmp_path):
    (tmp_path / "text").write_text("x")
    with pytest.raises(InvalidInputError, match=r"--json must be a file .*: it is a folder"):
        render.file(tmp_path, "--json")
    with pytest.raises(InvalidInputError, match=r"--output must be a folder .*: File exists"):
        render.folder(tmp_path / "text", "--output")


def test_permissions_count(tmp_path, os_has):
    (tmp_path / "text").write_text("x")
    os_has(access=lambda path, mode: path == tmp_path)
    with pytest.raises(InvalidInputError, match="no permission to write it"):
        render.file(tmp_path / "text", "--json")
    os_has(access=lambda path, mode: False)
    with pytest.raises(InvalidInputError, match="no permission to write there"):
        render.file(tmp_path / "other", "--json")
