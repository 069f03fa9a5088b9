"""The conformance kit as a user runs it: pytest's options, from a folder that knows nothing of nxcore."""

import json
import os
from pathlib import Path

import pytest
import torch

from tests import fresh

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[3]
BACKENDS = """
import torch
from nxcore.spec.kernel import Code, no
from nxcore.plugin import TensorMeta
from tests.null import fakes

def tensors(problem):
    given = isinstance(problem["y"], TensorMeta)
    return fakes.YES if given else no("needs a tensor for y", code=Code.ARGUMENT)

def pytest_nxcore_registry(config):
    how = {"dtypes": (torch.float32,), "in_place_safe": True}
    return fakes.registry(
        fakes.backend("loop", fakes.kernel("add", accepts=tensors, **how)),
        fakes.backend("away", fakes.kernel("add", **how), probe=lambda: no("no such device")),
        fakes.backend("zeros", fakes.kernel("add", lambda x, y, alpha, out: torch.add(x, y) * 0, **how)),
    )
"""


@pytest.fixture
def kit(pytester, monkeypatch):
    """Run the kit over backends that are registered at run time."""
    pytester.makepyfile(backends=BACKENDS)
    path = [str(pytester.path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # few numbers: more would wait for one another

    def run(*options):
        always = ("-p", "backends", "-p", "no:cacheprovider", "-p", "no:benchmark", "--pyargs")
        # Not in this process: pytester forgets what a run imports, and torch can't be imported twice.
        return fresh.pytested(*always, "nxcore.testing", *options, cwd=pytester.path)

    return run


@pytest.mark.slow
def test_refusals_are_written_reviewed_and_held_to(kit, pytester):
    listed, path = pytester.path / "declines.txt", pytester.path / "report.json"
    asked = ("--nxcore-backend=loop", f"--nxcore-declines={listed}")
    # The report of one process beside it: half of a run's time is its imports.
    first = kit(*asked, "--nxcore-write-declines", f"--nxcore-report={path}").parseoutcomes()
    told = {c["dtype"]: c for c in json.loads(path.read_text())["cells"] if c["backend"] == "loop"}
    assert (told["float32"]["outcome"], told["float16"]["outcome"]) == ("verified", "declined")
    assert told["float32"]["declined"] == {"needs a tensor for y": 1}
    assert first["passed"] > 30
    assert set(first) == {"passed", "skipped"}
    text = listed.read_text()
    assert f"[{'cuda' if torch.cuda.is_available() else 'cpu'}]\nadd\n  loop\n" in text
    assert "    number: argument: needs a tensor for y\n" in text
    assert ": claim: " not in text, "the kernel's own row says so"
    listed.write_text(text.replace("    number: ", "    nan: "))
    result = kit(*asked)
    assert result.parseoutcomes() == first | {
        "passed": first["passed"] - 1,
        "skipped": first["skipped"] - 1,
        "failed": 2,
    }
    result.stdout.fnmatch_lines(["*a refusal that isn't listed: argument: needs a tensor for y*"])
    result.stdout.fnmatch_lines(["*listed as refused (argument: needs a tensor for y), but it was taken*"])


@pytest.mark.slow
def test_what_cannot_run_fails_where_it_is_required(kit):
    result = kit("--nxcore-backend=away", "--nxcore-require=away")
    assert set(result.parseoutcomes()) == {"failed"}
    result.stdout.fnmatch_lines("*--nxcore-require=away: no such device*")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--nxcore-backend=lop", "*--nxcore-backend=lop: no backend is named 'lop'; did you mean 'loop'?*"),
        ("--nxcore-write-declines", "*--nxcore-write-declines needs --nxcore-declines=FILE*"),
    ],
)
def test_a_slip_is_an_error_of_usage(kit, option, told):
    result = kit(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(told)


@pytest.mark.slow
def test_the_report_holds_every_cell_of_two_workers(kit, pytester):
    path = pytester.path / "deep" / "report.json"
    result = kit(f"--nxcore-report={path}", "-n", "2")
    result.stdout.fnmatch_lines("agrees_with_float64: elementwise error is *")
    record = json.loads(path.read_text())
    assert set(record) == {"device", "date", "torch", "cells"}
    found = {(c["backend"], c["dtype"]): c for c in record["cells"] if c["op"] == "add"}
    loop = found["loop", "float32"]
    assert (loop["outcome"], loop["declined"]) == ("verified", {"needs a tensor for y": 1})
    assert loop["samples"] > 25
    assert loop["error"] < 1e-6
    assert loop["microseconds"] > 0
    assert found["loop", "float16"] == {
        "op": "add",
        "backend": "loop",
        "dtype": "float16",
        "outcome": "declined",
        "reason": "needs float32",
    }
    assert found["away", "float32"]["reason"] == "no such device"
    assert found["zeros", "float32"]["outcome"] == "wrong"


@pytest.mark.slow
def test_backends_are_chosen_by_name(kit):
    lines = kit("--nxcore-backend=loop", "--nxcore-backend=away", "--collect-only", "-q").outlines
    assert {name for name in ("loop", "away", "zeros") if any(f"-{name}-" in line for line in lines)} == {
        "loop",
        "away",
    }


CRASHER = """
import ctypes
import torch
from nxcore.plugin import YES, Backend, Kernel, hookimpl

def plan(problem):
    # It accepts every layout and reads memory that some don't have.
    dense = problem.outputs.empty().numel() != 1025
    return lambda x, y, alpha, out: torch.add(x, y, alpha=alpha, out=out) if dense else ctypes.string_at(0)

@hookimpl
def nxcore_backend():
    return Backend("crasher", lambda: YES, [Kernel("add", "crasher:plan")], api=1)
"""


@pytest.mark.slow
def test_a_kernel_that_takes_its_process_along_fails_where_it_does(pytester, monkeypatch):
    """``accepts`` lies, so the kernel meets a call that it can't serve: the run names it and goes on."""
    pytester.makepyfile(crasher=CRASHER)
    info = pytester.mkdir("crasher-1.0.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crasher\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nxcore]\ncrasher = crasher\n")
    path = [str(pytester.path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("NXCORE_BACKENDS", "crasher")
    kit = ("-p", "no:benchmark", "-p", "no:cacheprovider", "--nxcore-backend=crasher")
    kit += ("--pyargs", "nxcore.testing", "-rs")
    died = fresh.pytested(*kit, cwd=pytester.path)
    assert died.ret < 0, "of SIGSEGV"
    died.stdout.fnmatch_lines("nxcore: a kernel that crashes ends this run; with --nxcore-isolated *")
    told = fresh.pytested(*kit, "--nxcore-isolated", cwd=pytester.path)
    counts = told.parseoutcomes()
    assert (counts["failed"], set(counts)) == (1, {"failed", "skipped"})
    assert counts["skipped"] > 30
    told.stdout.fnmatch_lines("crasher crashed: *: its process died of SIGSEGV*")
    told.stdout.fnmatch_lines("*not run, because its kernel crashed in *")


def test_a_session_without_the_kit_is_left_alone(pytester, monkeypatch):
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded(request):
            assert not request.config.pluginmanager.has_plugin("nxcore-gatherer")
            heavy = {"torch", "numpy", "nxcore.spec.spec", "nxcore.testing.cell"}
            assert not heavy & set(sys.modules)
        """
    )
    # No plugin but the kit's: others may load torch.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = pytester.runpytest_subprocess("-p", "nxcore.testing.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
