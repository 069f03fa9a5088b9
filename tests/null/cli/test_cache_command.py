"""``nxcore cache``: what is on disk, and its removal."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nxcore.cli import app, machine
from nxcore.errors import InvalidInputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NXCORE_CACHE", str(tmp_path))
    (tmp_path / "v1" / "verdicts").mkdir(parents=True)
    (tmp_path / "v1" / "verdicts" / "one.json").write_text("{}")
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "kernel.nbc").write_bytes(bytes(1000))
    (tmp_path / "mine.txt").write_text("not nxcore's")
    return tmp_path


def test_show_tells_each_part_with_its_files_and_bytes(folder: Path) -> None:
    rows = machine.parts()
    assert [(r["part"], r["files"], r["bytes"]) for r in rows] == [("v1", 1, 2), ("numba", 1, 1000)]
    assert rows[1]["folder"] == str(folder / "numba")
    done = CliRunner().invoke(app, ["cache", "show", "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, rows)
    text = CliRunner().invoke(app, ["cache", "show"]).stdout
    assert "kernels that Numba compiled" in text
    assert "nxcore cache clear" in text


def test_clear_removes_one_part_or_all_and_nothing_that_is_not_nxcores(folder: Path) -> None:
    done = CliRunner().invoke(app, ["cache", "clear", "numba"])
    assert (done.exit_code, done.stdout) == (0, "removed 1 files, 0.0 MB\n")
    assert not (folder / "numba").exists()
    assert (folder / "v1").exists()
    done = CliRunner().invoke(app, ["cache", "clear", "--json"])
    assert [row["part"] for row in json.loads(done.stdout)] == ["v1"]
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert "nothing is on disk" in CliRunner().invoke(app, ["cache", "show"]).stdout


def test_a_part_that_is_a_link_is_removed_and_not_what_it_leads_to(folder: Path, tmp_path: Path) -> None:
    (folder / "cuda").symlink_to(tmp_path / "v1")
    machine.remove("cuda")
    assert (tmp_path / "v1" / "verdicts" / "one.json").exists()
    assert not (folder / "cuda").is_symlink()


def test_no_such_part_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="part must be one of v1, numba, cuda, got 'nunba'"):
        machine.remove("nunba")
    assert (folder / "numba").exists()


def test_a_cache_in_memory_has_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NXCORE_CACHE", "0")
    assert machine.parts() == []
