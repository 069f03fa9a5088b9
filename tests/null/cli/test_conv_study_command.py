"""``nxcore bench conv-study`` as a user types it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from nxcore.bench.study import study
from nxcore.cli import app
from nxcore.errors import InvalidInputError, NxcoreError
from nxcore.report.study import page
from tests.report.study_record import record


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """A study that is over at once; what was asked for."""
    asked = []

    def run(device, wanted, advance):
        asked.append((str(device), wanted))
        advance("race", 1, 1)
        return record()

    monkeypatch.setattr(study, "run", run)
    return asked


def run(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["bench", "conv-study", *words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.stdout


def test_the_flags_are_what_is_measured(measured, tmp_path):
    flags = ("--input-size", "32", "--input-size", "64", "--kernel-size", "5", "--entrants", "jax", "--fast")
    run(*flags, "--device", "cpu", "--budget", "9", "-o", str(tmp_path))
    run("--no-first-calls", "--device", "cpu", "-o", str(tmp_path))
    assert measured == [
        ("cpu", study.Wanted((32, 64), (5,), ("jax",), True, 9.0)),
        ("cpu", study.Wanted(first_calls=False)),
    ]


def test_it_prints_the_table_and_the_summary_and_writes_three_files(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "html", lambda record: "<!doctype html>")
    text = run("--device", "cpu", "-o", str(tmp_path / "deep" / "folder"))
    assert "32, filter 3, padding 1" in text
    assert "nxcore is the fastest strict entrant in 1 of 2 shapes" in text
    written = {path.name for path in (tmp_path / "deep" / "folder").iterdir()}
    assert written == {"conv-study.json", "conv-study.md", "conv-study.html"}
    assert json.loads((tmp_path / "deep" / "folder" / "conv-study.json").read_text("utf-8")) == record()


def test_json_is_the_record_and_writes_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("--device", "cpu", "--json")) == record()
    assert list(tmp_path.iterdir()) == []


def test_without_plotly_the_other_files_are_written(tmp_path, monkeypatch):
    def html(_):
        raise NxcoreError("the HTML page needs plotly")

    monkeypatch.setattr(page, "html", html)
    done = CliRunner().invoke(app, ["bench", "conv-study", "--device", "cpu", "-o", str(tmp_path)])
    assert done.exit_code == 0
    assert "the HTML page needs plotly" in done.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md"}


def test_pages_of_a_record_need_no_measurement(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "html", lambda record: "")
    file = tmp_path / "a.json"
    file.write_text(json.dumps(record()), "utf-8")
    assert "Times as fast as im2col" in run("--from", str(file), "-o", str(tmp_path / "pages"))
    assert measured == []
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="can't read the record"):
        run("--from", str(tmp_path / "missing.json"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "pages"}, "and no folder for its pages"


def test_a_wrong_result_is_status_1(monkeypatch, tmp_path):
    found = record()
    found["cells"][0]["rows"][0]["wrong"] = True
    monkeypatch.setattr(study, "run", lambda *_: found)
    run("--device", "cpu", "--json", status=1)


def test_an_unknown_entrant_or_size_is_an_error(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="did you mean 'jax'"):
        run("--device", "cpu", "--entrants", "jaxx")
    with pytest.raises(InvalidInputError, match="input-size must be one of"):
        run("--device", "cpu", "--input-size", "33")


def test_the_study_explains_itself_and_bench_names_it():
    assert "--kernel-size" in run("--help")
    done = CliRunner().invoke(app, ["bench", "--help"])
    assert "nxcore bench conv-study" in done.stdout
    assert "--audit" in done.stdout


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_where_nothing_was_timed_no_page_is_written(monkeypatch, tmp_path, flags):
    empty = record()
    for cell in empty["cells"]:
        cell["rows"] = [{"label": row["label"], "reason": "the budget was spent"} for row in cell["rows"]]
    for cells in (empty["cells"], []):
        monkeypatch.setattr(study, "run", lambda *_, cells=cells: empty | {"cells": cells})
        done = CliRunner().invoke(
            app, ["bench", "conv-study", "--device", "cpu", "-o", str(tmp_path), *flags]
        )
        assert done.exit_code == 1
        assert "nothing was timed, so nothing is written" in done.stderr
        assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
