"""What conftest.py does: tests that it names are there, and a test draws the same numbers in every run."""

from __future__ import annotations

import random
import runpy
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nxcore.testing.rules import repeats_itself
from tests.paths import BOTH

ROOT = Path(__file__).parents[1]


def _names(config: pytest.Config) -> tuple[str, ...]:
    suite = config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    sanitizers = runpy.run_path(str(ROOT / "native" / "sanitize.py"))
    return (*suite.FIRST, *suite.LATER, *suite.LINT, *sanitizers["NOT_OF_MEMORY"])


def test_what_is_named_is_there(pytestconfig: pytest.Config) -> None:
    for name in _names(pytestconfig):
        path, *within = name.split("::")
        test = within[-1] if within else ""
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {test}(" in text or not test, name


def test_the_sanitizers_leave_out_places_of_both_paths():
    left_out = runpy.run_path(str(ROOT / "native" / "sanitize.py"))["ELSEWHERE"]
    assert all(any(place.startswith(out) for place in BOTH) for out in left_out)
    assert not any(place.startswith(left_out) for place in ("tests/null/call/", "tests/null/interop/"))


def test_a_test_draws_the_same_numbers_in_every_run():
    drawn = torch.randint(1_000_000, (2,)).tolist(), random.randrange(1_000_000)
    seed = zlib.crc32(b"tests/test_parts.py::test_a_test_draws_the_same_numbers_in_every_run")
    torch.manual_seed(seed)
    random.seed(seed)
    assert drawn == (torch.randint(1_000_000, (2,)).tolist(), random.randrange(1_000_000))


def test_of_a_kernel_that_cannot_run_one_cell_is_left(pytestconfig: pytest.Config):
    suite = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    samples = ("first", "second", "third")
    spec = SimpleNamespace(name="add", tagged=lambda tag: samples[:2])
    backend = SimpleNamespace(name="cupy")

    def left(machine, *, whole):
        cells = [
            SimpleNamespace(machine=machine, spec=spec, backend=backend, sample=sample, leads=leads)
            for sample in (*samples, None)
            for leads in (True, False)
        ]
        return [c for c in cells if suite._cell_runs_here(None, c, whole=whole)]

    (only,) = left(False, whole=False)
    assert (only.sample, only.leads) == ("first", True)
    assert len(left(False, whole=True)) == len(left(True, whole=False)) == 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device gets all")
def test_what_compiles_for_seconds_runs_once_an_operator(pytestconfig: pytest.Config) -> None:
    suite = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))

    def runs(backend: str, op: str, dtype: torch.dtype, sample: str | None) -> bool:
        spec = SimpleNamespace(name=op, tagged=lambda tag: ("first", "second"))
        cell = SimpleNamespace(
            machine=True, spec=spec, backend=SimpleNamespace(name=backend), sample=sample, dtype=dtype
        )
        return suite._cell_runs_here(repeats_itself, cell, whole=False)

    assert runs("inductor", "add", torch.float32, "first")
    assert runs("inductor", "add", torch.float32, None)
    assert not runs("inductor", "add", torch.float32, "second")
    assert not runs("inductor", "add_backward", torch.float32, "first")
    assert runs("jax", "add", torch.bfloat16, None)
    assert runs("jax", "add", torch.float16, "first")
    assert not runs("jax", "add", torch.float16, None)
