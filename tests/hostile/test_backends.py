"""A right kernel keeps every rule; twelve wrong ones are each refused by the rule made for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.testing import examine, isolated
from nxcore.trust.gate import short
from nxcore.trust.truth import Truth
from tests.hostile import backends
from tests.hostile.backends import HOSTILE, LOOPBACK, OPS
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

GATED = [name for name, hostile in HOSTILE.items() if hostile.gate]


def right(op, args, result):
    return Truth.of(SPECS[op], args).judge(result).ok


@pytest.mark.parametrize("op", OPS)
def test_the_loopback_keeps_every_rule(op):
    """In all types but float16, in which some of torch's own operators aren't right on the CPU: add rounds
    ``alpha * y``. tests/null/testing/test_testing.py has all operators in float32."""
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    loop = fakes.backend("loop", fakes.kernel(op, LOOPBACK.kernel(op), dtypes=dtypes))
    assert [(row.dtype, row.outcome, row.broken) for row in examine(fakes.registry(loop))] == [
        (short(dtype), "verified", ()) for dtype in dtypes
    ]


@pytest.mark.parametrize("op", OPS)
def test_the_loopback_serves(op):
    session = fakes.session(LOOPBACK.backend())
    args = LOOPBACK.arguments(op)
    assert right(op, args, fakes.called(session.op(op, backend="hostile"), args))
    assert not session.explain(op, *args).decision["hostile"].refusal
    assert list(session.gate.quarantine) == []


@for_each("op", OPS)
@for_each("name", HOSTILE)
def test_its_rule_refuses_it(name, op):
    (row,) = examine(fakes.registry(HOSTILE[name].backend(op)))
    assert row.outcome == "wrong"
    assert HOSTILE[name].rule in row.rules, row.broken


@for_each("op", OPS)
@for_each("name", GATED)
def test_the_gate_keeps_it_from_the_user(name, op):
    hostile = HOSTILE[name]
    session = fakes.session(hostile.backend())
    args = hostile.arguments(op)
    assert right(op, args, fakes.called(session.op(op), args))
    decision = session.explain(op, *args).decision
    assert decision.chosen in ("torch", "torch-einsum", "torch-in-place")
    assert decision["hostile"].refusal.reason.startswith(hostile.gate)
    kept = [(e.kind, e.op, e.dtype) for e in session.gate.quarantine if e.kernel == "hostile"]
    # What raised is asked again, since the machine may be to blame; a wrong answer never is.
    wrong = hostile.gate.startswith("wrong")
    assert kept == ([("wrong", op, short(hostile.dtype))] if wrong else [])


@for_each("op", OPS)
@for_each("name", sorted(set(GATED) - {"raises", "input_mutator", "cached_by_data_ptr"}))
def test_the_call_shown_is_one_that_it_gets_wrong(name, op):
    hostile = HOSTILE[name]
    args = hostile.arguments(op)
    with torch.no_grad():
        assert not right(op, args, hostile.kernel(op)(*args))


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_a_side_stream_is_refused_by_its_rule(op):
    (row,) = examine(fakes.registry(backends.SIDE_STREAM.backend(op)))
    assert backends.SIDE_STREAM.rule in row.rules, row.broken


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_a_side_stream_never_wins_a_race(op):
    """The gate can't tell: nothing else runs there, so its inputs are complete. The race sees late work."""
    session = fakes.session(backends.SIDE_STREAM.backend())
    sample = next(s for s in SPECS[op].samples if s.name == backends.SIDE_STREAM.shown[op])
    args = sample.build(SPECS[op], "cuda", torch.float32)
    assert right(op, args, fakes.called(session.op(op), args))
    assert session.explain(op, *args).decision.chosen.startswith("torch")


# What hangs, in processes of their own.


@pytest.mark.slow
def test_what_hangs_spoils_its_row(tmp_path, monkeypatch):
    reached = tmp_path / "reached"
    monkeypatch.setenv(backends.HUNG, str(reached))
    (row,) = isolated(backends.hangs(), source="tests.hostile.backends:hangs", timeout=8)
    assert (row.outcome, row.broken[0].message) == ("hung", "did not finish in 8 s; its process was killed")
    assert reached.exists()


CALLS = """
import dataclasses, sys, pathlib, torch
from nxcore.session import Session
from nxcore.settings import Settings
from tests.hostile import backends
given = Settings.from_environment()
settings = dataclasses.replace(given, cache=pathlib.Path(sys.argv[1]), policy="measure")
Session(settings, backends.hangs()).op("sum")(torch.ones(9))
"""


@pytest.mark.timeout(300)  # where this fails, it hangs
def test_what_hung_until_it_was_killed_is_quarantined_at_the_next_start(tmp_path, monkeypatch):
    reached, cache = tmp_path / "reached", tmp_path / "cache"
    monkeypatch.setenv(backends.HUNG, str(reached))
    child = subprocess.Popen([sys.executable, "-c", CALLS, str(cache)])
    try:
        while not reached.exists():
            with pytest.raises(subprocess.TimeoutExpired):  # it lives
                child.wait(0.1)
    finally:
        child.kill()
        child.wait()
    session = Session(Settings(cache=cache, policy="measure"), backends.hangs(), fakes.QUICK)
    assert float(session.op("sum")(torch.ones(9))) == 9
    (entry,) = session.gate.quarantine
    assert (entry.kind, entry.op, entry.kernel) == ("crashed", "sum", "hostile")
    assert "a process ended during its verification" in entry.reason
    assert session.explain("sum", torch.ones(9)).decision.chosen == "torch"
