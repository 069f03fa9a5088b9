"""The table of whole models: ``benchmarks/steps.py``."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import asdict
from types import SimpleNamespace

from benchmarks import steps
from benchmarks.steps import How, Turn, line


def test_a_run_that_ends_with_its_first_step_has_a_row():
    """No processor time is known of the first step."""
    plain, first = Turn(0.02, 0.02, 10, []), Turn(20.0, 0.0, 1, [])
    row = line(How("net", half=False, evaluation=False), [(20.0, plain, first)])
    assert row.startswith("net")
    assert "cpu nan" in row
    assert "first 20.00 s (0.02)" in row


def test_processor_times_are_compared_where_both_are_known():
    plain, first, later = Turn(0.02, 0.02, 10, []), Turn(20.0, 0.0, 1, []), Turn(0.01, 0.005, 20, [])
    found = [(20.0, plain, first), (21.0, plain, later), (22.0, plain, later)]
    assert "cpu 4.000" in line(How("net", half=False, evaluation=False), found)


def test_no_turn_begins_after_the_limit(monkeypatch):
    child = SimpleNamespace(
        stdin=io.StringIO(),
        stdout=SimpleNamespace(readline=lambda: json.dumps(asdict(Turn(1.0, 1.0, 1, [])))),
        send_signal=lambda _: None,
        wait=lambda: 0,
    )
    now = itertools.count()
    monkeypatch.setattr(steps.subprocess, "Popen", lambda *_, **__: child)
    monkeypatch.setattr(steps, "made", lambda _: (None, None))
    monkeypatch.setattr(steps, "turn", lambda *_: Turn(1.0, 1.0, 1, []))
    monkeypatch.setattr(steps.time, "perf_counter", lambda: float(next(now)))
    assert len(list(steps.turns(How("darts", False, False), 60.0, "", limit=4.0))) == 3
