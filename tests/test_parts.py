"""Tests that are named, to be left out or to run first or later, are there: another name selects none."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _names(config: pytest.Config) -> tuple[str, ...]:
    suite = config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    sanitizers = runpy.run_path(str(ROOT / "native" / "sanitize.py"))
    return (*suite.FIRST, *suite.LATER, *sanitizers["NOT_OF_MEMORY"])


def test_what_is_named_is_there(pytestconfig: pytest.Config) -> None:
    for name in _names(pytestconfig):
        path, *within = name.split("::")
        test = within[-1] if within else ""
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {test}(" in text or not test, name
