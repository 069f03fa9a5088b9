"""A kernel that changes a setting of the process is refused by the gate, the kit and the watch, by name."""

import re
import subprocess
import sys
import threading
import warnings
from os import environ
from pathlib import Path

import pytest
import torch

from nxcore.context import KernelWarning
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.testing import examine
from nxcore.trust.state import FACTS, GENERATOR, State, disturbance
from tests.hostile.leaving import EFFECTS, ONCE, leaving
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
X = torch.randn(3, 50)


@pytest.fixture(autouse=True)
def as_before():
    """A test that fails leaves nothing behind for the next one."""
    before = State.now(CPU)
    yield
    before.restore(CPU)
    before.rewind()


def kernel(effect, **how):
    spec = SPECS["sum"]
    return fakes.kernel("sum", leaving(spec.reference, effect, **how), dtypes=(torch.float32,))


def told(name, text):
    """The setting is named, and both of its values are where they are short enough to mean something."""
    stem = name.removesuffix("()") if name == "signal.getsignal()" else name
    assert stem in text
    assert "has changed" in text or re.search(r" was .+, is .+", text), text


def test_each_setting_has_a_kernel_that_changes_it():
    assert set(EFFECTS) == {*FACTS, GENERATOR}
    assert {name for name, fact in FACTS.items() if fact.own} == ONCE


@for_each("name", EFFECTS)
def test_the_gate_refuses_it_and_puts_the_setting_back(name):
    session = fakes.session(fakes.backend("hostile", kernel(EFFECTS[name])))
    before = State.now(CPU)
    torch.testing.assert_close(session.op("sum")(X, 1), X.sum(1))
    assert State.now(CPU).facts.get(name) == before.facts.get(name)
    (entry,) = session.gate.quarantine
    assert "the process must be left unchanged" in entry.reason
    told(name, entry.reason)


@for_each("name", EFFECTS)
def test_the_kit_refuses_it(name):
    found = fakes.registry(fakes.backend("hostile", kernel(EFFECTS[name])))
    (row,) = examine(found, ops=["sum"])
    assert "leaves_the_process_alone" in row.rules, row.broken
    told(name, next(f.message for f in row.broken if f.rule == "leaves_the_process_alone"))


@pytest.mark.parametrize("name", sorted(ONCE))
@pytest.mark.parametrize("by", ["call", "planner"])
def test_a_thread_s_own_setting_is_changed_once_and_not_again(name, by):
    """As Numba does, when the first parallel function of a process is compiled."""

    def made():
        if by == "call":
            return kernel(EFFECTS[name], once=True)
        plan = leaving(lambda problem: SPECS["sum"].reference, EFFECTS[name], once=True)
        return fakes.kernel("sum", planner=plan, dtypes=(torch.float32,))

    session, before = fakes.session(fakes.backend("hostile", made())), State.own(CPU)
    torch.testing.assert_close(session.op("sum")(X, 1), X.sum(1))
    assert not State.own(CPU).changed(before)
    told(name, next(iter(session.gate.quarantine)).reason)
    (row,) = examine(fakes.registry(fakes.backend("hostile", made())), ops=["sum"])
    assert "leaves_the_process_alone" in row.rules, row.broken
    assert not State.own(CPU).changed(before)


@for_each("name", EFFECTS)
def test_an_audited_call_refuses_what_was_right_at_the_gate(name):
    effect, turned = EFFECTS[name], []
    hostile = kernel(lambda: effect() if turned else None)
    session = Session(
        Settings(policy="measure"), fakes.registry(fakes.backend("hostile", hostile)), fakes.QUICK
    )
    before = State.now(CPU)
    with session.use("hostile"):
        session.op("sum")(X, 1)
        turned.append(True)
        with pytest.warns(KernelWarning, match="is in quarantine: wrong in a call on"):
            results = [session.op("sum")(X, 1) for _ in range(4)]
    torch.testing.assert_close(results, [X.sum(1)] * 4)
    assert not State.now(CPU).changed(before)
    told(name, next(iter(session.gate.quarantine)).reason)


def test_a_kernel_that_passed_before_is_refused_at_its_first_run_in_a_new_process(tmp_path):
    """The verdict is on disk, so no gate runs; another process may have started the toolkit already."""
    effect, once = EFFECTS["torch.get_num_threads()"], []

    def session():
        hostile = kernel(lambda: effect() if once and once.pop() else None)
        return Session(
            Settings(cache=tmp_path, policy="measure"), fakes.registry(fakes.backend("hostile", hostile))
        )

    first = session()
    first.op("sum")(X, 1)
    assert not list(first.gate.quarantine)
    once.append(True)
    second, before = session(), torch.get_num_threads()
    backend, found = next((b, k) for b, k in second.registry.kernels("sum") if b.name == "hostile")
    suspect = second.gate.suspect(backend, found, CPU, torch.float32)
    problem = Problem.of(SPECS["sum"], SPECS["sum"].bind(X, 1))
    with (
        pytest.raises(Exception, match="the process must be left unchanged: after its first run"),
        second.gate.watched(suspect, CPU, "its first run", problem),
    ):
        found.plan(None)(X, 1, False)
    assert torch.get_num_threads() == before


def test_what_a_message_says_of_a_setting_with_many_parts():
    before = State.now(CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BytesWarning)
        assert re.match(r"warnings.filters was \d+ of them, is \d+, such as", State.now(CPU).changed(before))
    assert State.now(CPU).changed(before) == ""


PLAIN = """
import sys
import threading
import numba, torch
from nxcore.spec.problem import Problem
from nxcore.testing import examine
sys.path[:0] = [{root!r}, {folder!r}]
from tests.null import fakes
import outside
kernel = fakes.kernel("add", planner=outside.plan, dtypes=(torch.float32,), accepts=outside.accepts)
(row,) = examine(fakes.registry(fakes.backend("outside", kernel)), ops=["add"])
print([f.message for f in row.broken if f.rule == "leaves_the_process_alone"][:1], torch.get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.parametrize("preserved", [False, True])
def test_a_parallel_numba_kernel_of_an_outside_author(preserved, tmp_path):
    """docs/plugins.md has the function and what to write around its compilation."""
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    text = page.partition("### Threads\n")[2].partition("```python\n")[2].partition("```")[0]
    assert "with preserved():" in text
    if not preserved:
        text = text.replace("with preserved():", "if True:")
    (tmp_path / "outside.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PLAIN.format(root=str(ROOT), folder=str(tmp_path))],
        env={**environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
        | {"NUMBA_THREADING_LAYER": "omp", "NXCORE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    why = "" if preserved else "torch.get_num_threads() was 1, is 2"
    assert why in done.stdout, done.stdout
    assert done.stdout.endswith(" 1\n"), "it is put back"
    assert done.stdout.startswith("[]") == preserved


def test_what_the_program_sets_while_another_thread_verifies_stays(monkeypatch, tmp_path):
    cpu, found = torch.device("cpu"), []
    before = State.now(cpu)
    monkeypatch.chdir(tmp_path)  # no kernel's fault, and not to be put back for a trial of one
    tried = threading.Thread(target=lambda: found.append(disturbance(before, cpu, Path.cwd, Path.cwd)))
    tried.start()
    tried.join()
    assert (found, Path.cwd()) == ([""], tmp_path)
