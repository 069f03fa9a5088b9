"""The logger ``nxcore``: choices, verdicts, records, plans and the quarantine; nothing in a planned call."""

import logging
import os
import re

import pytest
import torch

from nxcore.errors import InvalidInputError
from nxcore.settings import Settings
from tests import fresh
from tests.null import fakes

X = torch.arange(12.0).view(3, 4)
CALL = "import torch, nxcore; x = torch.ones(4); nxcore.op('add')(x, x)"


def test_a_new_problem_is_logged_once(caplog):
    session = fakes.session(fakes.backend("fake", fakes.kernel("add")))
    with caplog.at_level(logging.DEBUG, logger="nxcore"), session.use("fake"):
        session.op("add")(X, X)
        text = caplog.text
        caplog.clear()
        session.op("add")(X, X)
    assert re.search(r"choice: add\(.*\).* -> fake, ", text)
    assert re.search(r"verdict: fake of add, samples smoke: agrees", text)
    assert re.search(r"plan: fake for add\(.*\).* is ready", text)
    assert not caplog.records, "a planned call logs nothing"


def test_a_wrong_kernel_is_logged_with_its_reason(caplog):
    session = fakes.session(fakes.backend("fake", fakes.kernel("add", lambda *args: args[0] * 7)))
    with caplog.at_level(logging.INFO, logger="nxcore"), session.use("fake"):
        session.op("add")(X, X)
    assert re.search(r"quarantine: fake of add, wrong: .+", caplog.text)


def test_a_stored_record_is_logged(caplog):
    session = fakes.session(fakes.backend("fake", fakes.kernel("add")))
    with caplog.at_level(logging.DEBUG, logger="nxcore"), session.policy("frozen"):
        session.op("add")(X, X)
    assert re.search(r"record: add\(.*\).*: none", caplog.text)


@pytest.mark.parametrize(("level", "lines"), [("info", True), ("", False)])
def test_the_variable_writes_to_the_standard_error(level, lines):
    environment = os.environ | {"NXCORE_LOG": level, "NXCORE_POLICY": "frozen", "NXCORE_BACKENDS": ""}
    done = fresh.run("-c", CALL, env=environment, check=True)
    assert ("INFO nxcore.choose.chooser: choice: add(" in done.stderr) == lines
    assert done.stdout == ""


def test_an_unknown_level_is_refused():
    with pytest.raises(
        InvalidInputError, match="NXCORE_LOG must be one of debug, info, warning, error, got 'inf'"
    ):
        Settings.from_environment({"NXCORE_LOG": "inf"})
