"""``nxcore bench`` as a user types it."""

import json
from typing import get_args

import pytest
import torch
from typer.testing import CliRunner

from nxcore.bench import engine, head
from nxcore.bench.record import read
from nxcore.bench.row import Verdict
from nxcore.cli import app, scoreboard
from nxcore.cli.scoreboard import MEANING, by_size
from nxcore.errors import InvalidInputError
from nxcore.measure.ceilings import Ceilings
from nxcore.spec.kernel import no
from nxcore.spec.origin import installing
from tests.null import fakes
from tests.null.cli.commands import command

SMALL = ("bench", "add", "--fast", "--sample", "small", "--device", "cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch, as_default):
    """The default session, with one backend that is right and one that is wrong."""
    monkeypatch.setattr(engine, "FAST", fakes.QUICK)
    for module in (engine, head):  # the real ones take a second
        monkeypatch.setattr(module, "ceilings", lambda device: Ceilings(0.1, ((1, 1e13), (2, 1e13)), 1e14))
    kernels = {"ready": None, "zeros": lambda x, y, alpha, out: torch.add(x, y) * 0}
    found = fakes.session(*(fakes.backend(name, fakes.kernel("add", call)) for name, call in kernels.items()))
    as_default(found)


def run(*words: str, status: int = 0) -> str:
    return command(*words, status=status).stdout


def test_a_pipe_gets_a_line_a_row_and_the_summary():
    text = run(*SMALL, "--backend", "ready")
    for label in ("torch ", "ready", "torch again", "nxcore"):
        assert any(li.startswith("add ") and "small" in li and label in li for li in text.splitlines())
    assert "nxcore, called" in text
    assert "fingerprint" in text
    assert "zeros" not in text
    words = " ".join(text.split())
    assert "BASE: torch's own, which the others are compared with" in words
    assert "WRONG: " not in words, "it explains the verdicts that came"
    assert set(MEANING) == set(get_args(Verdict))


def test_a_wrong_kernel_is_status_1_and_a_row():
    found = json.loads(run(*SMALL, "--json", status=1))
    assert {r["label"]: r["verdict"] for r in found["rows"]}["zeros"] == "WRONG"
    assert {s["label"] for s in found["summary"]} >= {"torch", "ready", "zeros", "torch again", "nxcore"}
    assert found["head"]["device"]["type"] == "cpu"
    assert "WRONG add" in " ".join(run(*SMALL, status=1).split())


def test_a_size_class_has_its_minimum_and_its_aim():
    asked = (
        "bench",
        "add",
        "--fast",
        "--size",
        "small",
        "--size",
        "batch",
        "--device",
        "cpu",
        "--backend",
        "ready",
    )
    found = json.loads(run(*asked, "--json"))
    assert [(row["size"], row["minimum"], row["aim"]) for row in found["sizes"]] == [
        ("small", 0.15, 0.25),
        ("small", 0.15, 0.25),
        ("batch", 0.25, 0.45),
    ]
    assert {row["met"] for row in found["sizes"]} == {"missed"}, "of a bandwidth that no device has"
    assert found["speedups"]["cells"] == 3
    text = " ".join(run(*asked, "--summary").split())
    assert "3 cells: mean speed-up" in text
    assert text.count("missed") == 3
    results = {test["test"]: test["passed"] for test in found["tests"]}
    assert len(results) == 8
    assert (results["right"], results["small"], results["batch"], results["large"]) == (
        True,
        False,
        False,
        None,
    )
    assert text.count("passed") + text.count("failed") >= 5, "a line each"
    assert text.count("not run") == 3
    assert found["speedups"]["success"] == sum(map(bool, results.values())) / 5
    assert "fingerprint" not in text


def test_a_record_is_resumed_and_compared(tmp_path):
    path = tmp_path / "record.jsonl"
    asked = (*SMALL, "--backend", "ready", "--record", str(path))
    run(*asked)
    lines = read(path)
    run(*asked)
    assert read(path) == lines, "not measured again"
    assert "SLOW" not in run("bench", "--compare", str(path), str(path), "--margin", "9")
    slower = tmp_path / "slower.jsonl"
    for row in lines:
        if row.get("label") == "ready":
            row["ratio"] = [r / 100 for r in row["ratio"]]
    slower.write_text("".join(json.dumps(row) + "\n" for row in lines))
    text = run("bench", "--compare", str(path), str(slower), status=1)
    assert "SLOW" in text
    found = json.loads(run("bench", "--compare", str(path), str(slower), "--json", status=1))
    assert {c["label"]: c["verdict"] for c in found["cells"]}["ready"] == "SLOW"
    assert found["differences"] == []


def test_what_the_budget_has_no_time_for_is_a_row_and_not_recorded(tmp_path):
    path = tmp_path / "record.jsonl"
    found = json.loads(run(*SMALL, "--budget", "0", "--record", str(path), "--json"))
    assert [r["reason"] for r in found["rows"]] == ["not measured: the budget of 0 s was spent"]
    assert [line["record"] for line in read(path)] == ["head"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("bench", "ad"), "did you mean"),
        (("bench", "add", "--size", "smal"), "unknown size 'smal'"),
        (("bench", "add", "--backend", "read"), "did you mean 'ready'"),
        (("bench", "add", "--peer", "read"), "did you mean 'ready'"),
        (("bench", "add", "--backward"), "no operator and sample match these filters"),
        (("bench", "--compare", "a.jsonl", "b.jsonl"), "can't read the record a.jsonl"),
    ],
)
def test_a_slip_names_what_is_there(words, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, list(words))
    assert told in str(done.exception)


def test_no_figure_of_a_size_class_is_cut(capsys):
    row = {"op": "normed_leaky_relu", "size": "xlarge", "sample": "xlarge_67108864", "dtype": "float32"}
    times = {"device_us": 144110.0, "host_us": 144110.0, "share": 0.06, "minimum": 0.1, "aim": 0.25}
    rows = [row | times | {"label": "numba-cuda with spills", "met": "missed"}]
    by_size([*rows, *(r | {"op": "add", "dtype": "bfloat16"} for r in rows)])
    for line in capsys.readouterr().out.splitlines()[3:5]:
        assert "67108864" in line
        assert line.count("144.11 ms") == 2
        assert line.rstrip().endswith("missed")


def test_without_a_kernel_there_is_nothing_to_race(as_default):
    """Torch isn't raced with torch, for minutes, where no plugin is installed or none can run."""
    away = fakes.backend("away", fakes.kernel("add"), probe=lambda: no("no GPU"))
    for found in (fakes.session(), fakes.session(away)):
        as_default(found)
        done = CliRunner().invoke(app, ["bench", "add", "sum", "--fast"])
        assert done.exit_code == 1
        (line,) = done.stderr.splitlines()
        assert "nothing to race: no kernel but torch's can run here. nxcore doctor says why; or " in line
        assert line.endswith(installing("nxcore-numba"))
        assert done.stdout == ""


def test_torch_is_raced_alone_where_it_is_asked_for():
    text = run(*SMALL, "--backend", "torch")
    assert "torch again" in text
    assert "ready" not in text


def test_records_without_a_row_in_common_are_an_error(tmp_path):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    run(*SMALL, "--backend", "ready", "--record", str(old))
    lines = [json.loads(line) for line in old.read_text("utf-8").splitlines()]
    new.write_text("".join(json.dumps(line | {"op": "other"}) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(InvalidInputError, match="rows in common, got 2 and 2 without one"):
        run("bench", "--compare", str(old), str(new))


def test_a_file_that_is_no_record_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="line 1, is not a line of a record"):
        run(*SMALL, "--record", str(path))
    assert path.read_text(encoding="utf-8") == "my notes"


def test_the_row_of_noise_is_named_after_the_idiom_that_it_repeats():
    row = {"record": "again", "label": "torch again", "repeats": "torch-stacked", "verdict": "BASE"}
    assert scoreboard.named(row) == "torch-stacked again"
    assert scoreboard.named(row | {"repeats": ""}) == "torch again"
    found = json.loads(run(*SMALL, "--backend", "ready", "--json"))
    assert {r["label"]: r.get("repeats") for r in found["rows"]}["torch again"] == "torch"
