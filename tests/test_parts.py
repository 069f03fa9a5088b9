"""What conftest.py does: tests that it names are there, and a test draws the same numbers in every run."""

import random
import runpy
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nxcore.testing.rules import repeats_itself
from tests.paths import BOTH
from tests.table import for_each

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


FIRST, SECOND, THIRD, PLANES = (
    SimpleNamespace(name=n) for n in ("first", "second", "third", "square_planes")
)


@pytest.fixture
def runs(pytestconfig: pytest.Config):
    """Tell whether a cell of the kit runs here; its operator has two smoke samples."""
    suite = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))

    def asked(backend="cupy", op="add", dtype=torch.float32, sample=FIRST, *, whole=False, **how) -> bool:
        spec = SimpleNamespace(name=op, tagged=lambda tag: (FIRST, SECOND))
        given = {"machine": True, "leads": True, "kernel": SimpleNamespace(variant=""), "dtype": dtype} | how
        cell = SimpleNamespace(spec=spec, backend=SimpleNamespace(name=backend), sample=sample, **given)
        return suite._cell_runs_here(repeats_itself, cell, whole=whole)

    return asked


def test_of_a_kernel_that_cannot_run_one_cell_is_left(runs):
    samples = (FIRST, SECOND, THIRD, None)
    left = [
        (s, leads) for s in samples for leads in (True, False) if runs(sample=s, leads=leads, machine=False)
    ]
    assert left == [(FIRST, True)]
    assert all(runs(sample=s, leads=leads) for s in samples for leads in (True, False))
    assert all(runs(sample=s, machine=False, whole=True) for s in samples)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device gets all")
@for_each(
    ("backend", "op", "dtype", "samples"),
    [
        ("inductor", "add", torch.float32, (FIRST, None)),
        ("inductor", "add_backward", torch.float32, ()),
        ("jax", "add", torch.bfloat16, (FIRST,)),
        ("jax", "add", torch.float16, (FIRST,)),
        ("cuda", "add", torch.float32, (FIRST, SECOND, THIRD, PLANES, None)),
        ("cuda", "add", torch.bfloat16, (FIRST, SECOND, None)),
        ("numba", "add", torch.float16, (FIRST, SECOND, None)),
        ("numba", "amin", torch.float16, ()),
        ("triton", "add", torch.float16, (FIRST, SECOND)),
        ("triton", "add", torch.bfloat16, (FIRST,)),
    ],
)
def test_what_takes_long_runs_few_samples(runs, backend, op, dtype, samples):
    every = (FIRST, SECOND, THIRD, PLANES, None)
    assert tuple(s for s in every if runs(backend, op, dtype, s)) == samples
