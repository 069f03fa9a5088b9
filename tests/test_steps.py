"""The table of whole models: ``benchmarks/steps.py``."""

from __future__ import annotations

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
