"""``benchmarks/replay.py``: choices asked again, by what a run of ``regret.py`` left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from nxcore.measure.decision import Candidate, Decision
from nxcore.measure.timing import Timing
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.store.pages import Page
from nxcore.store.problems import moved

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CPU = torch.device("cpu")


def us(size: int, label: str) -> float:
    """Return what an invented kernel takes: from 4,096 elements on torch's own is the slower."""
    return {"torch": 1 + size / 1e3, "numba": 3 + size / 2e3}[label]


@pytest.mark.parametrize("flags", [[], ["--without-kriging"]], ids=["kriging", "line"])
def test_regret_is_computed_without_a_run(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import replay

    kriging = replay.model.Field
    monkeypatch.setattr(replay.model, "Field", kriging)
    from sizes import families

    family = next(f for f in families(large=False) if f.op == "add")
    session = Session(Settings(cache=tmp_path / "found.wisdom"))
    spec = session.registry.spec("add")
    for sample in family.learnt(32):
        problem = moved(Problem.of(spec, sample.build(spec, "meta", family.dtype)), CPU)
        timings = {n: Timing(*[(us(problem["x"].numel(), n),) * 12] * 2) for n in ("torch", "numba")}
        seen = tuple(Candidate(n, n, timing=t) for n, t in timings.items())
        session.wisdom.write(problem, Page(Decision("torch", "reference", "", seen), None, {}))
    lines = tmp_path / "found.jsonl"
    with lines.open("w") as stream:
        for sample in family.held(8):
            size = sample.args[0].shape[0]
            rounds = [{n: us(size, n) for n in ("torch", "numba")}] * 2
            stream.write(json.dumps({"sample": f"add {sample.name}", "row": {"us": rounds}}) + "\n")
    monkeypatch.setattr(sys, "argv", ["replay.py", str(lines), "--left-out", *flags])
    replay.main()
    assert (replay.model.Field is kriging) == (not flags)
    held, learnt = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("add"))
    assert (held[1], held[2], held[5]) == ("8", "1.000", "0")
    assert float(held[4]) < 1.1
    assert int(held[6].rstrip(";")) > 0, "what lies above is numba's"
    assert int(learnt[1]) > 20


def test_a_record_of_expressions_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import regret_expressions
    import replay

    family = next(regret_expressions.families("cpu"))
    learnt = [
        {"elements": n, "us": {"torch": us(n, "torch"), "numba": us(n, "numba")}} for n in family.learnt
    ]
    rows = [
        {
            "text": family.text,
            "elements": n,
            "learnt": learnt,
            "row": {"us": [{"torch": us(n, "torch"), "numba": us(n, "numba")}] * 2},
        }
        for n in family.held
    ]
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"device": {"type": "cpu"}, "rows": rows}), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["replay.py", str(path)])
    replay.main()
    total, *worst = capsys.readouterr().out.splitlines()[1:]
    assert total.split()[:4] == ["all", "3", "1.000", "1.000"]
    assert len(worst) == 3


@pytest.mark.parametrize(("noises", "races"), [((0.01,), 1), ((0.5, 0.1), 2), ((0.5, 0.5, 0.5, 0.5), 3)])
def test_an_unclear_size_is_raced_again_as_the_next_processes_would(
    noises: tuple[float, ...], races: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import regret_expressions

    seen = iter(noises)
    held = []

    class Chooser:
        lock = settings = None

        def hold(self, *_: object) -> None:
            held.append(True)

    class Raced:
        chooser = Chooser()

    def learn(*_: object) -> Decision:
        return Decision("torch", "reference", "", noise=next(seen))

    monkeypatch.setattr(regret_expressions.audit, "learn", learn)
    found = regret_expressions.learnt(Raced(), "add", ())  # type: ignore[arg-type]
    assert len(held) == races - 1
    assert found.noise == noises[races - 1]
