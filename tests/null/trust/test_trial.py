"""A kernel in which a process ended is tried in a process of its own before that is believed."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.kernel import Code
from nxcore.trust import fingerprint, identity, trial
from nxcore.trust.trial import ABSENT, BEGUN, ENDED, LOST, Outcome
from tests.table import for_each

PLUGIN = """
import os, signal, time, torch
from nxcore.plugin import YES, Backend, Kernel, hookimpl
HOW = os.environ.get("HOW", "")
def plan(problem):
    if HOW == "sleep":
        print("in", flush=True)
        time.sleep(600)
    if HOW.isdigit():
        os.kill(os.getpid(), int(HOW))
    return lambda x, y, alpha=1, out=None: torch.add(x, y, alpha=alpha, out=out)
@hookimpl
def nxcore_backend():
    return Backend("innocent", lambda: YES, (Kernel("add", "nxinnocent:plan", lambda p: YES),), api=1)
"""
X = torch.ones(3, 5)


def plug(folder):
    """Install a plugin whose kernel does what HOW says."""
    (folder / "nxinnocent.py").write_text(PLUGIN)
    info = folder / "nxinnocent-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nxinnocent\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[nxcore]\ninnocent = nxinnocent\n")


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """Install the plugin, and return its folder."""
    plug(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NXCORE_BACKENDS", "innocent")
    monkeypatch.setenv("NXCORE_CACHE", str(tmp_path / "cache"))
    known = fingerprint.plugins, fingerprint.versions, identity._packages, identity.installed
    for cached in known:
        cached.cache_clear()
    yield tmp_path
    for cached in known:
        cached.cache_clear()
    sys.modules.pop("nxinnocent", None)


def session():
    return Session(Settings.from_environment())


def served(found):
    return torch.equal(found.op("add", backend="innocent")(X, X), 2 * X)


def killed(folder):
    """Kill a process from outside while the kernel is verified in it."""
    code = "import torch, nxcore; nxcore.op('add', backend='innocent')(torch.ones(3, 5), torch.ones(3, 5))"
    env = os.environ | {"HOW": "sleep", "PYTHONPATH": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()


def test_a_process_that_is_killed_from_outside_costs_a_kernel_one_trial(plugged, caplog):
    killed(plugged)
    found = session()
    (doubt,) = found.gate.quarantine.doubts
    assert doubt.reason == "a process ended during its verification"
    assert served(found)
    assert "it is tried in a process of its own first" in caplog.text
    assert found.gate.quarantine.doubts == found.gate.quarantined() == []
    again = session()
    assert again.gate.quarantine.doubts == []


def test_a_kernel_that_ends_its_trial_is_in_quarantine(plugged, monkeypatch):
    killed(plugged)
    monkeypatch.setenv("HOW", str(int(signal.SIGSEGV)))
    found = session()
    assert torch.equal(found.op("add")(X, X), 2 * X)
    with found.policy("measure"):
        refusal = found.explain("add", X, X).decision["innocent"].refusal
    assert refusal.code is Code.CRASHED
    assert "it ended its process by signal 11 when it was tried" in refusal.reason
    assert found.gate.quarantine.doubts == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [int(signal.SIGKILL), int(signal.SIGTERM)])
def test_a_trial_that_is_ended_from_outside_says_nothing(plugged, monkeypatch, how):
    killed(plugged)
    monkeypatch.setenv("HOW", str(how))
    found = session()
    with found.policy("measure"):
        refusal = found.explain("add", X, X).decision["innocent"].refusal
    assert refusal.code is Code.MEMORY, "it is tried again"
    assert len(found.gate.quarantine.doubts) == 1
    assert found.gate.quarantined() == []


@pytest.mark.slow
def test_a_kernel_that_hangs_in_its_trial_crashed(plugged, monkeypatch):
    killed(plugged)
    monkeypatch.setenv("HOW", "sleep")
    found, began = session(), time.monotonic()
    held = trial.held(found.gate.quarantine.doubts[0], found.gate.store, limit=8.0)
    assert held == Outcome(crashed=True, why="it didn't end in 8 s when it was tried")
    assert time.monotonic() - began < 60


@for_each(
    ("status", "lines", "mark"),
    [
        (0, [BEGUN, ENDED], "passed"),
        (-11, [BEGUN, ENDED], "passed"),
        (0, [ABSENT], "impossible"),
        (0, [BEGUN, LOST], "crashed"),
        (-11, [BEGUN], "crashed"),
        (-6, [BEGUN], "crashed"),
        (1, [BEGUN], "crashed"),
        (-9, [BEGUN], ""),
        (-15, [BEGUN], ""),
        (-2, [BEGUN], ""),
        (1, [], ""),
        (-11, [], ""),
    ],
)
def test_what_an_end_says(status, lines, mark):
    found = trial._judged(status, lines)
    assert [name for name in ("passed", "crashed", "impossible") if getattr(found, name)] == [mark] * bool(
        mark
    )
    assert found.why or mark in ("passed", "impossible")
