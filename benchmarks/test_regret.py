"""Regret of choices for unmeasured sizes, on this CPU.

Thirty-two sizes and the corners of each family are learnt, eight others are held out. For the held-out
sizes the median regret must be within 2%, 95% of them within 10%, and no winner may be slower than torch by
more than the margin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from nxcore.offline.audit import Row, summary

P50, P95 = 1.02, 1.10
INTERPRETERS = ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM", "NXCORE_CUDA_EMULATOR")

pytestmark = pytest.mark.skipif(
    find_spec("nxcore_numba") is None,
    reason="Numba is not installed, and with torch alone there is nothing to choose",
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Row]:
    """Return the result of a process without the tests' interpreters, whose checks take minutes."""
    output = tmp_path_factory.mktemp("regret") / "found.json"
    words = [
        str(Path(__file__).with_name("regret.py")),
        "--device=cpu",
        "--quick",
        "--learn=32",
        f"--output={output}",
    ]
    around = {name: value for name, value in os.environ.items() if name not in INTERPRETERS}
    subprocess.run([sys.executable, *words], check=True, env=around, timeout=500)
    return [Row(**row) for row in json.loads(output.read_text(encoding="utf-8"))["rows"]]


def test_there_is_enough_to_tell(rows: Sequence[Row]) -> None:
    assert len(rows) >= 60
    assert len({row.op for row in rows}) >= 5
    others = sum(not row.chosen.startswith("torch") for row in rows)
    assert min(others, len(rows) - others) >= 20, "the choices must differ"


def test_choices_are_nearly_the_best(rows: Sequence[Row]) -> None:
    everything = summary(rows)[-1]
    assert everything["p50"] <= P50
    assert everything["p95"] <= P95, [row for row in rows if row.regret > P95]


def test_no_choice_is_slower_than_torch(rows: Sequence[Row]) -> None:
    assert [row for row in rows if row.slower] == []
