"""The benchmarks' side of pytest, run as a user runs it: in a folder of its own, with pytest-benchmark."""

import json
import os
from pathlib import Path

import pytest

from tests import fresh

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[3]
REGISTRY = """
import torch
from nxcore.bench import engine
from nxcore.spec.kernel import no
from tests.null import fakes

engine.FAST = fakes.QUICK

def pytest_nxcore_registry(config):
    return fakes.registry(
        fakes.backend("loop", fakes.kernel("add")),
        fakes.backend("away", fakes.kernel("add"), probe=lambda: no("no such device")),
        fakes.backend("zeros", fakes.kernel("add", lambda x, y, alpha, out: torch.add(x, y) * 0)),
    )
"""
BENCHMARKS = """
import pytest
import torch

@pytest.fixture
def mine():
    return lambda x, y, alpha, out: torch.add(y, x)

@pytest.mark.nxcore_bench("add", guests=["mine"])
def test_backends(nxcore_bench):
    nxcore_bench()
"""


@pytest.fixture
def benchmarks(pytester, monkeypatch):
    """Run a benchmark over backends that are registered at run time."""
    pytester.makepyfile(backends=REGISTRY, test_mine=BENCHMARKS)
    path = [str(pytester.path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # few numbers: more would wait for one another
    monkeypatch.delenv(
        "PYTEST_XDIST_WORKER", raising=False
    )  # which turns pytest-benchmark's rows into checks
    monkeypatch.setenv("NXCORE_CACHE", "off")  # else one run's quarantine is the next one's
    # The plugins by name: which of them is installed is no matter.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*options: str):
        ours = ("-p", "nxcore.testing.plugin", "-p", "nxcore.bench.plugin", "-p", "backends")
        always = ("-p", "no:cacheprovider", "--nxcore-bench-fast", "--nxcore-bench-device=cpu")
        # Not in this process: pytester forgets what a run imports, and torch can't be imported twice.
        return fresh.pytested(*ours, *always, "--nxcore-bench-size=bias", *options, cwd=pytester.path)

    return run


@pytest.mark.slow
def test_one_race_is_replayed_into_pytest_benchmark(benchmarks, pytester):
    path = pytester.path / "out.json"
    result = benchmarks(
        "-p", "pytest_benchmark.plugin", "--benchmark-only", f"--benchmark-json={path}", "-rs"
    )
    result.assert_outcomes(passed=4, skipped=1, failed=1)
    result.stdout.fnmatch_lines(["*benchmark 'add bias float32': 4 tests*"])
    result.stdout.fnmatch_lines(["*declined: no such device*"])
    result.stdout.fnmatch_lines(["WRONG: wrong*"])
    found = json.loads(path.read_text())
    kept = {b["name"]: b for b in found["benchmarks"]}
    assert set(kept) == {"torch", "torch again", "loop", "mine"}
    assert kept["mine"]["params"] == {"nxcore_lane": "add-bias-float32-mine"}, "and no repr of the operator"
    for bench in kept.values():
        info = bench["extra_info"]
        assert bench["group"] == "add bias float32"
        assert bench["stats"]["rounds"] == info["blocks"] == 12
        assert bench["stats"]["median"] * 1e6 == pytest.approx(info["call_us"], rel=1e-2)
        assert {"ratio", "verdict", "gb_per_s", "tflop_per_s", "host_us", "versions", "clocks"} <= set(info)
    ratios = [t / m for t, m in zip(*(kept[n]["stats"]["data"] for n in ("torch", "mine")), strict=True)]
    low, high = kept["mine"]["extra_info"]["ratio"][1:]
    assert low <= sorted(ratios)[6] <= high, "the data are paired, block by block"
    assert found["machine_info"]["nxcore"]["device"]["type"] == "cpu"


@pytest.mark.slow
def test_only_what_is_selected_races_with_torch(benchmarks):
    result = benchmarks("-p", "pytest_benchmark.plugin", "--benchmark-only", "-k", "float32-mine")
    result.stdout.fnmatch_lines(["*benchmark 'add bias float32'*"])
    result.assert_outcomes(passed=1, deselected=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("-p", "no:benchmark"),
        ("-p", "pytest_benchmark.plugin", "-p", "xdist.plugin", "-n", "1"),  # which disables it
    ],
    ids=["absent", "xdist"],
)
def test_answers_are_checked_where_nothing_is_timed(benchmarks, options):
    result = benchmarks(*options)
    result.assert_outcomes(passed=4, skipped=1, failed=1)
    result.stdout.no_fnmatch_line("*tests ---*")
    result.stdout.fnmatch_lines(["*WRONG: wrong*"])


def test_a_session_without_benchmarks_is_left_alone(pytester, monkeypatch):
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded():
            assert not {"torch", "pytest_benchmark", "nxcore.bench.engine"} & set(sys.modules)
        """
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    result = pytester.runpytest_subprocess("-p", "nxcore.bench.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


def test_a_guest_has_the_dtypes_that_it_is_asked_for(benchmarks, pytester):
    pytester.makepyfile(test_mine=BENCHMARKS.replace('["mine"]', '{"mine": ["float16", "float32"]}'))
    both = ("--nxcore-bench-dtype=float32", "--nxcore-bench-dtype=bfloat16", "--collect-only", "-q")
    lines = benchmarks("-p", "no:benchmark", *both).stdout.lines
    found = {line.partition("[")[2].rstrip("]") for line in lines if "[" in line}
    assert {n for n in found if n.endswith("-mine")} == {"add-bias-float32-mine"}
    assert {n for n in found if n.endswith("-loop")} == {"add-bias-float32-loop", "add-bias-bfloat16-loop"}


def test_a_dtype_that_no_operator_has_is_an_error(benchmarks, pytester):
    pytester.makepyfile(test_mine=BENCHMARKS.replace('["mine"]', '{"mine": ["float31"]}'))
    result = benchmarks("-p", "no:benchmark", "--collect-only")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*got 'float31' for 'mine'*"])
