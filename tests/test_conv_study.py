"""``python -m benchmarks.conv_study``: its processes, its record and its page."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.conv_study import __main__ as command
from benchmarks.conv_study import blocks, facts, study, worker
from benchmarks.conv_study.entrants import ENTRANTS, Bound, Entrant
from benchmarks.conv_study.shapes import Shape, few, shapes
from nxcore.spec.kernel import no

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*/*-conv-study.json"))
CPU = torch.device("cpu")
QUICK = blocks.Effort(blocks=6, block_s=1e-4)
SHAPE = Shape(32, 5, 1)
IM2COL, CONV = (e for e in ENTRANTS if e.label in ("im2col", "torch-conv2d"))

CANNED = """
import json, os, sys
job = json.loads(sys.argv[1])
say = lambda **line: print(json.dumps(line), flush=True)
if job["what"] == "first":
    mark = os.environ["NXCORE_CACHE"] + job["entrants"][0]
    warm = os.path.exists(mark)
    open(mark, "w").close()
    say(toolkit="torch", start_s=1.0)
    for label in job["entrants"]:
        say(label=label, shape=job["shapes"][0], first_s=0.1 if warm else 2.0)
else:
    say(label="jax", absent="jax is not installed")
    for shape in job["shapes"]:
        row = dict(error=1e-7, precision="ieee32", ratio=[1, 1, 1])
        rows = [dict(row, label="im2col", total_us=4.0, blocks_us=[4.0]),
                dict(row, label="nxcore", total_us=2.0, blocks_us=[2.0])]
        say(cell=dict(shape=shape, name=str(shape), same=True, noise=0.01, margin=0.02, rows=rows))
"""


def canned(more: str = "") -> dict:
    """Return the record of a run whose processes run this text."""
    which = [e for e in ENTRANTS if e.label in ("im2col", "jax", "nxcore")]
    return study.run(CPU, which, [SHAPE, Shape(64, 3, 1)], worker=(sys.executable, "-c", CANNED + more))


def test_the_lines_of_all_processes_become_one_record_and_its_page():
    record = canned()
    assert [cell["shape"] for cell in record["cells"]] == [[32, 5, 1], [64, 3, 1]]
    assert [(r["cold_s"], r["warm_s"]) for r in record["cells"][0]["rows"]] == [(2.0, 0.1)] * 2
    assert record["starts"] == {f"{t} {s}": 1.0 for t in ("nxcore", "jax", "torch") for s in ("cold", "warm")}
    assert record["notes"] == []
    page = facts.markdown(json.loads(json.dumps(record, allow_nan=False)))
    assert "By a call nxcore is first in 2 of 2 shapes; the fastest other strict entrant takes 2.00" in page
    assert "- jax is absent: jax is not installed." in page
    assert "| nxcore | 2.000 s | 0.100 s | 1.0e-07 |" in page


def test_a_process_that_crashes_or_takes_too_long_is_a_note():
    record = canned("\nif job['what'] == 'first': sys.exit('no memory left')")
    assert record["notes"][0] == "nxcore cold: its process ended with status 1: no memory left"
    assert len(record["cells"]) == 2
    record = canned("\nif job['what'] == 'race': sys.exit('broken')")
    assert record["notes"] == [], "its lines came before"
    waits = (sys.executable, "-c", "import time; time.sleep(60)")
    record = study.run(CPU, [IM2COL], [SHAPE], budget_s=0.5, worker=waits)
    spent = "not measured: the budget was spent"
    assert record["notes"] == [
        f"torch cold: {spent}",
        f"torch warm: {spent}",
        f"not raced: 32 x 32, filter 5, padding 1: {spent}",
    ]


def changed(label: str, change, **more) -> Entrant:
    """Return an entrant whose result is torch's, changed."""

    def bind(x, weight, padding):
        return Bound(lambda: change(torch.nn.functional.conv2d(x, weight, padding=padding)))

    return replace(CONV, label=label, bind=bind, **more)


def raced(*which: Entrant) -> dict[str, dict]:
    (line,) = worker.race(CPU, [IM2COL, *which], [SHAPE], QUICK, time.time() + 60)
    return {row["label"]: row for row in line["cell"]["rows"]}


def test_a_wrong_result_has_no_time_and_one_that_raises_leaves_the_others():
    """An error of 1e-1 is no success, one of TF32 none of a strict entrant."""

    def fail(_):
        raise ValueError("no such thing")

    tf32 = changed("rounded", lambda y: y * 1.0005)
    rows = raced(
        CONV,
        tf32,
        changed("empty", lambda y: y[:, :1]),
        replace(tf32, label="tf32", promised="tf32"),
        changed("broken", fail),
    )
    assert rows["rounded"]["reason"] == "wrong: its error is 5.0e-04, and ieee32 was promised"
    assert rows["empty"]["error"] is None
    assert rows["empty"]["wrong"]
    assert rows["broken"]["reason"].startswith("raised ValueError: no such thing")
    assert {label for label, row in rows.items() if "total_us" in row} == {"im2col", "torch-conv2d", "tf32"}
    assert rows["im2col"]["ratio"] == [1.0, 1.0, 1.0]


def test_an_absent_entrant_says_why_and_no_shape_begins_after_the_end():
    away = replace(CONV, label="away", able=lambda _: no("jax is not installed", hint="pip install jax"))
    lines = list(worker.race(CPU, [IM2COL, away], [SHAPE], QUICK, time.time() - 1))
    assert lines == [{"label": "away", "absent": "jax is not installed; pip install jax"}]
    start, first = worker.first_calls(CPU, [CONV], [SHAPE], time.time() - 5)
    assert start["start_s"] >= 5
    assert (first["label"], first["shape"]) == ("torch-conv2d", [32, 5, 1])
    assert list(worker.first_calls(CPU, [away], [SHAPE], time.time())) == lines


def test_host_time_ends_when_a_call_returns_and_total_time_with_its_result():
    late = Bound(lambda: None, wait=lambda _: time.sleep(2e-3))
    found = blocks.timed({"late": late}, CPU, blocks.Effort(3, 1e-4))["late"]
    assert min(found.total_us) > 1900
    assert max(found.host_us) < 1000


def test_an_audit_of_one_call_is_no_part_of_every_call():
    """Two runs of a reference of 11 us, and what compares them, would make 8.7 us of 5.5 us."""
    assert blocks.of_a_call([(20, 110.0), (40, 80.0), (2, 21.6), (3, 42.4), (0, 0.0)], 20) == 9.5


def test_each_side_with_each_filter_and_both_paddings():
    assert len(set(shapes())) == 15  # of filter 3 both paddings are one
    assert [shape.key for shape in few()] == [[32, 3, 1], [64, 5, 2], [128, 7, 3]]


def test_a_noisy_shape_and_a_less_exact_entrant_have_no_place():
    def row(label, us, precision="ieee32"):
        return {"label": label, "total_us": us, "precision": precision}

    rows = [row("nxcore", 2.0), row("torch-conv2d", 3.0), row("cudnn-tf32", 1.0, "tf32")]
    cells = [{"shape": [side, 3, 1], "noise": noise, "rows": rows} for side, noise in ((32, 0.01), (64, 0.3))]
    assert facts.leads({"cells": cells}) == {(32, 3, 1): ("torch-conv2d", 1.5)}


def test_the_documentation_says_what_the_records_say(capsys):
    assert {path.parent.name for path in RESULTS} == set(command.MACHINES)
    assert command.main(["--beside"]) == 0
    table = capsys.readouterr().out
    table = "\n".join(table.splitlines()[:11])  # the head, and the shapes whose padding keeps the size
    assert table in (ROOT / "docs" / "performance" / "conv2d.md").read_text(encoding="utf-8")
    for path in RESULTS:
        assert command.main(["--from", str(path)]) == 0
        assert "By a call nxcore is first in" in capsys.readouterr().out


@pytest.mark.slow
def test_a_real_run_measures_every_entrant_that_is_here(tmp_path, monkeypatch, capsys):
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    file = tmp_path / "record.json"
    words = ["--input-size", "32", "--kernel-size", "3", "--device", "cpu", "--budget", "550"]
    words += ["--output", str(file)]
    assert command.main([*words, "--entrants", "im2col"]) == 0
    assert all(row["cold_s"] > 0 and row["warm_s"] > 0 for row in facts.read(file)["cells"][0]["rows"])
    assert command.main([*words, "--no-first-calls"]) == 0
    record = facts.read(file)
    assert record["notes"] == ["first calls were not requested"]
    absent = {e["label"] for e in record["entrants"] if e["absent"]}
    assert {*facts.labels(record), *absent} == {entrant.label for entrant in ENTRANTS}
    assert "cudnn-tf32" in absent
    assert "nxcore is first in" in capsys.readouterr().out
