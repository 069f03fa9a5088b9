"""The study's parent: it runs processes, joins their lines, and keeps to its budget."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest
import torch

from nxcore import session as sessions
from nxcore.bench.study import study
from nxcore.bench.study.study import Wanted
from nxcore.report.study import facts
from tests.null import fakes

CPU = torch.device("cpu")

CANNED = """
import json, sys
job = json.loads(sys.argv[1])
say = lambda **line: print(json.dumps(line), flush=True)
if job["what"] == "first":
    warm = os.path.exists(os.environ["NXCORE_CACHE"] + job["entrants"][0])
    open(os.environ["NXCORE_CACHE"] + job["entrants"][0], "w").close()
    say(toolkit="torch", start_s=1.0)
    for label in job["entrants"]:
        for shape in job["shapes"]:
            say(label=label, shape=shape, first_s=0.1 if warm else 2.0)
else:
    say(label="jax", absent="jax is not installed")
    for shape in job["shapes"]:
        row = dict(error=1e-7, precision="ieee32", total_us=2.0, host_us=1.0, device_us=2.0, blocks_us=[2.0],
                   ratio=[1, 1, 1], kernel="", memory_bytes=5)
        rows = [dict(row, label=label) for label in job["entrants"] if label != "jax"]
        say(cell=dict(shape=shape, name=str(shape), same=True, noise=0.01, margin=0.02, rows=rows))
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    monkeypatch.setattr(sessions, "_default", fakes.session())


@pytest.fixture
def worker(monkeypatch):
    """Replace the processes' program."""

    def put(text: str) -> None:
        monkeypatch.setattr(study, "WORKER", (sys.executable, "-c", "import os\n" + text))

    return put


def run(*labels: str, **more) -> dict:
    return study.run(CPU, Wanted((32,), (3,), labels, **more))


def test_the_lines_of_all_processes_become_one_record(worker):
    worker(CANNED)
    said = []
    record = study.run(CPU, Wanted((32,), (3, 5), ("torch-conv2d", "jax")), lambda *step: said.append(step))
    assert record["record"] == "conv-study"
    assert [c["shape"] for c in record["cells"]] == [[32, 3, 1], [32, 5, 2], [32, 5, 1]]
    for cell in record["cells"]:
        assert [r["label"] for r in cell["rows"]] == ["im2col", "torch-conv2d"]
        assert all((r["cold_s"], r["warm_s"]) == (2.0, 0.1) for r in cell["rows"])
    assert facts.absent(record) == {"jax": "jax is not installed"}
    assert record["starts"] == {"torch cold": 1.0, "torch warm": 1.0, "jax cold": 1.0, "jax warm": 1.0}
    assert record["notes"] == []
    assert record["head"]["device"]["type"] == "cpu"
    json.dumps(record, allow_nan=False)
    assert said[-1] == ("race", 21, 21)
    assert [done for _, done, _ in said] == sorted(done for _, done, _ in said)


def test_without_first_calls_only_the_race_runs(worker):
    worker(CANNED + "\nassert job['what'] == 'race'")
    record = run("torch-conv2d", "jax", first_calls=False)
    assert [c["shape"] for c in record["cells"]] == [[32, 3, 1]]
    assert all(r["cold_s"] is r["warm_s"] is None for c in record["cells"] for r in c["rows"])
    assert record["starts"] == {}
    assert record["notes"] == ["first calls were not requested"]


def test_a_fast_run_compiles_for_each_of_its_shapes(worker):
    """What the race would have to compile has a core of its own before it."""
    worker(CANNED)
    record = study.run(CPU, Wanted(labels=("torch-conv2d",), fast=True))
    assert [[r["cold_s"] for r in cell["rows"]] for cell in record["cells"]] == [[2.0, 2.0]] * 3
    assert record["head"]["fast"]


def test_only_in_a_fast_run_is_another_toolkit_beside_nxcore(worker, monkeypatch):
    """Two processes that wait for each other end; where nothing is beside nxcore, its first one gives up."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for fast, wait in ((True, 200), (False, 2)):
        worker(
            "import sys, json, time\n"
            "mine = json.loads(sys.argv[1])['entrants'][0]\n"
            "folder = os.path.dirname(os.environ['NXCORE_CACHE'])\n"
            "open(os.path.join(folder, mine), 'w').close()\n"
            f"for _ in range({wait} if mine == 'nxcore' else 0):\n"
            "    if os.path.exists(os.path.join(folder, 'inductor-conv2d')): break\n"
            "    time.sleep(0.05)\n"
            "else:\n"
            "    if mine == 'nxcore': sys.exit('alone')\n" + CANNED
        )
        notes = run("inductor-conv2d", "nxcore", fast=fast)["notes"]
        alone = [f"nxcore {state}: its process ended with status 1: alone" for state in study.STATES]
        assert notes == ([] if fast else alone)


def test_each_run_has_caches_of_its_own_and_this_process_keeps_its_variables(worker, monkeypatch):
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NXCORE_CACHE", "JAX_COMPILATION_CACHE_DIR")
    for name in names:
        monkeypatch.setenv(name, "/elsewhere")
    before = dict(os.environ)
    worker(
        "import json, sys\n"
        f"folders = [os.environ[n] for n in {names!r}]\n"
        "assert len(set(folders)) == 4 and '/elsewhere' not in folders, folders\n"
        "assert os.environ['NXCORE_POLICY'] == 'measure'\n"
    )
    assert [n for n in run("torch-conv2d")["notes"] if "ended" in n] == []
    assert dict(os.environ) == before


def test_a_process_that_crashes_is_a_note(worker):
    worker(CANNED + "\nif job['what'] == 'first': sys.exit('no memory left')")
    record = run("torch-conv2d")
    assert record["notes"] == [
        f"torch {state}: its process ended with status 1: no memory left" for state in ("cold", "warm")
    ]
    assert len(record["cells"]) == 1
    assert record["cells"][0]["rows"][0]["cold_s"] == 2.0


def test_a_race_that_crashes_leaves_its_shapes_with_the_reason(worker):
    worker(CANNED + "\nif job['what'] == 'race': os.abort()")
    record = study.run(CPU, Wanted((32,), (3,), ("torch-conv2d",)))
    assert len(record["cells"]) == 1  # it had been told before the crash
    worker("import json, sys\nif json.loads(sys.argv[1])['what'] == 'race': os.abort()")
    record = run("torch-conv2d")
    assert record["cells"] == []
    (note,) = record["notes"]
    assert note.startswith("not raced: 32 x 32, filter 3, padding 1: its process ended with status -6")


def test_an_interruption_ends_the_process(worker):
    def interrupt(*_):
        raise KeyboardInterrupt

    worker(CANNED + "\nimport time\ntime.sleep(600)")
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        study.run(CPU, Wanted((32,), (3,), ("torch-conv2d",)), interrupt)
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_the_budget_ends_processes_and_says_so(worker, monkeypatch):
    monkeypatch.setattr(study, "START_S", {False: 0.0, True: 0.0})
    worker("import time\ntime.sleep(60)")
    monkeypatch.setattr(study, "GRACE_S", 0.0)
    monkeypatch.setattr(study, "PAGES_S", 0.0)
    record = run("torch-conv2d", budget_s=study.RACE_S[False] + 1.0)
    spent = "not measured: the budget of 3.5 s was spent"
    assert record["notes"] == [
        f"torch cold: {spent}",
        f"torch warm: {spent}",
        f"not raced: 32 x 32, filter 3, padding 1: {spent}",
    ]
    assert record["head"]["seconds"] < 30


@pytest.mark.parametrize("fast", [True, False])
def test_the_budget_holds_a_shape_that_was_begun_and_the_pages(worker, monkeypatch, fast):
    """A shape begins early enough to end, and what has not ended is ended before the budget is spent."""
    jobs, given = [], []

    class Timer(study.threading.Timer):
        def __init__(self, seconds, stop):
            given.append(seconds)
            super().__init__(seconds, stop)

    monkeypatch.setattr(study.threading, "Timer", Timer)
    monkeypatch.setattr(study._Run, "_tell", lambda _, title, line: jobs.append(line.get("job")))
    worker(CANNED + "\nprint(json.dumps({'job': job}), flush=True)")
    study.run(CPU, Wanted((32,), (3,), ("torch-conv2d",), fast=fast, first_calls=False))
    (job,) = (job for job in jobs if job)
    last = job["until"] - job["began"]
    assert given[-1] <= study.BUDGETS[fast] - study.PAGES_S
    assert last + study.RACE_S[fast] + 1.0 <= given[-1]
    assert last >= study.BUDGETS[fast] - 10


def test_toolkits_compile_side_by_side_only_with_cores_to_spare(worker, monkeypatch):
    worker(CANNED)
    for cores, fast, beside in ((2, False, False), (16, False, True), (1, True, False), (2, True, True)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        record = run("torch-conv2d", "inductor-conv2d", "nxcore", fast=fast)
        assert record["head"]["beside"] is beside
        assert record["cells"][0]["rows"][-1]["warm_s"] == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("labels", [("torch-conv2d", "jax", "nxcore"), ("inductor-conv2d",)], ids=" ".join)
def test_a_real_run_measures_every_entrant_that_is_here(labels, monkeypatch):
    # Beside other tests, threads that wait for one another take most of the time.
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    record = study.run(CPU, Wanted((32,), (3,), labels, fast=True, budget_s=550.0))
    assert record["notes"] == []
    (cell,) = record["cells"]
    assert not facts.wrong(record)
    timed, absent = facts.labels(record), facts.absent(record)
    assert {*timed} | {*absent} == {"im2col", *labels}
    assert not {*timed} & {*absent}
    for label in timed:
        row = facts.row_of(cell, label)
        assert row["cold_s"] > 0
        assert row["warm_s"] > 0
        if label == "inductor-conv2d":
            assert row["warm_s"] < row["cold_s"] / 2, "the second process finds what the first compiled"
