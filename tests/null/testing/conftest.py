"""For all tests of the kit."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_this_folder(monkeypatch):
    """Whatever a hostile kernel does, the next test runs in the same folder."""
    monkeypatch.chdir(Path.cwd())
