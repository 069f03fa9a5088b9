"""What a terminal shows of help, broken plugins and operators."""

from dataclasses import replace

import pytest

from nxcore.cli import tables
from tests.null import fakes
from tests.null.cli import test_cli as cli


@pytest.fixture
def session(as_default):
    as_default(found := fakes.session(fakes.backend("fake", fakes.kernel("add"))))
    return found


def test_the_terminal_wraps_the_paragraphs_of_a_help():
    lines = cli.run("tune", "--help").splitlines()
    text = [line.strip() for line in lines if line.strip()]
    start = next(n for n, line in enumerate(text) if line.startswith("Known problems"))
    assert len(text[start]) > 60  # no line ends where the docstring's does
    assert text[start + 1].split()[0] == "continues"


def test_a_table_shows_the_error_of_a_broken_plugin_and_json_its_traceback(session):
    reason = "Traceback (most recent call last):\n  File somewhere\nImportError: no toolkit"
    session.registry.refused.append(replace(cli.FAILED, reason=reason))
    for command in ("backends", "doctor"):
        text = cli.run(command, status=1)
        assert "ImportError: no toolkit" in text
        assert "somewhere" not in text
    assert cli.rows("backends", status=1)[-1]["reason"] == reason


@pytest.mark.usefixtures("session")
def test_a_problem_that_is_left_out_has_a_row(capsys):
    row = {"op": "relu", "name": "gpu 1", "problem": {}, "status": "left out", "reason": "no GPU", "was": ""}
    tables.tune({"rows": [row | {"chosen": "", "ratio": None}], "stopped": "", "left": 0})
    assert "no GPU" in capsys.readouterr().out


@pytest.mark.usefixtures("session")
def test_operators_are_listed_with_the_kernels_that_only_some_have():
    text = cli.run("ops")
    assert "every operator also has: torch" in text
    assert "from" not in text.splitlines()[1].split()  # all come from the core
    assert "gradient:" not in text
