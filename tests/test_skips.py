"""The summary of skipped tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.skips import by_reason

ROOT = Path(__file__).parents[1]


def test_common_reasons_have_a_line_each_and_rare_ones_share_one():
    reasons = ["Skipped: no device"] * 1200 + ["no cupy"] * 20 + ["odd"] * 19 + ["odder"]
    assert by_reason(reasons) == [
        " 1,200  no device",
        "    20  no cupy",
        "    20  2 other reasons, which pytest -rs lists",
    ]
    assert by_reason(["alone"]) == ["     1  1 other reason, which pytest -rs lists"]
    assert by_reason([]) == []


@pytest.mark.parametrize(("asked", "said"), [("fE", True), ("sfE", False), ("a", False)])
def test_the_end_of_a_run_says_so_unless_pytest_does(request, asked, said):
    plugins = request.config.pluginmanager.get_plugins()
    (ours,) = (p for p in plugins if getattr(p, "__file__", None) == str(ROOT / "conftest.py"))
    lines = []
    skipped = SimpleNamespace(longrepr=("test.py", 3, "Skipped: no device"))
    ours.pytest_terminal_summary(
        SimpleNamespace(
            stats={"skipped": [skipped] * 30},
            reportchars=asked,
            section=lines.append,
            write_line=lines.append,
        )
    )
    assert lines == ["why tests were skipped", "    30  no device"] * said
