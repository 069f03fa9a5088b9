"""What conftest.py does: tests that it names are there, and a test draws the same numbers in every run."""

from __future__ import annotations

import random
import runpy
import zlib
from pathlib import Path

import pytest
import torch

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


def test_a_test_draws_the_same_numbers_in_every_run():
    drawn = torch.randint(1_000_000, (2,)).tolist(), random.randrange(1_000_000)
    seed = zlib.crc32(b"tests/test_parts.py::test_a_test_draws_the_same_numbers_in_every_run")
    torch.manual_seed(seed)
    random.seed(seed)
    assert drawn == (torch.randint(1_000_000, (2,)).tolist(), random.randrange(1_000_000))
