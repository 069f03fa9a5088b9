"""A right kernel keeps every rule; what leaves the stream or hangs is refused."""

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
from tests.hostile.backends import LOOPBACK, OPS
from tests.null import fakes
from tests.null.fakes import SPECS


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


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_a_side_stream_never_wins_a_race(op):
    """The gate can't tell: nothing else runs there, so its inputs are complete. The race sees late work."""
    session = fakes.session(backends.SIDE_STREAM.backend())
    sample = next(s for s in SPECS[op].samples if s.name == backends.PLAIN[op])
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
